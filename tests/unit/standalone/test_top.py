"""`helio top` of a cluster in one process."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import heliograph
from heliograph.base.errors import BadRequestError, ClusterNotFoundError
from heliograph.base.home import ClusterHome, ClusterState
from heliograph.cli.app import app
from heliograph.cli.watching.keyboard import END, RIGHT, _pressed
from heliograph.cli.watching.top import TopKind, _rows
from heliograph.client.admin.over_http import GatewayAwayError, GatewayCalls
from heliograph.metrics.exposition import exposition, samples_in
from heliograph.metrics.metric import Metric, MetricKind


def top(home: Path, *arguments: str) -> str:
    return CliRunner().invoke(app, ["top", *arguments, "--home", str(home)], catch_exceptions=False).stdout


def test_the_largest_come_first(tmp_path: Path) -> None:
    with heliograph.local(tmp_path, bookies=1) as cluster, cluster.connect() as client:
        for name, count in (("few", 2), ("many", 30)):
            client.consumer(name, "audit").close()
            producer = client.producer(name)
            for _ in range(count):
                producer.send(b"x")
        found = json.loads(top(tmp_path, "subscriptions", "--json"))["subscriptions"]
        assert [(row["topic"].rpartition("/")[2], row["backlog"]) for row in found] == [("many", 30), ("few", 2)]
        assert all(row["subscription"] == "audit" and row["consumers"] == 0 for row in found)
        text = top(tmp_path, "topics", "--sort", "stored bytes", "--once")
        assert text.index("many") < text.index("few")
        (bookie,) = json.loads(top(tmp_path, "bookies", "--json"))["bookies"]
        assert bookie["bookie"] == "bookie-1"
        assert bookie["free bytes"] > 0
        with pytest.raises(BadRequestError, match="there is no column"):
            top(tmp_path, "brokers", "--sort", "colour", "--once")
        topic = "2 of 2 topics"
        assert topic in text


@pytest.mark.slow
def test_a_gateway_that_is_away_for_a_while_does_not_end_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ClusterHome(tmp_path).save(ClusterState("heliograph", "", "", gateway_url="http://127.0.0.1:9"))
    answers: list[str | Exception] = [GatewayAwayError("nobody"), 'heliograph_topic_in_messages_rate{topic="t"} 7\n']

    def metrics(*_: Any) -> str:
        answer = answers.pop(0) if answers else KeyboardInterrupt()
        if isinstance(answer, BaseException):
            raise answer
        return answer

    monkeypatch.setattr(GatewayCalls, "metrics", metrics)
    done = CliRunner().invoke(app, ["top", "--interval", "0.5", "--home", str(tmp_path)])
    assert done.exit_code == 130, "by Ctrl-C"
    assert "no answer, and asked again in 0.5 s: nobody" in done.output
    assert "1 of 1 topics" in done.output


# A shell has its background jobs ignore Ctrl-C, and with them all that they start.
LISTENING = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    "from heliograph.cli.start import main; main()"
)


class Screen:
    """A terminal that `helio top` runs in."""

    def __init__(self, home: Path, *arguments: str) -> None:
        self._fd, terminal = pty.openpty()
        self.before = termios.tcgetattr(terminal)
        self._terminal = terminal
        command = [sys.executable, "-c", LISTENING, "top", *arguments, "--home", str(home)]
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": "200"}
        self.program = subprocess.Popen(
            command, stdin=terminal, stdout=terminal, stderr=terminal, env=environment, start_new_session=True
        )
        self._text = ""

    def press(self, keys: str) -> None:
        os.write(self._fd, keys.encode())

    def until(self, *shown: str) -> None:
        """Wait until these stand on one screen, in this order. What was shown before counts no more."""
        order = re.compile(".*?".join(map(re.escape, shown)), re.DOTALL)
        deadline = time.monotonic() + 120
        while not any(order.search(screen) for screen in self._text.split("\x1b[H\x1b[J")[1:]):
            assert time.monotonic() < deadline, f"{shown} is not on {self._text[-2_000:]}"
            if select.select([self._fd], [], [], 1.0)[0]:
                self._text += os.read(self._fd, 65_536).decode()
        self._text = ""

    def end(self) -> int:
        """Wait for the end of the program; return its code."""
        code = self.program.wait(60)
        assert termios.tcgetattr(self._terminal) == self.before, "the terminal is as it was"
        os.close(self._terminal)
        os.close(self._fd)
        return code


@pytest.mark.slow
def test_keys_choose_the_column_the_order_and_the_view(tmp_path: Path) -> None:
    with heliograph.local(tmp_path, bookies=1) as cluster, cluster.connect() as client:
        for name, size, consumers in (("large", 50_000, 1), ("small", 10, 3)):
            with client.producer(name) as producer:
                producer.send(b"x" * size)
            for number in range(consumers):
                client.consumer(name, f"s{number}").close()
        screen = Screen(tmp_path, "--sort", "stored bytes", "--interval", "600")
        screen.until("2 of 2 topics", "stored bytes v", "large", "small")
        screen.press("r")
        screen.until("stored bytes ^", "small", "large")
        screen.press("x")  # means nothing
        screen.until("stored bytes ^", "small", "large")
        screen.press("4")
        screen.until("producers ^")
        screen.press("\x1b[D")
        screen.until("stored bytes ^")
        screen.press("\t")
        screen.until("4 of 4 subscriptions", "backlog v")
        screen.press("\x1bOC")
        screen.until("oldest s v")
        screen.press("\t")
        screen.until("1 of 1 brokers", "load v")
        screen.press("\t")
        screen.until("1 of 1 bookies", "disk used v")
        screen.press("q")
        assert screen.end() == 0


def test_a_key_that_is_pressed_again_before_it_is_read_is_one_key() -> None:
    read, write = os.pipe()

    def pressed(sent: bytes) -> str:
        os.write(write, sent)
        return _pressed(read, 0.0)

    assert pressed(b"qq") == "q"
    assert pressed(b"\x1b[C" * 6) == RIGHT
    assert _pressed(read, 0.0) == RIGHT, "the last one is whole"
    assert pressed(b"\x04\x04") == END
    assert pressed(b"quit") == "", "it was pasted"
    assert _pressed(read, 0.0) == ""
    os.close(read)
    os.close(write)


@pytest.mark.slow
def test_ctrl_c_leaves_the_terminal_as_it_was(tmp_path: Path) -> None:
    with heliograph.local(tmp_path, bookies=1):
        screen = Screen(tmp_path, "bookies")
        screen.until("1 of 1 bookies")
        screen.program.send_signal(signal.SIGINT)
        assert screen.end() == 130


def test_without_a_cluster_it_says_where_it_looked(tmp_path: Path) -> None:
    with pytest.raises(ClusterNotFoundError, match="no gateway is noted"):
        top(tmp_path / "nothing", "--once")


def test_a_sample_without_the_labels_of_its_view_is_left_out() -> None:
    name = "heliograph_topic_in_messages_rate"
    (row,) = _rows(TopKind.TOPICS, samples_in(f'{name} 99\n{name}{{topic="t"}} 1\n'))
    assert (row["topic"], row["in/s"]) == ("t", 1.0)


def test_what_is_written_is_read_again() -> None:
    strange = 'a "b" \\ c\nd'
    metric = Metric("heliograph_x", MetricKind.GAUGE, "x", ("topic", "other"))
    text = exposition((metric,), {"heliograph_x": [((strange, "{y} 1"), 2.5)]})
    assert list(samples_in(text)) == [("heliograph_x", {"topic": strange, "other": "{y} 1"}, 2.5)]
