"""Every help text has examples, and each is a command line that its command takes."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from heliograph.cli.app import app
from heliograph.cli.examples import EXAMPLES, OF_ALL, examples_of
from tests.unit.cli.test_commands import root


def paths(command: Any, path: str = "") -> Iterator[tuple[str, bool]]:
    """Yield the path of a command and of all below it, and whether it is a group."""
    children = getattr(command, "commands", {})
    yield path, bool(children)
    for name, child in children.items():
        if not child.hidden:
            yield from paths(child, f"{path} {name}".strip())


ROOT = root()
ALL = dict(paths(ROOT))


def command_at(path: str) -> Any:
    command = ROOT
    for name in path.split():
        command = command.commands[name]
    return command


def arguments_of(line: str) -> list[str]:
    """Return the arguments that a line of a shell gives to `helio`."""
    words = shlex.split(line)
    words = words[words.index("helio") + 1 :]
    return words[: min((words.index(end) for end in ("|", "<", ">") if end in words), default=len(words))]


@pytest.mark.parametrize("path", ALL)
def test_every_help_text_shows_its_examples(path: str) -> None:
    command = command_at(path)
    shown = command.get_help(typer.Context(command, info_name="helio"))
    assert examples_of(path), f"heliograph/cli/examples.py has none of `helio {path}`"
    for line in examples_of(path):
        assert f"\n  {line}\n" in f"{shown}\n"


@pytest.mark.parametrize(("path", "line"), [(path, line) for path in EXAMPLES for line in EXAMPLES[path]])
def test_an_example_is_taken_by_the_command_whose_it_is(path: str, line: str) -> None:
    assert ALL.get(path) is False, f"there is no command `helio {path}`"
    words = arguments_of(line)
    assert words[: len(path.split())] == path.split()
    command = command_at(path)
    with command.make_context(path, words[len(path.split()) :]) as context:
        command.parse_args(context, words[len(path.split()) :])


@pytest.mark.parametrize("line", OF_ALL)
def test_the_first_examples_are_commands(line: str) -> None:
    assert ALL.get(arguments_of(line)[0]) is False


def test_an_example_that_its_command_does_not_take_is_noticed() -> None:
    with pytest.raises(Exception, match="No such option"):
        command_at("topics create").make_context(
            "topics create", arguments_of("helio topics create orders --parts 4")[2:]
        )


def test_the_older_name_shows_the_examples_of_the_newer_one() -> None:
    shown = CliRunner().invoke(app, ["bookie", "move", "--help"]).output
    assert "\n  helio bookies move bookie-2 --to /disk2/heliograph\n" in shown
