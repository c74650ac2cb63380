"""`helio watch` and `helio profile`: changes of health are passed on once, and a part's stacks are sampled."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import heliograph
from heliograph.base.errors import (
    BadRequestError,
    ConflictError,
    HeliographError,
    NotFoundError,
    NotPermittedError,
    ServiceNotReadyError,
    UnsupportedError,
)
from heliograph.cli.app import app
from heliograph.cli.operations.cluster import report_of
from heliograph.cli.options import Target
from heliograph.cli.watching import profile, watch
from heliograph.cli.watching.watch import Health, HealthState, HealthWatch, health_of, post, run_command
from heliograph.metadata.operator_records import ClusterReport, PartReport

ALIVE = PartReport("broker-1", "broker", "ALIVE", address="pulsar://h:1")
LOST = PartReport("bookie-2", "bookie", "MISSING", note="nothing runs it", since_ms=1)
GOOD = ClusterReport(parts=(ALIVE,))
BAD = ClusterReport(parts=(ALIVE, LOST), ledgers_damaged=0)
SILENT = ClusterReport(is_silent=True, notes=("the gateway does not answer",))


def helio(*arguments: str) -> str:
    done = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert done.exit_code == 0
    return done.stdout


def told(*looks: Health) -> list[dict[str, Any]]:
    """Return the changes that a watch tells of some looks."""
    watched = HealthWatch()
    return [change for change in map(watched.look, looks) if change is not None]


def test_a_report_is_well_degraded_or_not_known() -> None:
    assert health_of(GOOD).state is HealthState.WELL
    bad = health_of(BAD)
    assert (bad.state, bad.verdict) == (HealthState.DEGRADED, "degraded, publishing goes on, nothing is lost")
    assert health_of(SILENT).verdict == "unknown: the gateway does not answer"
    assert (
        health_of(ClusterReport(parts=(PartReport("broker-1", "broker", note="gone"),))).state is not HealthState.WELL
    )


def test_a_change_is_told_once_and_not_of_a_single_look() -> None:
    good, bad, unknown = health_of(GOOD), health_of(BAD), health_of(SILENT)
    assert told(good, good, good) == []
    assert told(bad, good, unknown, good, bad, unknown, good) == [], "each was gone at the next look"
    first, second = told(good, bad, bad, bad, bad, good, good, good)
    assert (first["state"], first["before"]) == ("degraded", "well")
    assert first["came"] == ["bookie-2 is down: nothing runs it"]
    assert first["findings"][0]["command"] == "helio logs bookie-2"
    assert (second["state"], second["went"], second["came"]) == ("well", first["came"], [])
    assert [change["state"] for change in told(bad, bad)] == ["degraded"], "it was so before the first look"


def test_times_that_pass_are_no_change() -> None:
    later = PartReport("bookie-2", "bookie", "MISSING", note="nothing runs it, for 9 s", since_ms=9)
    assert len(told(*[health_of(BAD)] * 2, *[health_of(ClusterReport(parts=(ALIVE, later)))] * 2)) == 1
    other = PartReport("bookie-3", "bookie", "MISSING", note="nothing runs it")
    changes = told(*[health_of(BAD)] * 2, *[health_of(ClusterReport(parts=(ALIVE, LOST, other)))] * 2)
    assert changes[1]["came"] == ["bookie-3 is down: nothing runs it"]
    assert changes[1]["went"] == []


def test_the_steps_of_a_repair_are_no_changes() -> None:
    def repairing(ledgers: int, entries: int) -> Health:
        notes = (f"publishing is slowed on {entries} topics: 1 bookie takes entries",)
        return health_of(replace(BAD, underreplicated_ledgers=ledgers, publishing_notes=notes))

    steps = [repairing(ledgers, ledgers + 1) for ledgers in (7, 6, 3, 1)]
    changes = told(*(step for step in steps for _ in range(2)), *[health_of(BAD)] * 2)
    assert [len(change["went"]) for change in changes] == [0, 2]
    assert "1 ledger has fewer copies than wanted" not in changes[1]["went"], "it went as it was told"


@pytest.mark.parametrize("answer", [b"nothing of HTTP\r\n\r\n", b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 200 + b"\r\n"])
def test_a_webhook_that_speaks_no_http_does_not_end_the_watch(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with listener.accept()[0] as one:
                one.recv(1 << 16)
                one.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        assert "does not answer" in post(url, {}, pauses=(0.0,))
    assert "does not answer" in post("http://[::1/", {}, pauses=(0.0,))


class Hook:
    """A server that notes what is posted to it, and answers with these codes, the last one again and again."""

    def __init__(self, *codes: int) -> None:
        self.bodies: list[dict[str, Any]] = []
        hook, left = self, list(codes)

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                hook.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(left.pop(0) if len(left) > 1 else left[0])
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/hook"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def hook(request: pytest.FixtureRequest) -> Iterator[Hook]:
    made = Hook(*request.param)
    yield made
    made.close()


@pytest.mark.slow
@pytest.mark.parametrize("hook", [(503, 200)], indirect=True)
def test_a_command_and_a_webhook_get_every_change(hook: Hook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[ClusterReport | HeliographError] = [GOOD, BAD, BAD, BAD, ServiceNotReadyError("no answer"), BAD, GOOD]

    def asked(_: Any) -> ClusterReport:
        found = looks.pop(0) if len(looks) > 1 else looks[0]
        if isinstance(found, HeliographError):
            raise found
        return found

    monkeypatch.setattr(watch, "report_of", asked)
    monkeypatch.setattr(watch, "POST_PAUSES", (0.0, 0.0))
    script, notes = tmp_path / "note.py", tmp_path / "notes"
    script.write_text(
        "import os, sys\n"
        "with open(sys.argv[1], 'a') as f:\n"
        "    print(os.environ['HELIOGRAPH_STATE'], sys.stdin.read(), file=f)\n"
    )
    command = f"{sys.executable} {script} {notes}"
    text = helio(
        "watch", "--exec", command, "--webhook", hook.url, "--interval", "0.2", "-n", "2", "--home", str(tmp_path)
    )
    states = [line.split(" ", 1) for line in notes.read_text().splitlines()]
    assert [state for state, _ in states] == ["degraded", "well"]
    assert json.loads(states[0][1]) == hook.bodies[0]
    assert [body["state"] for body in hook.bodies] == ["degraded", "degraded", "well"], "a refusal is tried again"
    assert "+ bookie-2 is down: nothing runs it" in text
    assert "- bookie-2 is down: nothing runs it" in text


@pytest.mark.parametrize("hook", [(404,)], indirect=True)
def test_what_cannot_be_passed_on_is_said(hook: Hook) -> None:
    change = {"state": "well", "verdict": "all is well"}
    assert post(hook.url, change, pauses=(0.0, 0.0, 0.0)) == "the webhook answers 404"
    assert len(hook.bodies) == 1, "a refusal is not tried again"
    assert "does not answer" in post("http://127.0.0.1:9/", change, pauses=(0.0,))
    assert "cannot be run" in run_command(["/nothing/here"], change)
    assert run_command(["false"], change) == "false ended with 1"
    assert run_command(["true"], change) == ""


@pytest.mark.slow
def test_a_command_that_does_not_end_is_killed_with_all_that_it_began(tmp_path: Path) -> None:
    script = f"sleep 600 & echo $! > {tmp_path / 'pid'}; wait"
    change = {"state": "well", "verdict": "all is well"}
    assert "was killed" in run_command(["sh", "-c", script], change, seconds=1.0)
    pid = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 30
    while Path(f"/proc/{pid}/status").exists() and "State:\tZ" not in Path(f"/proc/{pid}/status").read_text():
        assert time.monotonic() < deadline, "its child goes on"
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--exec", " "),
        *(("--webhook", url) for url in ("ftp://h/x", "http://", "http://[::1/", "http://h:x/", "http://h/a b")),
    ],
)
def test_what_cannot_work_is_refused_at_the_start(option: str, value: str, tmp_path: Path) -> None:
    with pytest.raises(BadRequestError):
        helio("watch", option, value, "--home", str(tmp_path))


def test_the_cluster_of_one_process_is_watched_and_profiled(tmp_path: Path) -> None:
    with heliograph.local(tmp_path, bookies=1):
        target = Target.of(None, tmp_path)
        assert health_of(report_of(target)).state is not HealthState.UNKNOWN
        assert profile.pid_of("broker-1", target) == os.getpid()
        with pytest.raises(NotFoundError, match=r"there are .*broker-1"):
            profile.pid_of("broker-7", target)


@pytest.fixture
def part(monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is reported as bookie-1."""
    code = "import time\ndef spin_here():\n    while time.monotonic() < 1e9: pass\nspin_here()"
    process = subprocess.Popen([sys.executable, "-c", code])
    report = ClusterReport(parts=(PartReport("bookie-1", "bookie", "ALIVE", home="127.0.0.1", pid=process.pid),))
    monkeypatch.setattr(profile, "report_of", lambda _: report)
    yield process
    process.kill()
    process.wait()


def test_the_stacks_of_a_part_are_sampled(part: subprocess.Popen[bytes], tmp_path: Path) -> None:
    options = ("bookie-1", "--home", str(tmp_path))
    deadline = time.monotonic() + 60
    try:
        while "spin_here" not in helio("profile", *options, "--dump"):
            assert time.monotonic() < deadline, "the process has not begun"
    except NotPermittedError as error:
        pytest.skip(str(error))
    stacks = tmp_path / "stacks.txt"
    said = json.loads(helio("profile", *options, "--seconds", "1", "--output", str(stacks), "--json"))
    assert (said["pid"], said["file"]) == (part.pid, str(stacks))
    assert "spin_here" in stacks.read_text()
    with pytest.raises(BadRequestError, match="no ending"):
        helio("profile", *options, "--output", "bookie-1.png")
    part.kill()
    part.wait()
    with pytest.raises(NotFoundError, match="has ended"):
        helio("profile", *options, "--dump")


def test_why_a_part_cannot_be_sampled_is_said(
    part: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = tmp_path / "py-spy"
    fake.write_text(
        "#!/bin/sh\necho 'Error: Permission Denied: Try running again with elevated permissions' >&2\nexit 1\n"
    )
    fake.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(NotPermittedError, match="CAP_SYS_PTRACE"):
        helio("profile", "bookie-1", "--dump", "--home", str(tmp_path))
    fake.unlink()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UnsupportedError, match=r"heliograph-ray\[profile\]"):
        helio("profile", "bookie-1", "--dump", "--home", str(tmp_path))
    away = ClusterReport(parts=(PartReport("bookie-1", "bookie", "ALIVE", home="192.0.2.7", pid=part.pid),))
    monkeypatch.setattr(profile, "report_of", lambda _: away)
    with pytest.raises(ConflictError, match=r"192\.0\.2\.7: run helio profile there"):
        helio("profile", "bookie-1", "--dump", "--home", str(tmp_path))
