"""Run a program of another language and read its result lines.

A program writes one JSON object a line to its standard output; other lines are kept as its log:

    {"scenario": "dead_letters", "ok": true, "detail": "3 messages"}          it works
    {"scenario": "transactions", "ok": true, "refused": true, "detail": "..."}  it is refused, as it has to be
    {"ask": "crash_owner", "topic": "persistent://public/default/t"}          do this, and answer on my standard input

The answer to a question is one line of JSON. A program has a bounded time, and no process of it is left behind.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LOG_CHARACTERS_MAX = 6_000
END_SECONDS_MAX = 10.0

Answer = Callable[[dict[str, Any]], Any]


@dataclass(frozen=True)
class ScenarioResult:
    """What a program says of one of its scenarios."""

    scenario: str
    ok: bool
    detail: str = ""
    refused: bool = False


@dataclass
class ProgramRun:
    """A program that has ended, or that was ended because its time was over."""

    name: str
    results: dict[str, ScenarioResult] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    errors: str = ""
    code: int | None = None
    timed_out_seconds: float | None = None

    @property
    def log(self) -> str:
        """Return the end of what the program wrote."""
        return "\n".join([*self.lines, self.errors])[-LOG_CHARACTERS_MAX:]

    def check(self, scenario: str) -> ScenarioResult:
        """Return the result of a scenario that succeeded.

        Raises:
            AssertionError: the scenario failed, or the program ended before it; with the program's log.
        """
        found = self.results.get(scenario)
        if found is None:
            end = f"was ended after {self.timed_out_seconds} s" if self.timed_out_seconds else f"ended with {self.code}"
            raise AssertionError(f"{self.name} {end} and says nothing of {scenario}:\n{self.log}")
        assert found.ok, f"{self.name}: {scenario}: {found.detail}\n{self.log}"
        return found

    def check_end(self) -> None:
        """Check that the program ended by itself, without an error."""
        assert self.timed_out_seconds is None, f"{self.name} did not end in {self.timed_out_seconds} s:\n{self.log}"
        assert self.code == 0, f"{self.name} ended with {self.code}:\n{self.log}"


def run_program(
    name: str,
    command: Sequence[str],
    *,
    seconds: float,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
    answer: Answer | None = None,
) -> ProgramRun:
    """Run a program to its end, or until its time is over; it and all processes that it started are gone then.

    Args:
        seconds: the time that the program has.
        environment: variables beside those of this process.
        answer: does what a program asks for and returns the answer; an error it raises is the answer, too.
    """
    run = ProgramRun(name)
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            list(command), cwd=cwd, env={**os.environ, **(environment or {})}, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, start_new_session=True,
        )  # fmt: skip
        watch = threading.Timer(seconds, _time_over, (run, process, seconds))
        watch.start()
        try:
            assert process.stdout is not None
            for line in process.stdout:
                _take(run, process, line.rstrip("\n"), answer)
            process.wait(END_SECONDS_MAX)
        finally:
            watch.cancel()
            _end(process)
            run.code = process.wait()
            for pipe in (process.stdin, process.stdout):
                with contextlib.suppress(OSError):
                    pipe and pipe.close()
        errors.seek(0)
        run.errors = errors.read()
    return run


def _time_over(run: ProgramRun, process: subprocess.Popen[str], seconds: float) -> None:
    run.timed_out_seconds = seconds
    if process.poll() is None and "java" in str(process.args):
        with contextlib.suppress(OSError):
            process.send_signal(signal.SIGQUIT)  # a JVM writes the stacks of its threads to its output
        threading.Event().wait(1)
    _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    """End a program with all that it started: they are a process group of their own."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _take(run: ProgramRun, process: subprocess.Popen[str], line: str, answer: Answer | None) -> None:
    """Take one line of a program's output."""
    said = _object(line)
    if said is not None and "scenario" in said:
        result = ScenarioResult(
            said["scenario"], bool(said["ok"]), str(said.get("detail", "")), bool(said.get("refused", False))
        )
        run.results[result.scenario] = result
    elif said is not None and "ask" in said and answer is not None:
        try:
            reply = {"ok": True, "answer": answer(said)}
        except Exception as error:  # the program learns it, and its scenario fails
            reply = {"ok": False, "answer": f"{type(error).__name__}: {error}"}
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(json.dumps(reply) + "\n")
            process.stdin.flush()
    else:
        run.lines.append(line)


def _object(line: str) -> dict[str, Any] | None:
    if not line.startswith("{"):
        return None
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
