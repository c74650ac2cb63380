"""The generator of ``heliograph/client/admin/blocking.pyi``: the signatures of the blocking administration.

``make handles`` writes it from the classes of ``heliograph/operations``. The methods themselves are made at run time.
"""

from __future__ import annotations

import ast
import inspect
import sys
from pathlib import Path

from heliograph.operations.admin import GROUPS
from heliograph.operations.table import OperationGroup, operation_of
from heliograph.operations.topics import TopicOperations
from tools.sync_handles import PACKAGE, formatted, homes_of, imports_of

STUB = PACKAGE / "client" / "admin" / "blocking.pyi"
_HEAD = """# `make handles` generates this file from heliograph/operations.

"""
_TAIL = """
FORMS: dict[str, type]

class RunBlocking(Protocol):
    def __call__(self, work: Coroutine[Any, Any, T], /) -> T: ...

def run_blocking(work: Coroutine[Any, Any, T]) -> T: ...
"""


def stub() -> str:
    """Return the text of the stub."""
    trees = [ast.parse(inspect.getsource(sys.modules[group.__module__])) for group in _groups()]
    classes = [_form(f"{name.capitalize()}Sync", group) for name, group in GROUPS.items()]
    whole = _form("BlockingAdmin", TopicOperations)
    whole.body[:0] = ast.parse(
        "".join(f"{name}: {name.capitalize()}Sync\n" for name in GROUPS)
        + "def __init__(self, admin: AdminOperations, run: RunBlocking = ...) -> None: ...\n"
        + "def topic_pages(self, namespace: str = ..., prefix: str = ..., domain: str = ..., after: str = ...,"
        + " limit: int = ...) -> Iterator[list[Answer]]: ..."
    ).body
    classes.append(whole)
    homes = homes_of(trees) | {
        "AdminOperations": "heliograph.operations.admin",
        **dict.fromkeys(("Any", "Protocol", "TypeVar"), "typing"),
        **dict.fromkeys(("Coroutine", "Iterator"), "collections.abc"),
    }
    used = {node.id for each in classes for node in ast.walk(each) if isinstance(node, ast.Name)}
    homes |= {name: group.__module__ for group in _groups() for name in _own_names(group) & used}
    names = used & homes.keys() | {"Any", "Protocol", "TypeVar", "Coroutine"}
    ours = {name for name in names if homes[name].startswith("heliograph")}
    imports = [*imports_of(homes, names - ours), "", *imports_of(homes, ours)]
    text = "\n".join([*imports, "", 'T = TypeVar("T")', "", *map(ast.unparse, classes), _TAIL])
    return formatted(_HEAD + text, STUB.name)


def files() -> dict[Path, str]:
    """Return the text of every generated file."""
    return {STUB: stub()}


def _groups() -> list[type[OperationGroup]]:
    return [*GROUPS.values(), TopicOperations]


def _own_names(group: type[OperationGroup]) -> set[str]:
    """Return the names that the module of a group assigns."""
    tree = ast.parse(inspect.getsource(sys.modules[group.__module__]))
    return {
        each.id
        for node in tree.body
        if isinstance(node, ast.Assign)
        for each in node.targets
        if isinstance(each, ast.Name)
    }


def _form(name: str, group: type[OperationGroup]) -> ast.ClassDef:
    tree = ast.parse(inspect.getsource(group)).body[0]
    assert isinstance(tree, ast.ClassDef), "a group is a class"
    body: list[ast.stmt] = []
    for member in tree.body:
        if isinstance(member, ast.AsyncFunctionDef) and operation_of(getattr(group, member.name)) is not None:
            method = ast.FunctionDef(member.name, member.args, [ast.Expr(ast.Constant(...))], [], member.returns)
            body.append(ast.fix_missing_locations(method))
    return ast.ClassDef(name, [], [], body, [])


if __name__ == "__main__":
    for path, text in files().items():
        path.write_text(text)
