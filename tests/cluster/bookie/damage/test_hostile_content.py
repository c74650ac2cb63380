"""Payloads that are the project's own records: what a client stores is never taken for what the bookie wrote.

Journal files are used again with their old content, so the blocks behind the valid end of one hold what clients sent
earlier. A client can compute every field of a record but the number of the file's use.
"""

from __future__ import annotations

import asyncio
import random
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from heliograph.actors.bookie.bookie import Bookie
from heliograph.actors.bookie.disk.blocks import BLOCK_BYTES
from heliograph.actors.bookie.disk.disk import RealDisk
from heliograph.actors.bookie.journal.files import used_path
from heliograph.actors.bookie.journal.format import Kind, encode_fence, encode_lac
from heliograph.actors.bookie.store.data_directory import DataDirectory
from heliograph.actors.bookie.store.entry_log import HEADER_BYTES, log_ids, log_path
from heliograph.actors.wire.entry import ENTRY_HEADER_BYTES, decode_entry
from heliograph.actors.wire.messages import BookieOp, Status
from tests.cluster.support.bookie_peer import BookiePeer, entry_bytes, serving, small_config
from tests.hostile_bytes import RECORD_BYTES, entry_map, journal_record, journal_records

SEED = 20_261_128
ENTRIES = 60
PAYLOAD_BYTES = 13_000  # with its headers four blocks, so that a file of 16 blocks holds three after its header
FORGED = 1_000  # and the two after it: ledgers that no client wrote to
SETTINGS: dict[str, Any] = {"single_write_bytes": 0}


def payload(entry_id: int) -> bytes:
    soon = range(entry_id // 3 + 2, entry_id // 3 + 8)  # files count up from 1
    return journal_records(random.Random(SEED + entry_id), PAYLOAD_BYTES, soon)


async def store_all(bookie: Bookie, peer: BookiePeer) -> None:
    """One producer sends hostile payloads while files are recycled, and then ordinary ones."""
    for entry_id in range(ENTRIES):
        assert (await peer.add(1, entry_id, payload(entry_id)))[0].status is Status.OK
        if entry_id % 3 == 2:
            await bookie.checkpoint()
    for entry_id in range(3):
        assert (await peer.add(2, entry_id, b"ordinary"))[0].status is Status.OK


async def look(peer: BookiePeer) -> None:
    for entry_id in range(ENTRIES):
        answer, body = await peer.call(BookieOp.READ, 1, entry_id)
        assert answer.status is Status.OK
        assert decode_entry(body).payload == payload(entry_id)
    for entry_id in range(3):
        answer, body = await peer.call(BookieOp.READ, 2, entry_id)
        assert decode_entry(body).payload == b"ordinary"


def test_a_bookie_starts_after_an_orderly_stop_whatever_it_stored(tmp_path: Path) -> None:  # I19
    async def scenario() -> None:
        async with serving(small_config(tmp_path, **SETTINGS)) as (bookie, peer):
            await store_all(bookie, peer)
        async with serving(small_config(tmp_path, **SETTINGS)) as (_, peer):
            await look(peer)

    asyncio.run(scenario())


@pytest.mark.parametrize("usage", [{}, {5: 40}, {-3: 40, -1: 2}])
def test_a_map_at_the_end_of_a_payload_does_not_say_what_a_log_holds(
    tmp_path: Path, usage: dict[int, int]
) -> None:  # I19
    """A log that a kill left has no map, and ends with the payload of its last entry."""
    lead = HEADER_BYTES + 4 + ENTRY_HEADER_BYTES  # of the file, the record and the entry
    content = entry_map(usage, lead, bytes(BLOCK_BYTES - lead))
    directory = DataDirectory(RealDisk(), tmp_path, 1 << 20, 1 << 20)
    directory.flush([(7, [(0, entry_bytes(7, 0, content))])], [], 1)
    (log_id,) = log_ids(RealDisk(), tmp_path)
    assert log_path(tmp_path, log_id).stat().st_size == BLOCK_BYTES
    directory.writer.abandon()
    assert directory.ledgers_in(log_id) == [7]
    directory.close()


@dataclass(frozen=True)
class Counters:
    """What the next batch of a journal is numbered, and where it begins."""

    file_id: int
    offset: int
    batch: int
    sequence: int


def forged_batch(next_batch: Counters) -> bytes:
    """Return a whole batch of one block: a fence, a LAC and an entry that nobody sent to this bookie."""
    records = [
        (Kind.FENCE, encode_fence(FORGED)),
        (Kind.LAC, encode_lac(FORGED + 1, 7)),
        (Kind.ENTRY, entry_bytes(FORGED + 2, 0, b"forged")),
    ]
    numbers = (next_batch.file_id, next_batch.batch)
    data = b"".join(
        journal_record(numbers[0], next_batch.sequence + place, numbers[1], kind, content)
        for place, (kind, content) in enumerate(records)
    )
    padding = bytes(BLOCK_BYTES - len(data) - RECORD_BYTES)
    return data + journal_record(numbers[0], next_batch.sequence + len(records), numbers[1], Kind.END, padding)


async def killed_after(home: Path, copy: Path, content: bytes) -> Counters:
    """Store payloads that journal files hold when they are used again, and copy what a kill then leaves."""
    async with serving(small_config(home, **SETTINGS)) as (bookie, peer):
        for entry_id in range(ENTRIES):
            assert (await peer.add(1, entry_id, content))[0].status is Status.OK
            if entry_id % 3 == 2:
                await bookie.checkpoint()
        for entry_id in range(4):  # the last one is the first batch of a file
            assert (await peer.add(2, entry_id, b"ordinary"))[0].status is Status.OK
        shutil.copytree(home, copy, ignore=shutil.ignore_patterns("LOCK", "lock"))
        assert bookie._opened is not None
        (journal,) = bookie._opened.storage.journals
        return Counters(journal._file_id, journal._offset, journal._batch, journal._sequence)


def test_no_record_within_a_payload_is_applied(tmp_path: Path) -> None:  # I19
    """The counters of the forged batch are right: they are taken from a run of the same steps."""

    async def scenario() -> None:
        lead = BLOCK_BYTES - RECORD_BYTES - ENTRY_HEADER_BYTES
        plain = await killed_after(tmp_path / "a", tmp_path / "b", bytes(lead + 2 * BLOCK_BYTES))
        content = bytes(lead) + 2 * forged_batch(plain)
        found = await killed_after(tmp_path / "c", tmp_path / "d", content)
        assert found == plain
        path = used_path(tmp_path / "d" / "journal", found.file_id)
        assert path.read_bytes()[found.offset :].startswith(forged_batch(plain)), "it lies right behind the valid end"
        async with serving(small_config(tmp_path / "d", **SETTINGS)) as (_, peer):
            assert (await peer.add(FORGED, 0, b"taken"))[0].status is Status.OK, "no fence was made up"
            for ledger_id in (FORGED + 1, FORGED + 2):
                assert await peer.status(BookieOp.READ, ledger_id, 0) is Status.NO_LEDGER

    asyncio.run(scenario())
