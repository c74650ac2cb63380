"""``helio produce`` and ``helio perf consume`` against a fake broker: input, output and exit codes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer

from heliograph.base.errors import BadRequestError, MessageTooLargeError
from heliograph.cli.messages import consume, perf
from heliograph.cli.messages import produce as command
from heliograph.protocol import entry as entries
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.frame import encode_command
from tests.unit.client.fake_broker import FakeBroker, T
from tests.unit.client.topics import publish
from tests.unit.client.world import client_of, run, stored
from tests.waits import until


def produced(capsys: pytest.CaptureFixture[str], *messages: str, **options: Any) -> tuple[FakeBroker, dict[str, Any]]:
    """Return what a broker received, and the object that was printed."""
    brokers = []

    async def scenario() -> None:
        async with FakeBroker() as broker:
            brokers.append(broker)
            await asyncio.to_thread(
                command.produce, "t", list(messages) or None, address=broker.url, as_json=True, **options
            )

    run(scenario())
    return brokers[0], json.loads(capsys.readouterr().out)


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HELIOGRAPH_HOME", str(tmp_path))


def test_arguments_and_files_are_published_in_order_and_again(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "one").write_bytes(b"two\nlines\xff")
    broker, shown = produced(capsys, "a", "b", files=[tmp_path / "one"], times=2)
    assert stored(broker.store) == [b"a", b"b", b"two\nlines\xff"] * 2
    assert (shown["topic"], shown["messages"]) == ("t", 6)


async def test_who_waits_for_nothing_at_the_end_of_a_topic_is_told_of_its_start(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with FakeBroker() as broker:
        await asyncio.to_thread(consume.consume, "t", address=broker.url, idle=0.01)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "--from earliest" in printed.err


def test_messages_are_compressed(capsys: pytest.CaptureFixture[str]) -> None:
    broker, _ = produced(capsys, "a" * 1000, compression="zstd")
    metadata, payload = entries.split(broker.store.topics["persistent://public/default/t"].entries[0])
    assert (metadata.compression, metadata.uncompressed_size) == (pb.ZSTD, 1000)
    assert len(payload) < 100


def test_key_properties_and_delay_go_with_each(capsys: pytest.CaptureFixture[str]) -> None:
    broker, _ = produced(capsys, "a", key="k", properties=["x=1"], deliver_after=3600.0)
    metadata, _ = entries.split(broker.store.topics["persistent://public/default/t"].entries[0])
    assert (metadata.partition_key, metadata.properties[0].key, metadata.properties[0].value) == ("k", "x", "1")
    assert metadata.deliver_at_time > metadata.publish_time


def test_input_that_cannot_be_repeated_or_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadRequestError, match="--times"):
        command.produce("t", None, times=2)
    with pytest.raises(BadRequestError, match="cannot be read"):
        command.produce("t", None, files=[tmp_path / "none"])


def test_lines_are_complete_however_they_arrive(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    chunks = [b"one\ntw", b"o", b"\r\n\nthree\n", b"four", b"teen", b""]
    stream = SimpleNamespace(read1=lambda size: chunks.pop(0))
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=stream))
    broker, shown = produced(capsys)
    assert stored(broker.store) == [b"one", b"two", b"", b"three", b"fourteen"]
    assert shown["messages"] == 5


async def test_an_endless_line_is_refused_before_all_of_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:  # I15
    read = 0

    class Endless:
        def read1(self, size: int) -> bytes:
            nonlocal read
            read += size
            assert read < 100 << 20, "reading does not stop"
            return b"x" * size

    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=Endless()))
    async with FakeBroker() as broker:
        with pytest.raises(MessageTooLargeError, match="line 1 "):
            await asyncio.to_thread(command.produce, "t", None, address=broker.url)


async def test_reading_a_topic_to_its_end_succeeds(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    async with FakeBroker() as broker, await client_of(broker) as client:
        await publish(client, ["one"], ["two"])
        consuming = asyncio.create_task(
            asyncio.to_thread(consume.consume, "t", None, "earliest", address=broker.url, follow=True)
        )
        await until(lambda: broker.of_type(T.FLOW))
        ((consumer_id, _),) = broker.connections[-1].consumers.items()
        end = pb.CommandReachedEndOfTopic(consumer_id=consumer_id)
        broker.connections[-1].write(encode_command(T(type=T.REACHED_END_OF_TOPIC, reached_end_of_topic=end)))
        await consuming
    assert capfdbinary.readouterr().out == b"one\ntwo\n"


async def test_a_measured_consumer_that_gets_nothing_fails_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    async with FakeBroker() as broker:
        with pytest.raises(typer.Exit) as ended:
            await asyncio.to_thread(perf.consume, "t", 10, None, False, 0.01, 10, broker.url, as_json=True)
        assert ended.value.exit_code == 1
    shown = json.loads(capsys.readouterr().out)
    assert (shown["messages"], shown["last_error"]) == (0, "no message came within 0.01 s")
