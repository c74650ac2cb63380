"""The group of all commands: their names and summaries. Only the module of the command that runs is imported."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command, get_group

PATHS_MAX = 3  # that a mistake is told of: a word of many groups, such as `list`, says nothing


@dataclass(frozen=True, slots=True)
class CommandEntry:
    """A command, or a group of commands, as ``helio --help`` lists it.

    Attributes:
        name: The word after ``helio``.
        home: ``module:attribute`` of its function or its ``typer.Typer``.
        summary: The first sentence of its own help.
        older_name_of: The command that it is an older name of: it goes on working, and the list leaves it out.
    """

    name: str
    home: str
    summary: str
    older_name_of: str = ""

    @property
    def is_hidden(self) -> bool:
        """Whether the list of all commands leaves it out."""
        return bool(self.older_name_of)


@dataclass(frozen=True, slots=True)
class CommandPurpose:
    """The purpose that a group of commands has in common, and the commands."""

    title: str
    entries: tuple[CommandEntry, ...]


class LazyGroup(TyperGroup):
    """A group whose commands are imported when one of them runs or completes: help and completion import none."""

    purposes: Sequence[CommandPurpose] = ()  # of a subclass

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for entry in self._entries():
            self.commands[entry.name] = TyperCommand(entry.name, help=entry.summary, hidden=entry.is_hidden)

    @classmethod
    def _entries(cls) -> Iterable[CommandEntry]:
        return (entry for purpose in cls.purposes for entry in purpose.entries)

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the options of all commands, with those for completion, which Typer adds late."""
        return _quick(super().get_params, ctx)

    def load(self, name: str) -> None:
        """Import a command; unknown names are ignored."""
        for entry in self._entries():
            if entry.name == name:
                self.commands[name] = _loaded(entry)

    def load_all(self) -> None:
        """Import every command."""
        for entry in self._entries():
            self.load(entry.name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Import the command that the arguments name, and return it with the arguments that are its own."""
        self.load(args[0])
        if args[0] not in self.commands:
            self.load_all()
            if 0 < len(found := [path for path in _paths(self.commands) if path.endswith(f" {args[0]}")]) <= PATHS_MAX:
                ctx.fail(f"No such command '{args[0]}'. Did you mean {', '.join(map(repr, found))}?")
        return super().resolve_command(ctx, args)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write examples."""
        _write_examples("", ctx, formatter)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list of commands, by purpose."""
        width = max(len(entry.name) for entry in self._entries())
        for purpose in self.purposes:
            shown = [entry for entry in purpose.entries if not entry.is_hidden]
            with formatter.section(purpose.title):
                formatter.write_dl([(entry.name.ljust(width), entry.summary.rstrip(".")) for entry in shown])


def _paths(commands: Mapping[str, Any]) -> Iterator[str]:
    """Yield the words of each command and of each group, such as ``bookies racks list``."""
    for name, command in commands.items():
        if not command.hidden:
            yield name
            yield from (f"{name} {path}" for path in _paths(getattr(command, "commands", {})))


def _loaded(entry: CommandEntry) -> Any:
    module, _, attribute = entry.home.partition(":")
    found = getattr(import_module(module), attribute)
    if isinstance(found, typer.Typer):
        loaded: Any = get_group(found)
    else:
        alone = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
        alone.command(entry.name)(found)
        loaded = get_command(alone)
    loaded.name, loaded.hidden = entry.name, entry.is_hidden
    _complete(loaded, entry.older_name_of or entry.name)
    return loaded


def _complete(command: Any, path: str) -> None:
    """Have a command, and all below it, convert less and show its examples."""
    command.get_params = partial(_quick, command.get_params)
    command.format_epilog = partial(_write_examples, path)
    for name, child in getattr(command, "commands", {}).items():
        _complete(child, f"{path} {name}")


def _write_examples(path: str, _: Any, formatter: Any) -> None:
    from heliograph.cli.examples import examples_of

    if found := examples_of(path):
        with formatter.section("Examples"):
            formatter.write("".join(f"  {line}\n" for line in found))


def _quick(get_params: Callable[[Any], list[Any]], context: Any) -> list[Any]:
    """Return the parameters of a command, which convert no value that has its type already or was not given.

    Typer's converter imports pydantic, which takes longer than most commands: completion of a name needs none of it.
    """
    found = get_params(context)
    for parameter in found:
        if not isinstance(parameter.process_value, partial):
            parameter.process_value = partial(_processed, parameter, parameter.process_value)
    return found


def _processed(parameter: Any, process: Callable[[Any, Any], Any], context: Any, value: Any) -> Any:
    is_missing = value is None and (context.resilient_parsing or not parameter.required)
    is_text = getattr(getattr(parameter, "type_descriptor", None), "annotation", None) in (str, str | None)
    is_default = value is not None and value is parameter.default
    if not (is_missing or is_default or (is_text and isinstance(value, str))):
        return process(context, value)
    if is_missing and (parameter.multiple or parameter.nargs == -1):
        value = ()
    return value if parameter.callback is None else parameter.callback(context, parameter, value)
