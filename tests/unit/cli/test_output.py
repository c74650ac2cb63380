"""What programs read from standard output is the result and nothing else."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from heliograph.base.errors import BadRequestError
from heliograph.cli import output as output_module
from heliograph.cli.operations.cluster import broker_processes
from heliograph.cli.output import DONE, GREEN, PLAIN, RED, YELLOW, Output, OwnOutput, one_line
from heliograph.cluster.settings.declared import usable_cores
from tests.patience import LONG_SECONDS


def test_what_another_thread_prints_goes_to_standard_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdout", OwnOutput(sys.stdout))
    print("a line of the result")
    other = threading.Thread(target=print, args=("news of a node",))
    other.start()
    other.join()
    print("its end", flush=True)
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("a line of the result\nits end\n", "news of a node\n")


@contextlib.contextmanager
def terminal(monkeypatch: pytest.MonkeyPatch, **environment: str) -> Iterator[Callable[..., str]]:
    """Have standard output and errors be a terminal; yield what reads what was shown since the last call."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    master, slave = pty.openpty()

    def shown(wait_seconds: float = 0.0) -> str:
        found = b""
        while select.select([master], [], [], wait_seconds)[0]:
            found += os.read(master, 65_536)
            wait_seconds = 0.0
        return found.decode()

    with open(slave, "w", encoding="utf-8") as screen:
        monkeypatch.setattr(sys, "stdout", OwnOutput(screen))
        monkeypatch.setattr(sys, "stderr", screen)
        yield shown
    os.close(master)


def everything(output: Output) -> None:
    output.done("created orders")
    output.warn("not serving yet")
    output.table("parts", ("part", "state"), [("[bookie-1]", "ALIVE"), ("broker-1", "DEAD")])
    output.error(BadRequestError("no such thing"))


def test_a_terminal_shows_colours_and_a_symbol(monkeypatch: pytest.MonkeyPatch) -> None:
    with terminal(monkeypatch) as shown:
        everything(Output(as_json=False))
        text = shown()
    assert f"{GREEN}{DONE}{PLAIN} created orders" in text
    assert f"{YELLOW}not serving yet{PLAIN}" in text
    assert f"{RED}error:{PLAIN} no such thing" in text
    assert re.search(r"\x1b\[32mALIVE", text)
    assert re.search(r"\x1b\[1;31mDEAD", text)
    assert "[bookie-1]" in text  # a name is no markup


@pytest.mark.parametrize("environment", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_plain_text_on_a_terminal_that_is_asked_for_it(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]
) -> None:
    with terminal(monkeypatch, **environment) as shown:
        output = Output(as_json=False)
        everything(output)
        with output.timed() as watch:
            watch.progress("starting")
        text = shown()
    assert "created orders" in text
    assert "\x1b" not in text
    assert DONE not in text


def test_a_pipe_gets_plain_text(capsys: pytest.CaptureFixture[str]) -> None:
    everything(Output(as_json=False))
    printed = capsys.readouterr()
    assert "\x1b" not in printed.out + printed.err
    assert printed.out.startswith("created orders\nnot serving yet\n")
    assert printed.err == "error: no such thing\n"


def test_a_long_step_counts_its_seconds_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_module, "TICK_SECONDS", 0.01)
    with terminal(monkeypatch) as shown:
        seen = ""
        with Output(as_json=False).timed() as watch:
            watch.progress("starting 3 bookies")
            while not re.search(r"\d\.\d s  \.\.\. starting 3 bookies", seen):
                more = shown(LONG_SECONDS)
                assert more, "the line that counts is not shown"
                assert len(seen) < 1_000_000, seen[-200:]
                seen += more
        assert shown().endswith("\r\x1b[K")  # nothing of it is left


def test_lines_of_a_long_step_have_seconds_in_a_file_too(capsys: pytest.CaptureFixture[str]) -> None:
    with Output(as_json=False).timed() as watch:
        watch.progress("starting 3 bookies")
    printed = capsys.readouterr()
    assert re.fullmatch(r" +\d+\.\d s  starting 3 bookies\n", printed.out)
    assert printed.err == ""


def test_a_program_gets_its_object_alone(capsys: pytest.CaptureFixture[str]) -> None:
    output = Output(as_json=True)
    with output.timed() as watch:
        watch.progress("starting")
    output.done("started")
    output.result({"started": True})
    assert capsys.readouterr().out == '{"started": true}\n'


RAY_TEXT = (
    "\x1b[36mray::Broker.start()\x1b[39m (pid=7, ip=10.0.0.5)\n  Traceback (most recent call last):\n"
    '  File "/app/broker.py", line 7, in start\n    raise ResourceError("port 6650 is taken")\n'
    "heliograph.base.errors.ResourceError: port 6650 is taken\n"
)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("port 6650\n  is taken", "port 6650 is taken"),
        (
            RAY_TEXT,
            "ray::Broker.start() (pid=7, ip=10.0.0.5) heliograph.base.errors.ResourceError: port 6650 is taken",
        ),
        ("\x1b]0;title\x07a\x00b\x08", "ab"),
        ("Traceback (most recent call last):", "Traceback (most recent call last):"),
        ("", ""),
    ],
)
def test_an_error_is_one_line_without_escapes_and_traceback(text: str, line: str) -> None:
    assert one_line(text) == line


def test_up_tells_how_many_brokers_serve_and_the_cores() -> None:
    text = broker_processes("pulsar://10.0.0.1:6650,10.0.0.1:6651")
    assert text.startswith(f"2; this machine has {usable_cores()} cores")
    assert broker_processes("") == ""
