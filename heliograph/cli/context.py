"""The context of a command, and the decorator that makes one of the options that all commands share."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, get_type_hints

import typer

from heliograph.cli.figures import rows_for_people
from heliograph.cli.options import Home, Json, Namespace, Target, admin_of, given
from heliograph.cli.output import Output

if TYPE_CHECKING:
    from heliograph.client.admin.admin import AdminSync

P = ParamSpec("P")


class CommandContext:
    """First argument of every ``@command``: the cluster that its options name, and its output."""

    def __init__(self, namespace: str | None, home: Path | None, as_json: bool) -> None:
        self._namespace = namespace
        self._home = home
        self.output = Output(as_json)

    @functools.cached_property
    def target(self) -> Target:
        """The cluster on which the command works."""
        return Target.of(self._namespace, self._home)

    @property
    def home(self) -> Path:
        """The directory in which this machine records the cluster."""
        return self.target.home

    @property
    def namespace(self) -> str:
        """The Ray namespace of the cluster."""
        return self.target.namespace

    @property
    def location(self) -> dict[str, Any]:
        """The options that name the cluster, as arguments of its configuration."""
        return given(namespace=self._namespace, home=self.home)

    @property
    def named(self) -> dict[str, Any]:
        """The options that name the cluster, as far as they were given."""
        return given(namespace=self._namespace, home=self._home)

    @functools.cached_property
    def admin(self) -> AdminSync:
        """The administration of the cluster, which the first use joins.

        Raises:
            ClusterNotFoundError: there is none.
        """
        return admin_of(self._namespace, self._home)

    def report(self, result: Mapping[str, Any], *lines: str) -> None:
        """Print the result for programs, or the lines for people."""
        self.output.result(result)
        for line in lines[:1]:
            self.output.done(line)
        for line in lines[1:]:
            self.output.progress(line)

    def show(
        self, result: Mapping[str, Any], columns: Sequence[str], rows: Sequence[Sequence[Any]], title: str = ""
    ) -> None:
        """Print the result for programs, or a table for people."""
        self.output.result(result)
        self.output.table(title, columns, rows_for_people(columns, rows))


def group(summary: str) -> typer.Typer:
    """Return a group of commands; alone, it prints its help."""
    return typer.Typer(help=summary, no_args_is_help=True, rich_markup_mode=None)


def command(
    app: typer.Typer, name: str | None = None
) -> Callable[[Callable[Concatenate[CommandContext, P], None]], Callable[Concatenate[CommandContext, P], None]]:
    """Add a function to ``app`` as a command. It gets a CommandContext made of --home, --namespace and --json."""

    def add(run: Callable[Concatenate[CommandContext, P], None]) -> Callable[Concatenate[CommandContext, P], None]:
        app.command(name or run.__name__.replace("_", "-"))(single_command(run))
        return run

    return add


def single_command(run: Callable[Concatenate[CommandContext, P], None]) -> Callable[..., None]:
    """Make a function a command of no group. It gets a CommandContext made of --home, --namespace and --json."""
    hints = get_type_hints(run, include_extras=True)
    _, *own = inspect.signature(run).parameters.values()
    parameters = [parameter.replace(annotation=hints[parameter.name]) for parameter in own]
    return as_command(run, parameters, run.__doc__ or "")


def as_command(run: Callable[..., None], parameters: Sequence[inspect.Parameter], told: str) -> Callable[..., None]:
    """Return a function as a command with the parameters that typer reads, and the options of all commands."""

    def start(home: Home = None, namespace: Namespace = None, as_json: Json = False, **options: Any) -> None:
        run(CommandContext(namespace, home, as_json), **options)

    shared = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for parameter in inspect.signature(start, eval_str=True).parameters.values()
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD
    ]
    start.__doc__ = told
    start.__signature__ = inspect.Signature([*parameters, *shared])  # type: ignore[attr-defined]
    start.__annotations__ = {parameter.name: parameter.annotation for parameter in (*parameters, *shared)}
    return start
