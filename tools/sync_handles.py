"""The generator of the sync handles: ``make handles`` reads the async classes and writes their sync twins.

A method whose body uses only what the sync class has, too, is copied without ``await``. Every other public method
becomes a call that runs the async method on the loop thread and waits for its result. What differs for a reason is
written by hand in ``heliograph/client/sync/handle.py``. ``tests/rules/test_sync_twin.py`` compares the files with what
this generator makes. It needs ruff, which formats the result.
"""

from __future__ import annotations

import ast
import copy
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

PACKAGE = Path(__file__).resolve().parents[1] / "heliograph"
ASYNC_NAME = re.compile(r"\bAsync(Client|Consumer|Producer|Reader|TableView|Topic)\b")
RENAMED = {"__aiter__": "__iter__", "__anext__": "__next__", "AsyncIterator": "Iterator"}
RENAMED |= {"StopAsyncIteration": "StopIteration"}
OPENED_ON_RETURN = {"Consumer", "Reader", "TableView"}  # the client returns them subscribed
OPERATORS = {"__repr__", "__getitem__", "__contains__", "__len__", "__iter__"}
HANDLE_MEMBERS = {"open", "close", "client", "options"}  # what every handle has
SHARED_BY_THREADS = "Threads may share it. In a forked child it opens connections of its own."

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Twin:
    """One sync class and what it is made from.

    Attributes:
        name: Name of the sync class; its module is the same in small letters, with underscores between words.
        sources: Modules below ``heliograph/client/aio`` with the async class and the bases whose members count.
        base: The hand-written base, or bases, with parameters, that of the class last; empty copies ``__init__``, too.
        left_out: Public members that the sync class does not have.
        by_hand: Public members that its hand-written base has.
        started: Methods that get a second twin, which does not wait: its name and its docstring.
        rewords: Pairs of texts that differ in the docstrings; each must occur.
    """

    name: str
    sources: tuple[str, ...]
    base: str = ""
    left_out: frozenset[str] = frozenset()
    by_hand: frozenset[str] = frozenset()
    started: dict[str, tuple[str, str]] = field(default_factory=dict)
    rewords: tuple[tuple[str, str], ...] = ()


SEND_ASYNC = """Publish one message without waiting, and return the future of its id.

        Arguments and errors are those of ``send``; the future raises the errors. Calls of one thread keep their order.
        Nothing but the caller bounds the number of calls in flight.
        """
SEND_MANY_ASYNC = """Publish many messages without waiting, and return the future of their ids.

        Arguments and errors are those of ``send_many``; the future raises the errors. Calls of one thread keep their
        order, once the producer is open. Nothing but the caller bounds the number of calls in flight.
        """
UNACCEPTABLE = "A name or option is not acceptable."
OPENING_ERRORS = "TopicNotFoundError, ConnectionLostError, ...: The opening errors"
LAZY = "It opens when it is awaited, or else at its first use."
TWINS = (
    Twin(
        "Client",
        ("client",),
        "ClientHandle",
        left_out=frozenset({"session", "adopt", "release", "__repr__"}),
        by_hand=frozenset({"admin", "respond", "stream_request"}),
        rewords=(
            ("for one event loop of one process", "for all threads of one process"),
            ("\n        random: Source of jitter and of starting points; only tests pass one.", ""),
            (
                f"Return a producer. {LAZY}",
                "Return a producer. It opens at its first use or on entering a ``with`` block.",
            ),
            ("It subscribes when it is awaited, or else at its first use.", "It is subscribed when the call returns."),
            (LAZY, "It is open when the call returns."),
            ("It opens when it is awaited.", "It is open when the call returns."),
            (
                f"BadRequestError: {UNACCEPTABLE}",
                f"BadRequestError: {UNACCEPTABLE}\n            {OPENING_ERRORS} of ``Consumer``.",
            ),
            ("A name, id or option is not acceptable.", f"{UNACCEPTABLE}\n            {OPENING_ERRORS} of ``Reader``."),
        ),
    ),
    Twin(
        "Producer",
        ("producer.producer",),
        "TopicHandle[AsyncProducer[Sent], ProducerOptions], Generic[Sent]",
        left_out=frozenset({"enqueue", "pending_messages"}),
        started={"send": ("send_async", SEND_ASYNC), "send_many": ("send_many_async", SEND_MANY_ASYNC)},
        rewords=(("reach their own callers", "reach the callers and the futures of ``send_async``"),),
    ),
    Twin("Consumer", ("consumer.consumer",), "ReceivingHandle[AsyncConsumer[Received]], Generic[Received]"),
    Twin(
        "Reader",
        ("consumer.reader", "consumer.consumer"),
        "ReceivingHandle[AsyncReader[Received]], Generic[Received]",
        left_out=frozenset(
            (
                "ack",
                "ack_cumulative",
                "ack_many",
                "has_reached_end",
                "last_message_ids",
                "nack",
                "reconsume_later",
                "subscription",
                "topics",
                "unsubscribe",
            )
        ),
        rewords=(
            (
                "Move the subscription; acknowledging a message that was received before has no effect any more.",
                "Move the reader.",
            ),
            ("The consumer was closed.", "The reader was closed."),
        ),
    ),
    Twin(
        "TableView",
        ("table_view",),
        "TableViewHandle[Received]",
        by_hand=frozenset({"updates"}),
    ),
    Twin("Topic", ("topic",)),
)


def generate(twin: Twin) -> str:
    """Return the formatted text of the twin's module."""
    trees = [ast.parse(_path("aio." + module).read_text()) for module in twin.sources]
    classes = [next(each for each in tree.body if isinstance(each, ast.ClassDef)) for tree in trees]
    body = [_Renamed().visit(member) for member in _members(twin, classes)]
    if twin.name == "Client":
        _open_on_return(body)
    parsed = ast.parse(f"({twin.base},)" if twin.base else "()", mode="eval").body
    assert isinstance(parsed, ast.Tuple), "that is how it was written"
    made = ast.fix_missing_locations(
        ast.ClassDef(twin.name, parsed.elts, [], [copy.deepcopy(classes[0].body[0]), *body], [])
    )
    _adapt_docstrings(made, twin)
    if twin.base not in ("", "ClientHandle"):
        made.body.append(_make_method(classes[0].name, twin.base))
    return formatted(f"{_head(twin, made, trees)}\n\n\n{ast.unparse(made)}\n")


def _module_of(twin: Twin) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", twin.name).lower()


def _path(module: str) -> Path:
    return (PACKAGE / "client").joinpath(*module.split(".")).with_suffix(".py")


# -- members


def _members(twin: Twin, classes: list[ast.ClassDef]) -> Iterator[Function]:
    """Yield the members of the sync class, still with the names of the async one."""
    found: dict[str, Function] = {}
    for node in (node for each in classes for node in each.body):
        if isinstance(node, Function) and node.name not in twin.left_out | twin.by_hand and _is_public(node.name, twin):
            found.setdefault(node.name, node)
    own = {*found, *HANDLE_MEMBERS, *({"name"} if not twin.base else ())}
    for name, member in found.items():
        yield _copied(member) if _uses(member) <= own else _delegated(member, "_run")
        if name in twin.started:
            started = _delegated(member, "_start")
            started.name, text = twin.started[name]
            assert started.returns is not None, "a public method has a return type"
            started.returns = ast.parse(f"Future[{ast.unparse(started.returns)}]", mode="eval").body
            started.body[0] = ast.Expr(ast.Constant(text))
            yield started


def _is_public(name: str, twin: Twin) -> bool:
    return not name.startswith("_") or name in RENAMED or name in OPERATORS or (name == "__init__" and not twin.base)


def _uses(member: Function) -> set[str]:
    """Return the attributes of ``self`` that the member's body reads; ``__init__`` only sets some."""
    return {
        node.attr
        for node in ast.walk(member)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"
    }


class _WithoutAwait(ast.NodeTransformer):
    def visit_Await(self, node: ast.Await) -> ast.expr:
        value: ast.expr = self.visit(node.value)
        return value


def _sync(member: Function, body: list[ast.stmt]) -> ast.FunctionDef:
    decorators = [each for each in member.decorator_list if ast.unparse(each) != "override"]
    return ast.FunctionDef(member.name, copy.deepcopy(member.args), body, decorators, copy.deepcopy(member.returns))


def _copied(member: Function) -> ast.FunctionDef:
    return _sync(member, [_WithoutAwait().visit(copy.deepcopy(statement)) for statement in member.body])


def _delegated(member: Function, runner: str) -> ast.FunctionDef:
    """Return the member as a call of the async one; coroutines go through ``runner``."""
    call = f"self._async().{member.name}"
    if not any(ast.unparse(each) == "property" for each in member.decorator_list):
        call += f"({', '.join(_arguments(member.args))})"
    if isinstance(member, ast.AsyncFunctionDef):
        call = f"self.{runner}({call})"
    is_void = runner == "_run" and member.returns is not None and ast.unparse(member.returns) == "None"
    statement = ast.parse(call if is_void else f"return {call}").body[0]
    return _sync(member, [copy.deepcopy(member.body[0]), statement])


def _arguments(signature: ast.arguments) -> Iterator[str]:
    for each in signature.args[1:]:
        # An iterable may block, which must not happen on the loop thread.
        is_lazy = each.annotation is not None and ast.unparse(each.annotation).startswith("Iterable[")
        yield f"list({each.arg})" if is_lazy else each.arg
    yield from (f"{each.arg}={each.arg}" for each in signature.kwonlyargs)
    if signature.kwarg is not None:
        yield f"**{signature.kwarg.arg}"


def _make_method(async_name: str, base: str) -> ast.stmt:
    values = base[base.rindex("[") :]  # the parameter of the class stands last
    text = (
        f"@override\ndef _make(self) -> {async_name}{values}:\n    return {async_name}(self.client.aio(), self.options)"
    )
    return ast.parse(text).body[0]


class _Renamed(ast.NodeTransformer):
    """Gives everything of the async side its sync name."""

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.copy_location(ast.Name(_sync_name(node.id), node.ctx), node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        self.generic_visit(node)
        node.name = RENAMED.get(node.name, node.name)
        return node


def _sync_name(name: str) -> str:
    return RENAMED.get(name) or ASYNC_NAME.sub(r"\1", name)


def _open_on_return(body: list[ast.FunctionDef]) -> None:
    """Have the client return what subscribes opened, so that the errors of opening reach the caller at once."""
    for member in body:
        last = member.body[-1]
        if member.returns is not None and ast.unparse(member.returns).partition("[")[0] in OPENED_ON_RETURN:
            assert isinstance(last, ast.Return), "such a method ends by returning the handle"
            assert last.value is not None, "such a method ends by returning the handle"
            last.value = ast.parse(f"({ast.unparse(last.value)}).open()", mode="eval").body


# -- docstrings, imports, text


def _adapt_docstrings(made: ast.ClassDef, twin: Twin) -> None:
    used: set[str] = set()

    def adapted(text: str) -> str:
        for old, new in twin.rewords:
            if old in text:
                used.add(old)
                text = text.replace(old, new)
        text = ASYNC_NAME.sub(r"\1", text)
        assert not re.search("await|async ", text), f"{twin.name} needs other words: {text}"
        return text

    for node in ast.walk(made):
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and isinstance(first := node.body[0], ast.Expr):
            assert isinstance(first.value, ast.Constant), "the first expression of a body is its docstring"
            first.value.value = adapted(str(first.value.value))
    assert used == {old for old, _ in twin.rewords}, f"{twin.name}: texts to replace are not there any more"
    head = made.body[0]
    assert isinstance(head, ast.Expr), "a class begins with its docstring"
    assert isinstance(head.value, ast.Constant), "a class begins with its docstring"
    if twin.base:
        summary, _, rest = str(head.value.value).rstrip().partition("\n\n")
        head.value.value = f"{summary}\n\n    {SHARED_BY_THREADS}\n\n{rest}\n    "


def _head(twin: Twin, made: ast.ClassDef, trees: list[ast.Module]) -> str:
    """Return the module's docstring and the imports of the names that the class uses."""
    homes = homes_of(trees)
    at_run_time = {node.id for node in _without_annotations(made) if isinstance(node, ast.Name)}
    names = {node.id for node in ast.walk(made) if isinstance(node, ast.Name)} & homes.keys() - {twin.name}
    only_typed = {name for name in names - at_run_time if homes[name].startswith("heliograph.client.sync.")}
    if only_typed:
        names.add("TYPE_CHECKING")
    source = f"heliograph/client/aio/{twin.sources[0].replace('.', '/')}.py"
    noun = _module_of(twin).replace("_", " ")
    lines = [
        f'"""The sync {noun}; ``make handles`` generates this file from ``{source}``."""\n',
        "from __future__ import annotations\n",
        *imports_of(
            homes, {name for name in names - only_typed if not homes[name].startswith(("heliograph", "typing_"))}
        ),
        *(["", "from typing_extensions import override"] if "override" in names else []),
        "",
        *imports_of(homes, {name for name in names - only_typed if homes[name].startswith("heliograph")}),
    ]
    if only_typed:
        lines += ["", "if TYPE_CHECKING:", *(f"    {line}" for line in imports_of(homes, only_typed))]
    return "\n".join(lines)


def homes_of(trees: list[ast.Module]) -> dict[str, str]:
    """Return for each name that may be used the module to import it from; ``module:name`` for an alias."""
    homes = {"TYPE_CHECKING": "typing", "Future": "concurrent.futures", "override": "typing_extensions"}
    homes |= {"Iterator": "collections.abc"}
    for node in (node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)):
        for alias in node.names:
            homes[alias.asname or alias.name] = f"{node.module}:{alias.name}" if alias.asname else str(node.module)
    homes |= {f"Async{twin.name}": f"heliograph.client.aio.{twin.sources[0]}" for twin in TWINS}
    homes |= {twin.name: f"heliograph.client.sync.{_module_of(twin)}" for twin in TWINS}
    bases = {node.id for twin in TWINS for node in ast.walk(ast.parse(twin.base)) if isinstance(node, ast.Name)}
    homes |= {name: "heliograph.client.sync.handle" for name in bases if name.endswith("Handle")}
    return homes


def _without_annotations(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    for name, value in ast.iter_fields(node):
        if name not in ("annotation", "returns"):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from _without_annotations(child)


def imports_of(homes: dict[str, str], names: set[str]) -> list[str]:
    """Return the statements that import the names from where ``homes`` says they are."""
    modules: dict[str, list[str]] = {}
    for name in names:
        module, _, original = homes[name].partition(":")
        modules.setdefault(module, []).append(f"{original} as {name}" if original else name)
    return [
        f"from {module} import {', '.join(sorted(found, key=lambda name: (not name.isupper(), name)))}"
        for module, found in sorted(modules.items())
    ]


def formatted(text: str, name: str = "handle.py") -> str:
    """Return the text of a file of that name as ruff formats it."""
    command = [sys.executable, "-m", "ruff", "format", "--no-cache", "--config", str(PACKAGE.parent / "pyproject.toml")]
    ran = subprocess.run(
        [*command, "--stdin-filename", name, "-"], input=text, capture_output=True, text=True, check=True, timeout=60
    )
    return ran.stdout


def files() -> dict[Path, str]:
    """Return the text of every generated file."""
    return {_path("sync." + _module_of(twin)): generate(twin) for twin in TWINS}


if __name__ == "__main__":
    for path, text in files().items():
        path.write_text(text)
