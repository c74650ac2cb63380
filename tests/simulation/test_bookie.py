"""Tests of the world of bookies: its disk, clean seeds."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random
from typing import Any

import pytest

from heliograph.actors.errors import BookieStorageError, DiskPoisonedError
from tests.simulation.bookie.disk import SECTOR_BYTES, Platter, SimulatedDisk
from tests.simulation.bookie.faults import BOOKIE_KINDS
from tests.simulation.bookie.run import BookieRun
from tests.simulation.campaign import run_plan
from tests.simulation.profile import BOOKIE, Plan

SEEDS = int(os.environ.get("HELIOGRAPH_SIM_SEEDS", "50")) // 2
SEEDS_PER_TEST = 5
HOME, OTHER = Path("/one"), Path("/other")
CUTS = 60  # power cuts that a test of chances tries


@pytest.mark.parametrize("start", range(0, SEEDS, SEEDS_PER_TEST))
def test_seeds_are_clean(start: int) -> None:
    failures = []
    for seed in range(start, min(start + SEEDS_PER_TEST, SEEDS)):
        report = run_plan(Plan(seed, world=BOOKIE))
        if report.failure:
            failures.append(f"python -m tests.simulation --world bookie --seed {seed}: {report.failure}")
    assert not failures, "\n".join(failures)


def test_faults_that_a_plan_leaves_out_do_not_happen() -> None:
    names = frozenset(kind.name for kind in BOOKIE_KINDS)
    bare = BookieRun(Plan(5, world=BOOKIE, without=names)).execute()
    assert bare.failure == ""
    assert not names.intersection(bare.counts)
    assert bare.confirmed > 0


# The disk


def disk_with(seed: int = 1) -> SimulatedDisk:
    disk = SimulatedDisk(Platter(Random(seed)))
    for directory in (HOME, OTHER):
        disk.make_directory(directory)
    return disk


def test_what_was_synced_outlives_a_power_cut_and_the_rest_may_be_torn() -> None:
    seen: set[Any] = set()
    for seed in range(CUTS):
        disk = disk_with(seed)
        file = disk.open(HOME / "file", create=True)
        file.write_at(0, b"a" * 4 * SECTOR_BYTES)
        file.sync()
        disk.sync_directory(HOME)
        file.write_at(SECTOR_BYTES, b"b" * 2 * SECTOR_BYTES)
        content = disk.platter.after_power_cut().names[HOME / "file"].content
        sectors = bytes(content[::SECTOR_BYTES])
        assert (sectors[:1], sectors[3:]) == (b"a", b"a")
        seen.add(sectors)
    assert seen == {b"aaaa", b"abaa", b"aaba", b"abba"}


def test_names_need_a_sync_of_their_directory() -> None:
    seen: set[Any] = set()
    for seed in range(CUTS):
        disk = disk_with(seed)
        disk.open(HOME / "first", create=True)
        disk.sync_directory(HOME)
        disk.rename(HOME / "first", HOME / "second")
        disk.link(HOME / "second", OTHER / "third")
        seen.add(tuple(str(path) for path in sorted(disk.platter.after_power_cut().names)))
    assert ("/one/first",) in seen
    assert ("/one/second",) in seen
    assert ("/one/second", "/other/third") in seen
    assert all(sum(name.startswith("/one") for name in names) == 1 for names in seen), "a rename is done or not"


def test_a_process_that_is_killed_loses_nothing_and_a_failed_sync_ends_all_writes() -> None:
    disk = disk_with()
    file = disk.open(HOME / "file", create=True)
    file.write_at(0, b"content")
    assert SimulatedDisk(disk.platter).open(HOME / "file").read_at(0, 9) == b"content"
    disk.fails_next_sync = True
    with pytest.raises(DiskPoisonedError):
        file.sync()
    with pytest.raises(DiskPoisonedError):
        file.write_at(0, b"more")


def test_a_full_disk_lets_no_file_grow() -> None:
    disk = disk_with()
    file = disk.open(HOME / "file", create=True)
    file.write_at(0, b"content")
    disk.is_full = True
    file.write_at(0, b"CONTENT")
    with pytest.raises(BookieStorageError):
        file.write_at(1, b"CONTENT")
    with pytest.raises(BookieStorageError):
        file.allocate(8)


def test_the_power_goes_within_an_operation() -> None:
    seen: set[Any] = set()
    for seed in range(CUTS):
        disk = disk_with(seed)
        file = disk.open(HOME / "file", create=True)
        disk.sync_directory(HOME)
        disk.cut_in = 2
        file.write_at(0, b"content")
        assert disk.after_cut is None
        file.sync()
        assert disk.after_cut is not None
        seen.add(bytes(disk.after_cut.names[HOME / "file"].content))
        file.write_at(0, b"nothing")
    assert {b"", b"content"} <= seen
    assert b"nothing" not in seen
