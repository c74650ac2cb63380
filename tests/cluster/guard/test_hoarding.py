"""150 strangers with unfinished frames of the largest size, and as many that drip, at each listener.

The server's memory stays within its budget, and a client beside them finishes what it sends.
"""

from __future__ import annotations

import asyncio
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from heliograph.actors.wire.frame import FRAME_BYTES_MAX as BOOKIE_FRAME_BYTES_MAX
from heliograph.actors.wire.frame import encode_request
from heliograph.actors.wire.messages import PROTOCOL_VERSION, BookieOp, BookieRequest, Status
from heliograph.metadata.backends.embedded import protocol as embedded
from heliograph.metadata.backends.embedded.client import EmbeddedStore
from heliograph.metadata.endpoint.limits import FRAME_BYTES_MAX as ENDPOINT_FRAME_BYTES_MAX
from heliograph.metadata.endpoint.wire import jute
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.frame import MESSAGE_BYTES_MAX, encode_command
from tests.bench.process import Child, memory_bytes
from tests.cluster.guard.host import BUDGET_BYTES, UNFINISHED_MS
from tests.cluster.guard.strangers import Strangers
from tests.cluster.support.bookie_peer import BookiePeer
from tests.cluster.support.raw_peer import RawPeer
from tests.contracts.endpoint.wire.client import WireClient

STRANGERS = 150
SENDS = 10
PAYLOAD_BYTES = 700_000  # of each send; it comes in several reads
OWN_BYTES = 64 << 20  # that the server may use for what the client sends: caches of a broker and three bookies
HOARD_SECONDS_MAX = 60.0  # far above what is needed, for a busy machine
SESSION_TIMEOUT_MS = 60_000


@dataclass
class Listener:
    """How to talk to one of the servers."""

    greeting: bytes
    frame_bytes: int
    head: Callable[[int], bytes]
    send: Callable[[str], None]  # a client that sends SENDS payloads and awaits the answers


def send_to_broker(address: str) -> None:
    topic = "persistent://public/default/beside-strangers"
    with RawPeer(f"pulsar://{address}") as peer:
        assert peer.producer(topic).type == pb.BaseCommand.PRODUCER_SUCCESS
        for number in range(SENDS):
            peer.publish(1, number, bytes(PAYLOAD_BYTES))
            while peer.answer(pb.BaseCommand.SEND_RECEIPT, pb.BaseCommand.PONG).type == pb.BaseCommand.PONG:
                pass  # a keep-alive, as the socket was not read for a while


def send_to_bookie(address: str) -> None:
    async def work() -> None:
        peer = await BookiePeer.connect(address)
        for number in range(SENDS):
            answer, _ = await peer.add(7, number, bytes(PAYLOAD_BYTES))
            assert answer.status is Status.OK
        peer.close()

    asyncio.run(work())


def send_to_metadata(address: str) -> None:
    async def work() -> None:
        host, _, port = address.rpartition(":")
        store = await EmbeddedStore.connect(host, int(port), session_timeout_ms=SESSION_TIMEOUT_MS)
        for number in range(SENDS):
            await store.create(f"/{number}", bytes(PAYLOAD_BYTES))
        await store.close()

    asyncio.run(work())


def send_to_endpoint(address: str) -> None:
    async def work() -> None:
        client = await WireClient.begin(address, timeout_ms=SESSION_TIMEOUT_MS)
        for number in range(SENDS):
            await client.create(f"/{number}", bytes(PAYLOAD_BYTES))
        await client.close()

    asyncio.run(work())


def connect_of_zookeeper() -> bytes:
    body = jute.int32(0) + jute.int64(0) + jute.int32(SESSION_TIMEOUT_MS) + jute.int64(0) + jute.buffer(bytes(16))
    return jute.int32(len(body)) + body


LISTENERS = {
    "bookie": Listener(
        encode_request(BookieRequest(BookieOp.HELLO, 1, ledger_id=PROTOCOL_VERSION)),
        BOOKIE_FRAME_BYTES_MAX,
        lambda size: struct.pack(">IHI", size, 0, 0),
        send_to_bookie,
    ),
    "broker": Listener(
        encode_command(
            pb.BaseCommand(
                type=pb.BaseCommand.CONNECT, connect=pb.CommandConnect(client_version="x", protocol_version=19)
            )
        ),
        MESSAGE_BYTES_MAX,
        lambda size: struct.pack(">I", size),
        send_to_broker,
    ),
    "endpoint": Listener(
        connect_of_zookeeper(), ENDPOINT_FRAME_BYTES_MAX, lambda size: struct.pack(">I", size), send_to_endpoint
    ),
    "metadata": Listener(
        embedded.encode_frame(
            [1, embedded.EmbeddedOp.HELLO, embedded.MAGIC, embedded.PROTOCOL_VERSION, SESSION_TIMEOUT_MS, 0, ""]
        ),
        embedded.FRAME_BYTES_MAX,
        lambda size: struct.pack(">I", size),
        send_to_metadata,
    ),
}


@pytest.fixture(params=LISTENERS)
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def server(kind: str, tmp_path: Path) -> Iterator[tuple[Child, str]]:
    with Child("tests.cluster.guard.host", kind, tmp_path) as child:
        yield child, child.said()


@contextmanager
def measured(child: Child) -> Iterator[list[int]]:
    """Note how far above its present size the memory of a process comes, in bytes."""
    before, peak, is_over = memory_bytes(child.pid), [0], threading.Event()

    def watch() -> None:
        while not is_over.wait(0.02):
            peak[0] = max(peak[0], memory_bytes(child.pid) - before)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        is_over.set()
        thread.join()


def content_of(listener: Listener) -> bytes:
    head = listener.head(listener.frame_bytes)
    return head + bytes(listener.frame_bytes + 4 - len(head) - 1)  # all lengths count from behind their own 4 bytes


def test_hoarders_get_the_budget_and_no_more_and_a_client_beside_them_is_served(
    kind: str, server: tuple[Child, str]
) -> None:
    child, address = server
    listener = LISTENERS[kind]
    strangers = Strangers(address, STRANGERS, listener.greeting, content_of(listener))
    with measured(child) as peak, strangers:
        begun = time.monotonic()
        while peak[0] < BUDGET_BYTES // 4:  # the hoarding has begun
            assert time.monotonic() - begun < HOARD_SECONDS_MAX
            time.sleep(0.01)
        listener.send(address)
        assert time.monotonic() - begun < HOARD_SECONDS_MAX
        print(f"{kind}: {peak[0] >> 20} MiB, {strangers.open} open, {time.monotonic() - begun:.1f} s")
        while strangers.open == STRANGERS:  # those that stalled are closed
            assert time.monotonic() - begun < HOARD_SECONDS_MAX
            time.sleep(0.01)
    assert peak[0] < BUDGET_BYTES + OWN_BYTES


def test_dripping_strangers_are_closed_and_hold_next_to_nothing(kind: str, server: tuple[Child, str]) -> None:
    child, address = server
    listener = LISTENERS[kind]
    strangers = Strangers(address, STRANGERS, listener.greeting, content_of(listener), pause_seconds=0.05)
    begun = time.monotonic()  # before their frames: how long they connect does not matter
    with measured(child) as peak, strangers:
        listener.send(address)
        while strangers.open:
            assert time.monotonic() - begun < 2 * HOARD_SECONDS_MAX, f"{strangers.open} are still open"
            time.sleep(0.05)
        assert time.monotonic() - begun >= UNFINISHED_MS / 1000 - 1
    assert peak[0] < OWN_BYTES
