"""The least clients of other servers, against bytes, and the rows that compare what they read."""

from __future__ import annotations

import asyncio
import functools
import struct
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import ParamSpec

import pytest

from heliograph.cli.messages.measure import MeasuredRun
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.batch import encode_entry_of
from heliograph.protocol.frame import PulsarFrameDecoder, encode_command, encode_payload_frame
from tests.bench.bench import Bench
from tools.laboratory.foreign import foreign
from tools.laboratory.foreign.loads import CatchUp, Runs
from tools.laboratory.foreign.protocols import kafka, nats, redis
from tools.laboratory.foreign.protocols.connection import Reader
from tools.laboratory.foreign.protocols.pulsar import PERMITS, PulsarReader

pytestmark = pytest.mark.slow

P = ParamSpec("P")


def on_a_loop(test: Callable[P, Coroutine[None, None, None]]) -> Callable[P, None]:
    """Run a test on an event loop of its own."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


class Wire(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = b""

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.sent += b"".join(list_of_data)

    def taken(self) -> bytes:
        sent, self.sent = self.sent, b""
        return sent


async def fed(reader: Reader, wire: Wire, data: bytes, piece: int = 7) -> bytes:
    """Feed bytes in small pieces; return what the reader sent meanwhile."""
    for at in range(0, len(data), piece):
        reader.data_received(data[at : at + piece])
    await asyncio.sleep(0)
    return wire.taken()


async def opened(reader: Reader) -> tuple[Wire, bytes]:
    wire = Wire()
    reader.connection_made(wire)
    await asyncio.sleep(0)
    return wire, wire.taken()


# -- Kafka

FETCH_FROM_0 = bytes.fromhex(
    "0000003b 0001 0004 52454144 0005 62656e6368"  # length, FETCH, version 4, correlation "READ", client "bench"
    "ffffffff 000001f4 00000001 00100000 00"  # no replica, 500 ms, 1 byte at least, 1 MiB at most, uncommitted too
    "00000001 0001 74 00000001 00000000 0000000000000000 00100000"  # topic "t", partition 0, offset 0, 1 MiB
)


def answer(records: bytes, code: int = 0, aborted: int = -1) -> bytes:
    transactions = bytes(16) * max(aborted, 0)
    body = b"READ" + struct.pack(">iih", 0, 1, 1) + b"t" + struct.pack(">iihqqi", 1, 0, code, 9, 9, aborted)
    body += transactions + struct.pack(">i", len(records)) + records
    return struct.pack(">i", len(body)) + body


def test_a_fetch_is_these_bytes() -> None:
    assert kafka.fetch("t", 0) == FETCH_FROM_0


def test_a_batch_of_records_is_these_bytes() -> None:
    batch = kafka.record_batch(b"abc", 1, base_offset=5)
    assert batch[:12] == struct.pack(">qi", 5, len(batch) - 12)
    assert batch[16] == 2
    assert batch[61:] == bytes.fromhex("12 00 00 00 01 06 616263 00")
    assert kafka.count(memoryview(batch)) == 1


@on_a_loop
async def test_kafka_is_read_one_fetch_ahead_and_what_is_cut_off_is_fetched_again() -> None:
    reader = kafka.KafkaReader("t", wanted=5)
    wire, first = await opened(reader)
    assert first == FETCH_FROM_0
    whole, next_one = kafka.record_batch(b"abc", 3), kafka.record_batch(b"abc", 2, base_offset=3)
    assert await fed(reader, wire, answer(whole + next_one[:-1], aborted=2)) == kafka.fetch("t", 3)
    assert (reader.run.messages, reader.ended.done()) == (3, False)
    assert await fed(reader, wire, answer(next_one)) == kafka.fetch("t", 5)  # it was sent before the batch was counted
    assert (reader.run.messages, reader.ended.done()) == (5, True)


@pytest.mark.parametrize("place", [17, 61, -1])
@on_a_loop
async def test_a_damaged_batch_ends_the_measurement(place: int) -> None:
    reader = kafka.KafkaReader("t", wanted=3)
    wire, _ = await opened(reader)
    batch = bytearray(kafka.record_batch(b"abc", 3))
    batch[place] ^= 1
    await fed(reader, wire, answer(bytes(batch)))
    assert isinstance(reader.failed.exception(), RuntimeError)
    assert not reader.ended.done()


@on_a_loop
async def test_an_error_of_kafka_ends_the_measurement() -> None:
    reader = kafka.KafkaReader("t", wanted=3)
    wire, _ = await opened(reader)
    await fed(reader, wire, answer(b"", code=1))
    assert str(reader.failed.exception()) == "Kafka answers with error 1"


# -- Redis


def entry(number: int) -> bytes:
    return b"*2\r\n$3\r\n%d-0\r\n*2\r\n$1\r\nv\r\n$4\r\nab\r\n\r\n" % number  # the value holds the end of a line


@on_a_loop
async def test_redis_is_read_in_ranges_each_after_the_last_entry() -> None:
    reader = redis.RedisReader("s", wanted=3)
    wire, first = await opened(reader)
    assert first == b"*6\r\n$6\r\nXRANGE\r\n$1\r\ns\r\n$1\r\n-\r\n$1\r\n+\r\n$5\r\nCOUNT\r\n$4\r\n1000\r\n"
    sent = await fed(reader, wire, b"*2\r\n" + entry(1) + entry(2))
    assert sent == redis.command(b"XRANGE", b"s", b"(2-0", b"+", b"COUNT", b"1000")
    await fed(reader, wire, b"*1\r\n" + entry(3))
    assert (reader.run.messages, reader.run.bytes, reader.ended.done()) == (3, 12, True)


@pytest.mark.parametrize("said", [b"-ERR no\r\n", b"*0\r\n"])
@on_a_loop
async def test_an_error_or_an_early_end_of_redis_ends_the_measurement(said: bytes) -> None:
    reader = redis.RedisReader("s", wanted=3)
    wire, _ = await opened(reader)
    await fed(reader, wire, said)
    assert isinstance(reader.failed.exception(), RuntimeError)


# -- NATS


@on_a_loop
async def test_nats_is_pulled_with_one_pull_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nats, "PULL_MESSAGES", 2)
    reader = nats.NatsReader("s", wanted=3)
    wire, _ = await opened(reader)
    sent = await fed(reader, wire, b'INFO {"version":"2.10"}\r\n')
    assert b"SUB _IN.> 1\r\nPUB $JS.API.CONSUMER.CREATE.s _IN.create " in sent
    made = b'{"name":"c1"}'
    sent = await fed(reader, wire, b"MSG _IN.create 1 %d\r\n%b\r\n" % (len(made), made))
    pull = b'PUB $JS.API.CONSUMER.MSG.NEXT.s.c1 _IN.pull 11\r\n{"batch":2}\r\n'
    assert sent == pull * 2
    message = b"MSG s 1 $JS.ACK.s.c1.1 4\r\nab\r\n\r\n"
    assert await fed(reader, wire, message) == b""
    assert await fed(reader, wire, message) == pull  # the first pull is delivered
    await fed(reader, wire, b"PING\r\n" + message)
    assert (reader.run.messages, reader.run.bytes, reader.ended.done()) == (3, 12, True)


@on_a_loop
async def test_an_error_of_jetstream_ends_the_measurement() -> None:
    reader = nats.NatsReader("s", wanted=3)
    wire, _ = await opened(reader)
    said = b'{"error":{"code":404}}'
    await fed(reader, wire, b"INFO {}\r\nMSG _IN.create 1 %d\r\n%b\r\n" % (len(said), said))
    assert isinstance(reader.failed.exception(), RuntimeError)


# -- Pulsar


def delivered(messages: int, damage: bool = False) -> bytes:
    section = bytearray(encode_entry_of("p", 0, 1, [b"ab"] * messages))
    section[-1] ^= damage
    command = pb.CommandMessage(consumer_id=1, message_id=pb.MessageIdData(ledger_id=1, entry_id=1))
    return encode_payload_frame(pb.BaseCommand(type=pb.BaseCommand.MESSAGE, message=command), bytes(section))


@on_a_loop
async def test_pulsar_is_read_by_permits_and_entries_are_checked() -> None:
    reader = PulsarReader("t", wanted=PERMITS)
    wire, _ = await opened(reader)
    kinds = pb.BaseCommand
    connected = pb.BaseCommand(type=kinds.CONNECTED, connected=pb.CommandConnected(server_version="s"))
    ((asked, _),) = PulsarFrameDecoder().feed(await fed(reader, wire, encode_command(connected)))
    assert asked.subscribe.initial_position == pb.CommandSubscribe.EARLIEST
    success = pb.BaseCommand(type=kinds.SUCCESS, success=pb.CommandSuccess(request_id=1))
    ((asked, _),) = PulsarFrameDecoder().feed(await fed(reader, wire, encode_command(success)))
    assert asked.flow.message_permits == PERMITS
    half = delivered(PERMITS // 2)
    ((asked, _),) = PulsarFrameDecoder().feed(await fed(reader, wire, half, 1_000))
    assert asked.flow.message_permits == PERMITS // 2
    await fed(reader, wire, half, 1_000)
    assert (reader.run.messages, reader.ended.done()) == (PERMITS, True)
    await fed(reader, wire, delivered(1, damage=True))
    assert "checksum" in str(reader.failed.exception())


# -- rows


def runs(version: str, least: tuple[int, float], client: tuple[int, float] | None = None) -> Runs:
    def read(found: tuple[int, float] | None) -> CatchUp | None:
        if found is None:
            return None
        return CatchUp(MeasuredRun(messages=found[0], bytes=found[0] * 1_000, seconds=2.0), found[1])

    return Runs(version, MeasuredRun(), MeasuredRun(), 0.0, least=read(least), client=read(client))


def test_the_backlog_of_heliograph_is_compared_with_kafka_and_the_others_with_heliograph(tmp_path: Path) -> None:
    bench = Bench(tmp_path, is_quick=True)
    found = {
        "Heliograph": runs("1", (600, 1.2), (300, 0.6)),
        "Redis": runs("7", (150, 0.3)),
        "Kafka": runs("3", (500, 1.0)),
    }
    foreign.add_catch_up(bench, found)
    rows = [(row.name, row.value, row.against.name, row.ratio, row.is_aim_met) for row in bench.figures]
    assert rows == [
        ("catch-up read, least client: Heliograph 1", 300.0, "Kafka", 1.2, True),
        ("catch-up read, least client: Redis 7", 75.0, "Heliograph, least client", 0.25, None),
        ("catch-up read, least client: Kafka 3", 250.0, "Heliograph, least client", 250 / 300, None),
        ("catch-up read, our client: Heliograph 1", 150.0, "Heliograph, least client", 0.5, None),
    ]
    assert bench.figures[0].more == {"server_us_per_message": 2000.0, "mb_per_s": 0.3}


def test_without_kafka_heliograph_has_no_aim(tmp_path: Path) -> None:
    bench = Bench(tmp_path, is_quick=True)
    foreign.add_catch_up(bench, {"Heliograph": runs("1", (600, 1.2))})
    assert [(row.ratio, row.aim) for row in bench.figures] == [(1.0, None)]
