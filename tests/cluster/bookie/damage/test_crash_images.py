"""Power cuts: the disk as it may stand after every sync point of a recorded run, opened again.

Everything acknowledged before the cut is there, every fence that was answered holds, and nothing is there that was
never sent. What was written but not synced is lost, kept, or torn sector by sector.
"""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from heliograph.actors.bookie.bookie import Bookie
from heliograph.actors.bookie.config import BookieConfig
from heliograph.actors.bookie.disk.disk import RealDisk
from heliograph.actors.bookie.journal import loop_commits
from heliograph.actors.bookie.journal.journal import Journal, JournalPorts
from heliograph.actors.bookie.recovery.opening import open_storage, start_journals
from heliograph.actors.bookie.store.index import IndexBatch, LocationIndex
from heliograph.actors.bookie.store.storage import BookieStorage
from heliograph.actors.wire.entry import decode_entry
from heliograph.actors.wire.messages import BookieOp, Flag, Status
from tests.cluster.support.bookie_folders import quick_folder
from tests.cluster.support.bookie_peer import BookiePeer, serving, small_config
from tests.unit.bookie.disks import Image, RecordingDisk

IMAGES_MAX = 80  # of each number of journals
SEED = 20_240_611


@dataclass
class Recording:
    """Log positions at which the client knew of each acknowledgement and fence."""

    disk: RecordingDisk
    sent: dict[tuple[int, int], bytes] = field(default_factory=dict)
    acknowledged: dict[tuple[int, int], int] = field(default_factory=dict)
    fenced: dict[int, int] = field(default_factory=dict)
    loop_syncs: int = 0
    payload_of: Callable[[random.Random, int], bytes] = random.Random.randbytes  # of a size

    async def add(self, peer: BookiePeer, ledger_id: int, entry_id: int, payload: bytes) -> None:
        self.sent[ledger_id, entry_id] = payload
        answer, _ = await peer.add(ledger_id, entry_id, payload)
        assert answer.status is Status.OK
        self.acknowledged[ledger_id, entry_id] = len(self.disk.log)

    async def fence(self, peer: BookiePeer, ledger_id: int) -> None:
        await peer.status(BookieOp.READ_LAC, ledger_id, flags=Flag.FENCE)
        self.fenced[ledger_id] = len(self.disk.log)


async def workload(recording: Recording, peer: BookiePeer, bookie: Bookie, chance: random.Random) -> None:
    """Adds to several ledgers, singly and many at once, fences, checkpoints; several journal files and entry logs."""
    next_entry = dict.fromkeys(range(1, 6), 0)
    for step in range(14):
        adds = []
        for ledger_id in next_entry:
            if ledger_id in recording.fenced:
                continue
            for _ in range(chance.randrange(1, 5)):
                payload = recording.payload_of(chance, chance.randrange(1, 3000))
                adds.append(recording.add(peer, ledger_id, next_entry[ledger_id], payload))
                next_entry[ledger_id] += 1
        await asyncio.gather(*adds)
        if step in {3, 8}:
            await recording.fence(peer, step)  # one of them never stored anything
        if step in {4, 5, 9, 12}:
            await bookie.checkpoint()
    await recording.fence(peer, 77)
    await bookie.checkpoint()  # with an empty write cache
    await recording.fence(peer, 78)


def config_for(home: Path, journals: int) -> BookieConfig:
    """Journals are sealed at every pause, so that power cuts meet seals too."""
    names = ["journal", *(f"journal{number}" for number in range(1, journals))]
    return small_config(home, journal_directories=tuple(home / name for name in names), journal_seal_ms=2)


@contextmanager
def index_copied(recording: Recording, home: Path, snapshots: Path) -> Iterator[None]:
    """Copy RocksDB's own files after each of its synced batches."""
    commit = LocationIndex.commit

    def commit_and_copy(index: LocationIndex, batch: IndexBatch) -> None:
        commit(index, batch)
        copy = snapshots / str(len(recording.disk.log))
        shutil.copytree(home / "data" / "index", copy)
        recording.disk.log.append(("index", copy))

    with patch.object(LocationIndex, "commit", commit_and_copy):
        yield


def record(config: BookieConfig, home: Path, recording: Recording, snapshots: Path) -> None:
    """Run the workload."""

    async def run() -> None:
        async with serving(config, disk=recording.disk) as (bookie, peer):
            await workload(recording, peer, bookie, random.Random(SEED))
            recording.loop_syncs = sum(journal.statistics.loop_syncs for journal in journals_of(bookie))

    with index_copied(recording, home, snapshots):
        asyncio.run(run())


def journals_of(bookie: Bookie) -> list[Journal]:
    assert bookie._opened is not None
    return bookie._opened.storage.journals


def open_image(config: BookieConfig) -> BookieStorage:
    opened = open_storage(RealDisk(), config, [])
    start_journals(opened.storage.disk, opened, JournalPorts(lambda call: None, lambda error: None))
    return opened.storage


def check(storage: BookieStorage, recording: Recording, steps: int) -> None:
    for (ledger_id, entry_id), at in recording.acknowledged.items():
        if at <= steps:
            assert stored(storage, ledger_id, entry_id) == recording.sent[ledger_id, entry_id]  # I1
    for ledger_id, at in recording.fenced.items():
        if at <= steps:
            state = storage.ledgers.get(ledger_id)
            assert state is not None
            assert not state.fence.permits_add(is_recovery=False), f"ledger {ledger_id} was fenced"  # I4
    for ledger_id in storage.ledgers.ids():
        state = storage.ledgers.get(ledger_id)
        assert state is not None
        assert state.fence.is_clear or ledger_id in recording.fenced, f"nobody fenced ledger {ledger_id}"  # I19
        for first, last in storage.spans_on_disk(ledger_id, 0, 1 << 40):
            for entry_id in range(first, last + 1):
                assert stored(storage, ledger_id, entry_id) == recording.sent[ledger_id, entry_id], "none invented"


def stored(storage: BookieStorage, ledger_id: int, entry_id: int) -> bytes | None:
    data = storage.cached(ledger_id, entry_id)
    if data is None:
        found = storage.read_disk(ledger_id, entry_id)
        data = found[0][1] if found else None
    return None if data is None else bytes(decode_entry(data).payload)


def cut_points(log: list[tuple[object, ...]]) -> list[int]:
    """After each sync, and right before the next: so all that follows it is unsynced."""
    syncs = [n for n, step in enumerate(log, 1) if step[0] in {"sync", "sync directory", "index"}]
    return sorted({*syncs, *(n - 1 for n in syncs)})


@pytest.mark.timeout(600)
@pytest.mark.parametrize("journals", [1, 2])
def test_every_cut_keeps_what_was_acknowledged(journals: int) -> None:
    with quick_folder() as folder:
        cut_everywhere(journals, folder / "home", folder / "snapshots")


def test_every_cut_of_a_journal_on_the_event_loop_keeps_what_was_acknowledged(  # I1
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loop_commits, "LIGHT_BATCHES_LEAST", 0)  # from the first batch on
    monkeypatch.setattr(loop_commits, "LOOP_RECORDS_MAX", 100)
    monkeypatch.setattr(loop_commits, "LOOP_BYTES_MAX", 1 << 30)
    with quick_folder() as folder:
        recording = cut_everywhere(1, folder / "home", folder / "snapshots", journal_loop_sync_us=1_000_000)
    assert recording.loop_syncs


def cut_everywhere(
    journals: int,
    home: Path,
    snapshots: Path,
    payload_of: Callable[[random.Random, int], bytes] = random.Random.randbytes,
    images: int = IMAGES_MAX,
    **changes: Any,
) -> Recording:
    config = replace(config_for(home, journals), **changes)
    recording = Recording(RecordingDisk(), payload_of=payload_of)
    record(config, home, recording, snapshots)
    log = recording.disk.log
    served_from = next(n for n, step in enumerate(log) if step[0] == "index")
    points = [n for n in cut_points(log) if n > served_from]
    assert len(points) > 60, "the run had many sync points"
    chance = random.Random(SEED)
    points = sorted(chance.sample(points, min(len(points), images)))
    for number, steps in enumerate(points):
        mode = ("torn", "lost", "kept", "torn")[number % 4]
        image = Image(log, steps, mode, chance)
        image.write_to(home)
        assert image.index_snapshot is not None
        shutil.copytree(image.index_snapshot, home / "data" / "index")
        storage = open_image(config)
        try:
            check(storage, recording, steps)
        except BaseException as error:
            error.add_note(f"cut after step {steps} of {len(log)}, unsynced writes {mode}")
            raise
        finally:
            storage.close()
    return recording
