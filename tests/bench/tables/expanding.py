"""Ledgers of batches that are small when stored and large when read: topics of many gigabytes on little disk."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import uvloop

from heliograph.actors.errors import BookieError
from heliograph.actors.wire.entry import encode_entry
from heliograph.actors.wire.messages import Answer, BookieOp, BookieRequest, Status
from heliograph.metadata.model import Segment
from heliograph.pipelines.planning.ranges import LedgerRange
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.batch import encode_batch, heads_of
from tests.bench.bookie.host import BOOKIE_ID
from tests.bench.bookie.load import TIMEOUT_MS, connected
from tests.bench.process import Child

VALUE_BYTES = 1 << 10
MESSAGES = 4_000  # of a batch, which holds 4 MB once it is unpacked
IN_FLIGHT = 64
TOPIC = "persistent://public/default/expanding"


@contextlib.contextmanager
def expanding_ledgers(directory: Path, sizes: Sequence[int]) -> Iterator[list[LedgerRange]]:
    """Run a bookie with one ledger for each of the sizes, in bytes of values, and yield their ranges."""
    directory.mkdir()
    with Child("tests.bench.bookie.host", directory) as bookie:
        address = bookie.said()
        yield [uvloop.run(_fill(address, ledger_id, size)) for ledger_id, size in enumerate(sizes, start=1)]


async def _fill(address: str, ledger_id: int, size: int) -> LedgerRange:
    batches = max(1, size // (VALUE_BYTES * MESSAGES))
    places = asyncio.Semaphore(IN_FLIGHT)
    failed: list[Answer | BookieError] = []

    def answered(_: object, answer: Answer | BookieError, body: memoryview) -> None:
        if not isinstance(answer, Answer) or answer.status is not Status.OK:
            failed.append(answer)
        places.release()

    stored = 0
    with connected(address) as connection:
        for entry_id in range(batches):
            await places.acquire()
            payload = _batch(entry_id % 256)
            stored += len(payload)
            body = encode_entry(ledger_id, entry_id, entry_id - 1, stored, payload)
            request = BookieRequest(BookieOp.ADD, 0, ledger_id, entry_id)
            connection.request(request, body, answered, None, TIMEOUT_MS)
        for _ in range(IN_FLIGHT):
            await places.acquire()
    assert not failed, f"an add failed: {failed[0]}"
    segments = (Segment(0, (BOOKIE_ID,)),)
    return LedgerRange(TOPIC, -1, ledger_id, 0, batches - 1, 1, 1, segments, ((BOOKIE_ID, address),), size=stored)


_packed: dict[int, bytes] = {}  # 256 batches of about a kilobyte


def _batch(number: int) -> bytes:
    """Return a batch whose values all consist of one byte."""
    if number not in _packed:
        values = [bytes([number]) * VALUE_BYTES] * MESSAGES
        metadata = pb.MessageMetadata(producer_name="expanding", sequence_id=0, publish_time=1_700_000_000_000)
        _packed[number] = encode_batch(metadata, heads_of(values, None), values, pb.ZSTD)
    return _packed[number]
