"""The console's modules as one script (pure): a browser loads one file, which compresses better than twenty.

It is not a build: the files run as they are, too. A module becomes a function that is called once, in the order of the
imports; comments, empty lines and indentation are left out. Modules of ``vendor/`` stay what they are.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from graphlib import TopologicalSorter

VENDOR = "vendor/"
_IMPORT = re.compile(
    r'^import (?:\{ (?P<names>[\w, ]+) \}|\* as (?P<all>\w+)) from "(?P<path>\.\.?/[\w./-]+)";\n', re.M
)
_EXPORT = re.compile(r"^export (?P<default>default )?(?P<kind>(?:async )?function|const|let|class) (?P<name>\w+)", re.M)
_EXPORTED = re.compile(r"^export \{ ([\w, ]+) \};\n", re.M)
_COMMENT = re.compile(r"^ *//.*\n|^\n| +// [^\"'`\n]*$", re.M)  # behind code: without quotes, as no text of ours is
_INDENT = re.compile(r"^ +", re.M)


def joined(modules: Mapping[str, str], entry: str) -> str:
    """Return one module that does what ``entry`` does.

    Args:
        modules: texts by path, such as ``pages/map.js``.

    Raises:
        ValueError: a module imports or exports in a way that is not known here, or what is not there.
        CycleError: modules import each other.
    """
    order: TopologicalSorter[str] = TopologicalSorter()
    waiting, known = [entry], set()
    while waiting:
        path = waiting.pop()
        if path in known:
            continue
        known.add(path)
        if path not in modules:
            raise ValueError(f"no module {path}")
        needed = [_target(path, match["path"]) for match in _IMPORT.finditer(modules[path])]
        own = [each for each in needed if not each.startswith(VENDOR)]
        order.add(path, *own)
        waiting += own
    vendored: dict[str, str] = {}
    bodies = [_as_function(path, modules[path], vendored) for path in order.static_order()]
    imports = [f'import * as {name} from "./{path}";\n' for path, name in vendored.items()]
    return "".join([*imports, *bodies])


def _as_function(path: str, text: str, vendored: dict[str, str]) -> str:
    def bound(match: re.Match[str]) -> str:
        target = _target(path, match["path"])
        name = _name(target)
        if target.startswith(VENDOR):
            vendored[target] = name
        return f"const {match['all'] or '{' + match['names'] + '}'} = {name};\n"

    exported: list[str] = []

    def kept(match: re.Match[str]) -> str:
        exported.append(f"default: {match['name']}" if match["default"] else match["name"])
        return f"{match['kind']} {match['name']}"

    def listed(match: re.Match[str]) -> str:
        exported.append(match[1])
        return ""

    body = _EXPORTED.sub(listed, _EXPORT.sub(kept, _IMPORT.sub(bound, _COMMENT.sub("", text))))
    if strange := re.search(r"^(?:import|export)\b.*", body, re.M):
        raise ValueError(f"{path}: {strange[0]!r} is no import or export that is known: docs/console.md has the forms")
    return f"const {_name(path)} = (() => {{\n{_INDENT.sub('', body)}return {{{', '.join(exported)}}};\n}})();\n"


def _target(path: str, relative: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(path), relative))


def _name(path: str) -> str:
    return "$" + re.sub(r"\W", "_", path.removesuffix(".js"))
