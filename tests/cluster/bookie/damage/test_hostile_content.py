"""Payloads that are the project's own records: what a client stores is never taken for what the bookie wrote.

Journal files are used again with their old content, so the blocks behind the valid end of one hold what clients sent
earlier. A client can compute every field of a record but the number of the file's use.
"""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from heliograph.actors.bookie.bookie import Bookie
from heliograph.actors.bookie.disk.blocks import BLOCK_BYTES
from heliograph.actors.bookie.disk.disk import RealDisk
from heliograph.actors.bookie.journal import files
from heliograph.actors.bookie.journal.files import used_path
from heliograph.actors.bookie.store.data_directory import DataDirectory
from heliograph.actors.bookie.store.entry_log import HEADER_BYTES, log_ids, log_path
from heliograph.actors.errors import JournalCorruptError
from heliograph.actors.wire.entry import ENTRY_HEADER_BYTES, decode_entry
from heliograph.actors.wire.messages import BookieOp, Status
from tests.cluster.bookie.damage import test_adopted_files, test_kept_logs, test_single_write
from tests.cluster.bookie.damage.test_adopted_files import IMAGES_MAX, ignoring_the_tag
from tests.cluster.bookie.damage.test_crash_images import cut_everywhere
from tests.cluster.support.bookie_folders import quick_folder
from tests.cluster.support.bookie_peer import BookiePeer, entry_bytes, serving, small_config
from tests.fuzz.formats.table import own_bytes
from tests.hostile_bytes import FORGED, RECORD_BYTES, entry_map, journal_batch, journal_records, mixture

SEED = 20_261_128
ENTRIES = 60
PAYLOAD_BYTES = 13_000  # with its headers four blocks, so that a file of 16 blocks holds three after its header
ORDINARY = 4  # entries behind them, the last of which begins another file
KNOWN_TAG = 1 << 50  # of a bookie whose tags are no secret
SETTINGS: dict[str, Any] = {"single_write_bytes": 0}


def payload(entry_id: int) -> bytes:
    soon = range(entry_id // 3 + 2, entry_id // 3 + 8)  # files count up from 1
    return journal_records(random.Random(SEED + entry_id), PAYLOAD_BYTES, (*soon, KNOWN_TAG))


async def store_all(bookie: Bookie, peer: BookiePeer) -> None:
    """One producer sends hostile payloads while files are recycled, and then ordinary ones."""
    for entry_id in range(ENTRIES):
        assert (await peer.add(1, entry_id, payload(entry_id)))[0].status is Status.OK
        if entry_id % 3 == 2:
            await bookie.checkpoint()
    for entry_id in range(ORDINARY):
        assert (await peer.add(2, entry_id, b"ordinary"))[0].status is Status.OK


async def look(peer: BookiePeer) -> None:
    for entry_id in range(ENTRIES):
        answer, body = await peer.call(BookieOp.READ, 1, entry_id)
        assert answer.status is Status.OK
        assert decode_entry(body).payload == payload(entry_id)
    for entry_id in range(ORDINARY):
        answer, body = await peer.call(BookieOp.READ, 2, entry_id)
        assert decode_entry(body).payload == b"ordinary"


async def stored(home: Path, killed: Path) -> None:
    """Store everything, copy what a kill leaves, and stop in order."""
    async with serving(small_config(home, **SETTINGS)) as (bookie, peer):
        await store_all(bookie, peer)
        shutil.copytree(home, killed, ignore=shutil.ignore_patterns("LOCK", "lock"))


async def start(home: Path) -> None:
    async with serving(small_config(home, **SETTINGS)) as (_, peer):
        await look(peer)


def test_a_bookie_starts_after_a_stop_and_after_a_kill_whatever_it_stored(tmp_path: Path) -> None:  # I19
    asyncio.run(stored(tmp_path / "home", tmp_path / "killed"))
    asyncio.run(start(tmp_path / "home"))
    asyncio.run(start(tmp_path / "killed"))


@contextmanager
def known_tags() -> Iterator[None]:
    """Every use of a file has the same tag."""
    with patch.object(files, "secret_tag", lambda: KNOWN_TAG.to_bytes(8, "big")):
        yield


@pytest.mark.parametrize("sabotage", [known_tags, ignoring_the_tag])
def test_tags_that_are_known_or_not_checked_are_caught(
    tmp_path: Path, sabotage: Callable[[], AbstractContextManager[None]]
) -> None:  # I19
    with sabotage():
        asyncio.run(stored(tmp_path / "home", tmp_path / "killed"))
        with pytest.raises(JournalCorruptError, match="proves that it was once whole"):
            asyncio.run(start(tmp_path / "killed"))


def mixture_of_size(chance: random.Random, size: int) -> bytes:
    """Payloads of what a bookie writes, and of the records, headers, frames and files of every other format."""
    return mixture(chance, size, (*range(1, 40), 0, 1 << 63)) if chance.random() < 0.7 else own_bytes(chance, size)


def large_mixture(chance: random.Random, size: int) -> bytes:
    return mixture_of_size(chance, 4 * size)


@pytest.mark.parametrize("images", [20, pytest.param(200, marks=pytest.mark.full)])
def test_every_power_cut_of_hostile_payloads_keeps_them_and_invents_nothing(images: int) -> None:  # I1, I4, I19
    with quick_folder() as folder:
        cut_everywhere(1, folder / "home", folder / "snapshots", large_mixture, images)


def test_every_power_cut_of_hostile_payloads_that_are_written_once() -> None:  # I1, I19
    with quick_folder() as folder:
        home = folder / "home"
        config = test_single_write.config_for(home)
        test_single_write.cut_everywhere(config, home, folder / "snapshots", IMAGES_MAX, payload_of=mixture_of_size)


def test_every_power_cut_of_hostile_payloads_over_dead_files(monkeypatch: pytest.MonkeyPatch) -> None:  # I1, I19
    def of(ledger_id: int, entry_id: int, size: int = test_kept_logs.LARGE) -> bytes:
        return mixture_of_size(random.Random(ledger_id << 32 | entry_id), size)

    monkeypatch.setattr(test_adopted_files, "payload", of)
    test_adopted_files.cut_everywhere(IMAGES_MAX)


@pytest.mark.parametrize("usage", [{}, {5: 40}, {-3: 40, -1: 2}])
def test_a_map_at_the_end_of_a_payload_does_not_say_what_a_log_holds(
    tmp_path: Path, usage: dict[int, int]
) -> None:  # I19
    """A log that a kill left has no map, and ends with the payload of its last entry."""
    lead = HEADER_BYTES + 4 + ENTRY_HEADER_BYTES  # of the file, the record and the entry
    content = entry_map(usage, lead, BLOCK_BYTES - lead)
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
    return journal_batch(next_batch.file_id, next_batch.sequence, next_batch.batch)


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


async def test_no_record_within_a_payload_is_applied(tmp_path: Path) -> None:  # I19
    """The counters of the forged batch are right: they are taken from a run of the same steps."""
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
