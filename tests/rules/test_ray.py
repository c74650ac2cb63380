"""Ray is used as its makers publish it: private names stand in ``heliograph/ray/`` only, and nothing is patched."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache

import pytest

from tests.rules.source import SourceFile, example_files, files_below, for_each, product_files

FOLDER = "heliograph/ray/"  # the one that may
NOT_PUBLISHED = ("ray.core", "ray.dashboard", "ray.scripts", "ray.autoscaler")  # besides what begins with an underscore
MODULE = re.compile(r"ray(\.\w+)+")
PRIVATE_NAME = re.compile(r"_[a-z]\w*")
PUBLIC = {"_exit"}  # of os
REPLACEABLE = {"sys.stdout"}  # as Python's manual has it


def is_private(module: str) -> bool:
    """Return whether a dotted name in Ray is none that its makers publish."""
    is_inner = any(module == name or module.startswith(name + ".") for name in NOT_PUBLISHED)
    return is_inner or any(PRIVATE_NAME.fullmatch(part) for part in module.split(".")[1:])


def of_ray(name: str) -> bool:
    return name == "ray" or name.startswith("ray.")


def bound(file: SourceFile) -> Iterator[tuple[str, str]]:
    """Yield each name that an import of the file binds, with the full name of what it stands for."""
    for plain in file.of_kind(ast.Import):
        for alias in plain.names:
            yield alias.asname or alias.name.partition(".")[0], alias.name
    for node in file.of_kind(ast.ImportFrom):
        if node.level == 0 and node.module:
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def names_defined(file: SourceFile) -> set[str]:
    """Return the names beginning with an underscore that a file gives to something: they are its own, not Ray's."""
    found: set[str] = set()
    for node in [*file.classes(), *file.functions(), *file.of_kind(ast.arg), *file.of_kind(ast.Attribute, ast.Name)]:
        match node:
            case (
                ast.FunctionDef(name=name)
                | ast.AsyncFunctionDef(name=name)
                | ast.ClassDef(name=name)
                | ast.arg(arg=name)
            ):
                found.add(name)
            case ast.Attribute(attr=name, ctx=ast.Store()) | ast.Name(id=name, ctx=ast.Store()):
                found.add(name)
    return {name for name in found if name.startswith("_")}


@cache
def own_names() -> frozenset[str]:
    found: set[str] = set()
    for file in others():
        found |= names_defined(file)
    return frozenset(found)


def private_uses(file: SourceFile, own: frozenset[str]) -> list[str]:
    """Return where a file uses what Ray does not publish: imports, attributes, keywords, and names in strings.

    Args:
        own: names with an underscore that are ours; another one in a file that imports Ray is taken for Ray's.
    """
    found = [f"imports {name}" for name in sorted(file.imports()) if of_ray(name) and is_private(name)]
    uses_ray = any(of_ray(name) for name in file.imports())
    texts = {id(statement.value) for statement in file.of_kind(ast.Expr)}  # docstrings
    names: list[ast.AST] = [*file.of_kind(ast.Attribute, ast.keyword)] if uses_ray else []
    for node in [*file.of_kind(ast.Constant), *names]:
        match node:
            case ast.Constant(value=str(text)) if MODULE.fullmatch(text) and is_private(text) and id(node) not in texts:
                found.append(f"{node.lineno}: {text!r}")
            case ast.Constant(value=str(name)) | ast.Attribute(attr=name) | ast.keyword(arg=str(name)) if uses_ray:
                if PRIVATE_NAME.fullmatch(name) and name not in own | PUBLIC:
                    found.append(f"{node.lineno}: {name}")
    return found


def patches(file: SourceFile) -> list[str]:
    """Return where a file replaces a name in a module that is not its own, or looks at the frames of its callers."""
    modules = {name for name, target in bound(file) if not target.startswith("heliograph")}
    found = []
    for node in file.nodes:
        match node:
            case ast.Attribute(value=ast.Name(id=name), ctx=ast.Store() | ast.Del()) if name in modules:
                if ast.unparse(node) not in REPLACEABLE:
                    found.append(f"{node.lineno}: {ast.unparse(node)} is replaced")
            case ast.Call(func=ast.Name(id="setattr" | "vars" | "delattr"), args=[ast.Name(id=name), *_]) if (
                name in modules
            ):
                found.append(f"{node.lineno}: {ast.unparse(node)}")
            case ast.Attribute(attr="_getframe"):
                found.append(f"{node.lineno}: {ast.unparse(node)}")
    return found


def others() -> list[SourceFile]:
    files = [*product_files(), *example_files(), *files_below("tools", ".py")]
    return [file for file in files if not file.name.startswith(FOLDER)]


@for_each(others)
def test_no_private_name_of_ray_is_used_outside_one_folder(file: SourceFile) -> None:
    found = private_uses(file, own_names())
    assert not found, f"{file.name} uses what Ray does not publish, which only {FOLDER} may: {found}"


@for_each(others)
def test_no_module_of_others_is_patched(file: SourceFile) -> None:
    found = patches(file)
    assert not found, f"{file.name}: {found}"


@for_each(product_files)
def test_the_name_ray_is_rays(file: SourceFile) -> None:
    """``from heliograph import ray`` would give the name of Ray to our own folder."""
    wrong = [target for name, target in bound(file) if name == "ray" and not of_ray(target)]
    assert not wrong or wrong == ["ray.util.client.ray"], f"{file.name} binds the name ray to {wrong}"


@pytest.mark.parametrize(
    "line",
    [
        "import ray._private.worker",
        "import ray.dashboard.head as head",
        "from ray import _raylet",
        "from ray.scripts import scripts",
        "from ray.core.generated import gcs_pb2",
        "from ray.autoscaler._private import monitor",
        "from ray.experimental.internal_kv import _internal_kv_get",
        "head = import_module('ray.dashboard.head')",
        "command = ['python', '-m', 'ray.scripts.scripts']",
        "import ray\nray._private.worker.get_dashboard_url()",
        "import ray\nray.init(_node_ip_address='10.0.0.1')",
        "import ray\nray.init(**{'_node_ip_address': '10.0.0.1'})",
        "import ray\nray.get_actor('a')._actor_id.hex()",
        "import ray\ngetattr(ray.get_actor('a'), '_actor_id')",
        "from ray.experimental import internal_kv\ninternal_kv._internal_kv_get(b'')",
        "def f():\n    import ray\n    return ray.util._private",
    ],
)
def test_the_rule_sees_a_private_name(line: str) -> None:
    assert private_uses(SourceFile("heliograph/a.py", line), frozenset({"_own"}))


@pytest.mark.parametrize(
    "line",
    [
        '"""Says why ``ray._private`` is not used."""',
        "import ray\nray.init(address='auto', log_to_driver=False)  # not ray._private",
        "import ray\nray.get(actor)._own",
        "import ray\nos._exit(1)",
        "import ray\nray.__version__",
        "from ray.util.client import ray as client",
        "made._actor_id",
    ],
)
def test_the_rule_lets_public_names_pass(line: str) -> None:
    assert not private_uses(SourceFile("heliograph/a.py", line), frozenset({"_own"}))


@pytest.mark.parametrize(
    "line",
    [
        "import time\ntime.sleep = rest",
        "import time\nvars(time)['sleep'] = rest",
        "from ray import node\nnode.Node = Own",
        "from ray.util import state\nsetattr(state, 'x', 1)",
        "import sys\nsys._getframe(1)",
    ],
)
def test_the_rule_sees_a_patch(line: str) -> None:
    assert patches(SourceFile("heliograph/a.py", line))


def test_the_folder_is_needed_and_no_name_of_ours_hides_one_of_its_names() -> None:
    for file in files_below(FOLDER.rstrip("/"), ".py"):
        own = frozenset(names_defined(file))
        found = private_uses(file, own)
        assert bool(found) is not file.is_package
        assert found == private_uses(file, own | own_names())
