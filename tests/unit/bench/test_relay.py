"""The bare relay and the bare logs of the benchmarks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.bench.peers.host import BLOCK_BYTES, LoopLog
from tests.bench.peers.relay_host import LogConnection, Relay


def test_a_relay_acknowledges_what_two_of_three_logs_have() -> None:
    relay, sent, durable = Relay(3), Recorder(), Recorder()
    relay.send = [sent.take] * 3
    relay.append([b"one", b"two", b"three"], durable.count)
    assert sent.parts == [b"onetwothree"] * 3
    relay.acknowledged(0, 3)
    assert durable.counts == []  # one copy
    relay.acknowledged(2, 1)
    assert durable.counts == [1]
    relay.acknowledged(2, 2)
    assert durable.counts == [1, 2]
    relay.acknowledged(1, 3)  # the third copy tells nothing more
    assert durable.counts == [1, 2]


def test_an_answer_in_two_parts_counts_when_it_is_whole() -> None:
    relay, durable = Relay(1), Recorder()
    relay.append([b"one"], durable.count)
    connection = LogConnection(relay, 0)
    connection.data_received(b"\0\0\0")
    assert durable.counts == []
    connection.data_received(b"\1\0")
    assert durable.counts == [1]


def test_the_log_on_the_loop_writes_whole_blocks_before_it_answers(tmp_path: Path) -> None:
    log, durable = LoopLog(tmp_path / "log"), Recorder()
    try:
        log.append([b"x" * 5], durable.count)
        log.append([b"y" * 3, b"z" * BLOCK_BYTES], durable.count)
    finally:
        log.stop()
    assert durable.counts == [1, 2]
    written = (tmp_path / "log").read_bytes()
    assert written.startswith(b"xxxxx\0")
    assert written[BLOCK_BYTES:].startswith(b"yyyzzz")
    assert written[2 * BLOCK_BYTES :].startswith(b"zzz\0")


class Recorder:
    """What was sent, and the counts that were told."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.counts: list[int] = []
        self.take: Callable[[bytes], None] = self.parts.append
        self.count: Callable[[int], None] = self.counts.append
