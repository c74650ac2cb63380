"""The command line without a cluster: usage, exit codes, one-line errors, nothing but JSON on standard output."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from heliograph.base.errors import ClusterNotFoundError, InvalidConfigError
from heliograph.base.version import heliograph_version
from heliograph.cli.app import app
from heliograph.cli.output import Output
from tests.unit.cli.answers.forked import ForkedCommands

TERMINAL_COLUMNS = 80


IMPATIENT = """
from functools import partial
from heliograph.client import access
access.connect_async = partial(access.connect_async, operation_timeout_ms=1_000)
"""


Helio = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def forked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkedCommands]:
    with ForkedCommands(tmp_path_factory.mktemp("streams")) as commands:
        yield commands


@pytest.fixture
def helio(forked: ForkedCommands, tmp_path: Path) -> Helio:
    """Return what runs a command in an empty home."""
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "HELIOGRAPH_STATE_ROOT": str(tmp_path / "state")}
    return partial(forked.run, environment=environment)


@pytest.mark.slow
def test_help_lists_the_commands(tmp_path: Path) -> None:
    program = "from heliograph.cli import main; main()"
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    shown = subprocess.run(
        [sys.executable, "-c", program, "--help"], capture_output=True, text=True, env=environment, check=False
    )
    assert shown.returncode == 0
    for command in ("up", "down", "status", "logs", "doctor", "topics", "produce", "consume", "perf"):
        assert f"\n  {command} " in shown.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("launch",), "No such command"),
        (("topics", "create"), "Missing argument"),
        (("perf", "produce", "--messages", "0"), "--messages"),
        (("consume", "t", "--type", "odd"), "--type"),
        (("subscriptions", "skip", "t", "s", "--count", "1", "--older-than", "2"), "not both"),
        (("metadata", "serve"), "--url"),
        (("metadata", "serve", "--url", "nothing://here"), "nothing://here"),
        (("metadata", "serve", "--url", "zk://a/b", "--host", "0.0.0.0"), "--insecure"),
        (("metadata", "serve", "--url", "zk://a/b", "--tls"), "tls_certificate_file"),
        (("up", "--bookies", "2"), "2 bookies cannot hold an ensemble of 3"),
        (("up", "--ack-quorum", "4"), "ack quorum 4"),
        (("up", "--gateway-port", "6650"), "gateway_port and broker_port are both 6650"),
        (("topics", "create", "t", "--ack-quorum", "2"), "together"),
        (("up", "--host", "192.0.2.200", "--insecure"), "choose another with --host"),
        (("produce", "t", "m", "--key", "k", "--key-separator", ":"), "not both"),
        (("produce", "t", "m", "--property", "novalue", "--address", "pulsar://127.0.0.1:1"), "name=value"),
        (("consume", "t", "--address", "http://127.0.0.1:1"), "pulsar://host:port"),
    ],
)
def test_wrong_usage_exits_with_2_and_says_what(helio: Helio, arguments: tuple[str, ...], says: str) -> None:
    shown = helio(*arguments)
    assert shown.returncode == 2
    assert says in shown.stderr
    assert shown.stdout == ""
    assert "Traceback" not in shown.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ("status",),
        ("logs",),
        ("down",),
        ("topics", "list"),
        ("produce", "t", "m"),
        ("consume", "t"),
        ("perf", "produce"),
    ],
)
def test_without_a_cluster_every_command_says_what_to_do(helio: Helio, arguments: tuple[str, ...]) -> None:
    shown = helio(*arguments)
    assert shown.returncode == 1
    assert shown.stderr.startswith("error: no ")
    assert len(shown.stderr.strip().splitlines()) == 1
    assert "helio up" in shown.stderr or "nothing to stop" in shown.stderr


@pytest.mark.slow
def test_with_json_an_error_is_one_object(helio: Helio) -> None:
    shown = helio("status", "--json")
    assert shown.returncode == 1
    assert json.loads(shown.stdout)["error"]["type"] == "ClusterNotFoundError"
    assert shown.stderr == ""


@pytest.mark.slow
def test_an_address_where_nothing_listens_is_named(helio: Helio) -> None:
    shown = helio("produce", "t", "m", "--address", "pulsar://127.0.0.1:1", before=IMPATIENT)
    assert shown.returncode == 1
    assert "127.0.0.1:1" in shown.stderr


@pytest.mark.slow
def test_a_data_path_that_cannot_be_written_is_named(helio: Helio, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    path = str(tmp_path / "file" / "d")
    shown = helio("up", "--broker-port", "0", "--gateway-port", "0", "--data-directory", path)
    assert shown.returncode == 1
    assert "--data-directory" in shown.stderr
    assert path in shown.stderr


def test_exit_codes_tell_usage_from_failure(capsys: pytest.CaptureFixture[str]) -> None:
    assert Output(as_json=False).error(InvalidConfigError("bad\nthing", field="x")) == 2
    assert Output(as_json=False).error(ClusterNotFoundError("none")) == 1
    assert Output(as_json=True).error(KeyError("oops")) == 1
    captured = capsys.readouterr()
    assert captured.err == "error: bad thing\nerror: none\n"
    assert json.loads(captured.out)["error"]["message"].startswith("unexpected KeyError")


def test_an_error_names_the_allowed_values(capsys: pytest.CaptureFixture[str]) -> None:
    Output(as_json=False).error(InvalidConfigError("size is 'x'", field="size", limit="a whole number"))
    Output(as_json=False).error(InvalidConfigError("size is above 3 bytes", field="size", limit="3 bytes"))
    Output(as_json=True).error(InvalidConfigError("size is 'x'", field="size", limit="a whole number"))
    captured = capsys.readouterr()
    assert captured.err == "error: size is 'x' (allowed: a whole number)\nerror: size is above 3 bytes\n"
    assert json.loads(captured.out)["error"]["limit"] == "a whole number"


def commands(command: Any, path: str = "helio") -> Iterator[tuple[str, Any, int]]:
    """Every command with its path and the columns that its name is given in the list of its group."""
    width = max(len(name) for name in command.commands)
    for name, child in command.commands.items():
        yield f"{path} {name}", child, width
        if hasattr(child, "commands"):
            yield from commands(child, f"{path} {name}")


def test_every_list_of_commands_fits_a_terminal() -> None:
    root: Any = typer.main.get_command(app)
    root.load_all()
    cut = [
        path
        for path, command, width in commands(root)
        if command.get_short_help_str(TERMINAL_COLUMNS - 6 - width).endswith("...")
    ]
    assert not cut, "begin these docstrings with a shorter sentence"


def test_the_command_line_begins_without_the_server_and_without_ray() -> None:
    program = "import sys, heliograph.cli.app; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    late = {"actors", "metadata", "gateway", "pipelines", "ray"}
    early = [name for name in loaded if name.removeprefix("heliograph.").split(".")[0] in late]
    assert not early, "a command imports these when it needs them"


def test_the_version_is_printed() -> None:
    shown = CliRunner().invoke(app, ["--version"])
    assert shown.exit_code == 0
    assert shown.output == f"heliograph {heliograph_version()}\n"


def test_facts_have_no_empty_line_for_a_heading(capsys: pytest.CaptureFixture[str]) -> None:
    Output(as_json=False).facts("", [("a", 1), ("b", None)])
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == ["a  1", "b"]


def test_with_json_nothing_but_the_object_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    output = Output(as_json=True)
    output.progress("step")
    output.table("t", ("a",), [("b",)])
    output.result({"path": Path("/x"), "n": 1})
    assert json.loads(capsys.readouterr().out) == {"path": "/x", "n": 1}


def test_without_json_the_table_is_printed_and_the_object_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    output = Output(as_json=False)
    output.progress("[step] one")
    output.table("title", ("a", "b"), [("x", None), (3, "y")])
    output.result({"n": 1})
    shown = capsys.readouterr().out
    assert "[step] one" in shown
    assert "x" in shown
    assert '"n"' not in shown
