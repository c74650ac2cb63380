"""Runs of entries in journal files: what the index holds names each entry's place."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from heliograph.actors.bookie.journal.journal import JournalNote
from heliograph.actors.bookie.store.entry_log import KEPT_ID_LEAST, RUN_ENTRIES_MAX, EntryRun
from heliograph.actors.bookie.store.index import IndexBatch, LocationIndex
from heliograph.actors.bookie.store.kept_log import LENGTH_BYTES, kept_runs
from heliograph.actors.bookie.store.write_cache import CacheHalf, WriteCache

pytestmark = pytest.mark.slow

LEDGERS = (1, 2, 3)


def half_with(chance: random.Random, entries: int, gap_bytes_max: int) -> CacheHalf:
    """A half whose entries came in any order, to several journal files, with holes and entries of unknown place."""
    cache = WriteCache(1 << 40)
    half = cache.active
    file_id, offset = 5, 4096
    for entry_id in range(entries):
        for ledger_id in LEDGERS:
            if chance.random() < 0.05:
                continue
            data = chance.randbytes(chance.randrange(1, 50))
            cache.put(ledger_id, entry_id, data)
            if chance.random() < 0.02:
                file_id, offset = file_id + 1, 4096
            offset += 32 + chance.randrange(gap_bytes_max)
            if chance.random() < 0.95:
                place = offset if chance.random() < 0.95 else offset - 3000  # added out of order
                half.places[ledger_id, entry_id] = JournalNote(data, file_id, place)
            offset += len(data)
    return half


def places_of(runs: list[EntryRun]) -> dict[tuple[int, int], tuple[int, int, int]]:
    return {
        (run.ledger_id, run.first_entry_id + number): (
            run.log_id % KEPT_ID_LEAST,
            run.offset_of(number) + LENGTH_BYTES,
            size - LENGTH_BYTES,
        )
        for run in runs
        for number, size in enumerate(run.sizes)
    }


def test_the_index_names_the_place_of_each_entry(tmp_path: Path) -> None:  # I1
    chance = random.Random(7)
    for number, gap_bytes_max in enumerate((1, 100, 1 << 34)):
        half = half_with(chance, 3 * RUN_ENTRIES_MAX, gap_bytes_max)
        expected = {key: (note.file_id, note.offset, len(note.payload)) for key, note in half.places.items()}
        found = kept_runs(half, LEDGERS)
        runs = [
            EntryRun(run.ledger_id, run.first_entry_id, KEPT_ID_LEAST + file_id, run.offset, run.sizes, run.gaps)
            for file_id, its_runs in found.items()
            for run in its_runs
        ]
        assert places_of(runs) == expected
        index = LocationIndex(tmp_path / str(number), 1 << 20)
        index.commit(IndexBatch(runs=runs))
        assert places_of(list(index.all_runs())) == expected
        for (ledger_id, entry_id), place in expected.items():
            (run,) = index.find(ledger_id, entry_id)
            assert places_of([run])[ledger_id, entry_id] == place
        index.close()


def test_a_place_of_an_earlier_copy_does_not_count() -> None:
    cache = WriteCache(1 << 40)
    half = cache.active
    cache.put(1, 0, b"first copy")
    half.places[1, 0] = JournalNote(half.ledgers[1][0], 5, 4128)
    assert kept_runs(half, [1])
    cache.put(1, 0, b"later copy")
    assert not kept_runs(half, [1])
    assert dict(half.sorted([1], {(1, 1)})) == {1: [(0, b"later copy")]}
