"""The record of the report: its bytes, its bounds, and what readers make of a writer that is silent."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from heliograph.base.clock import wall_ms
from heliograph.metadata import codec, paths
from heliograph.metadata.backends.memory import MemoryServer
from heliograph.metadata.codec import encode
from heliograph.metadata.errors import RecordError
from heliograph.metadata.model import BookieRegistration
from heliograph.metadata.operator_records import ClusterReport, PartReport, Roster, RosterPart
from heliograph.metadata.recipes.cluster_init import initialise
from heliograph.metadata.store import MetadataStore
from heliograph.report.record import (
    NOTE_LENGTH_MAX,
    NOTES_MAX,
    PARTS_MAX,
    SILENT_SECONDS,
    OperatorReport,
    _unseen,
    current_report,
    load_report,
    save_report,
    with_since,
)

PART = PartReport("bookie-1", "bookie", "ALIVE", address="h:1", pid=7, restarts=1, formats={"journal": 3})
HEALTHY = ClusterReport("operator on a", 1, parts=(PART,), underreplicated_ledgers=0)


async def prepared() -> MetadataStore:
    store = MemoryServer().open_session()
    await initialise(store)
    return store


def test_a_record_is_read_as_it_was_written_and_damage_is_refused() -> None:
    value = codec.encode(HEALTHY)
    assert codec.decode(ClusterReport, value) == HEALTHY
    with pytest.raises(RecordError, match="checksum"):
        codec.decode(ClusterReport, value.replace(b"bookie-1", b"bookie-2"))


async def test_a_record_has_a_bound_and_keeps_the_parts_that_are_not_well() -> None:
    store = await prepared()
    parts = [replace(PART, name=f"bookie-{number}") for number in range(3 * PARTS_MAX)]
    parts[-1] = replace(parts[-1], note="x" * 10_000)
    await save_report(store, replace(HEALTHY, parts=tuple(parts), notes=("y" * 10_000,) * 1_000))
    found = await load_report(store)
    assert found is not None
    assert len(found.parts) == PARTS_MAX
    assert (found.parts[-1].name, len(found.parts[-1].note)) == (f"bookie-{3 * PARTS_MAX - 1}", NOTE_LENGTH_MAX)
    assert len(found.notes) == NOTES_MAX + 2
    assert found.notes[-2:] == (f"{1_000 - NOTES_MAX} more notes", f"{2 * PARTS_MAX} more parts are not shown")


@pytest.mark.parametrize("letter", ["x", "\u00e4"])
async def test_notes_are_cut_where_a_record_has_no_room_for_all_of_them(letter: str) -> None:
    store = await prepared()
    formats = dict.fromkeys(("journal", "entry log", "index", "cookie", "records", "bookie protocol"), 3)
    part = replace(PART, note=letter * 600, home="10.0.0.1", version="0.1.0", installed="0.1.0", formats=formats)
    parts = [replace(part, name=f"bookie-{number}") for number in range(PARTS_MAX)]
    full = replace(HEALTHY, parts=tuple(parts), notes=(letter * 600,) * NOTES_MAX)
    await save_report(store, full)
    found = await load_report(store)
    assert found is not None
    assert len(found.parts) == PARTS_MAX
    assert 75 <= len(found.parts[0].note) < NOTE_LENGTH_MAX
    assert {len(note) for note in found.notes} == {len(found.parts[0].note)}


async def test_the_latest_report_is_what_readers_see() -> None:
    store = await prepared()
    written = replace(HEALTHY, as_of_ms=wall_ms())
    await save_report(store, replace(written, topics=3))
    await save_report(store, written)
    written, found = written, await current_report(store)
    assert found == written
    assert found.is_healthy


async def test_a_silent_operator_is_told_with_its_time_and_what_is_registered_is_seen() -> None:
    """The operator died with a bookie and the gateway: the bookie is missed, and nobody knows of the gateway."""

    store = await prepared()
    long_ago = wall_ms() - int(SILENT_SECONDS * 1_000) - 60_000
    parts = (replace(PART, since_ms=5, version="1"), replace(PART, name="gateway", kind="gateway"))
    await save_report(store, replace(HEALTHY, as_of_ms=long_ago, parts=parts))
    roster = Roster(parts=(RosterPart("bookie-1", {}), RosterPart("bookie-2", {})))
    await store.create(paths.ROSTER, encode(roster), parents=True)
    await store.create(paths.bookie_available("bookie-2"), encode(BookieRegistration("bookie-2", "h:2")))
    found = await current_report(store)
    assert found.is_silent
    assert not found.is_healthy
    assert found.notes[0].startswith("operator on a is silent since ")
    assert [(part.name, part.pid, part.address, part.note) for part in found.parts] == [
        ("bookie-1", None, "", "is not registered in metadata"),
        ("gateway", None, "", ""),
        ("bookie-2", None, "h:2", ""),
    ]


def test_a_cluster_without_an_operator_is_what_is_registered() -> None:
    async def scenario(roster: Roster | None) -> ClusterReport:
        store = await prepared()
        if roster is not None:
            await store.create(paths.ROSTER, encode(roster), parents=True)
        await store.create(paths.bookie_available("bookie-1"), encode(BookieRegistration("bookie-1", "h:1")))
        return await current_report(store)

    alone = asyncio.run(scenario(None))
    assert alone.is_healthy
    assert (alone.identity, alone.notes) == ("", ())
    starting = asyncio.run(scenario(Roster()))
    assert starting.is_silent
    assert starting.notes[0].startswith("no operator has reported yet")


@pytest.mark.parametrize("is_back", [False, True], ids=["before the upgrade", "after the way back"])
async def test_an_operator_of_the_previous_release_is_no_silent_one(is_back: bool) -> None:
    """It reports what is wrong and versions; a report of a later release may be left from before the way back."""

    store = await prepared()
    if is_back:
        await save_report(store, replace(HEALTHY, as_of_ms=1_000))
    await store.create(paths.ROSTER, encode(Roster(parts=(RosterPart("bookie-1", {}),))), parents=True)
    await store.create(paths.bookie_available("bookie-1"), encode(BookieRegistration("bookie-1", "h:1")))
    versions = {"bookie-1": "0.1.0", "gateway": "0.1.0"}
    told = OperatorReport("operator on b", ("gateway cannot be created",), {"gateway": "ends again"}, versions)
    await store.create(paths.OPERATOR_REPORT, encode(told), ephemeral=True)
    found = await current_report(store)
    assert not found.is_silent
    assert wall_ms() - found.as_of_ms < SILENT_SECONDS * 1_000
    assert found.identity == "operator on b"
    assert "is of an earlier release" in found.notes[0]
    assert found.notes[1] == "gateway cannot be created"
    assert [(part.name, part.address, part.version, part.note) for part in found.parts] == [
        ("bookie-1", "h:1", "0.1.0", ""),
        ("gateway", "", "0.1.0", "ends again"),
    ]


def test_a_part_of_another_process_is_there_since_then() -> None:
    first = with_since(replace(HEALTHY, as_of_ms=10), None)
    other = replace(HEALTHY, as_of_ms=20, parts=(replace(PART, pid=7_777),))
    assert with_since(other, first).parts[0].since_ms == 20


def test_the_time_since_when_is_kept_while_nothing_changes() -> None:
    first = with_since(replace(HEALTHY, as_of_ms=10), None)
    assert first.parts[0].since_ms == 10
    again = with_since(replace(HEALTHY, as_of_ms=20), first)
    assert again.parts[0].since_ms == 10
    wrong = (replace(PART, note="its disk is dead"),)
    third = with_since(replace(HEALTHY, as_of_ms=30, parts=wrong), again)
    assert third.parts[0].since_ms == 30
    assert with_since(replace(HEALTHY, as_of_ms=40, parts=wrong), third).parts[0].since_ms == 30


def test_a_dead_bookie_keeps_what_its_disks_had_and_when_over_silent_reporters_too() -> None:
    bookie = PartReport("bookie-1", "bookie", address="h:1", free_bytes=7, total_bytes=10, used_share=0.3)
    first = with_since(ClusterReport("one", 10, parts=(bookie,)), None)
    dead = PartReport("bookie-1", "bookie", note="is not registered in metadata")
    second = with_since(ClusterReport("one", 20, parts=(dead,)), first)
    third = with_since(ClusterReport("one", 30, parts=(_unseen(second.parts[0]),)), second)
    for report, seen_ms in ((first, 10), (second, 10), (third, 10)):
        part = report.parts[0]
        assert (part.seen_ms, part.free_bytes, part.total_bytes, part.used_share) == (seen_ms, 7, 10, 0.3)
    back = with_since(ClusterReport("one", 40, parts=(replace(bookie, free_bytes=9),)), third)
    assert (back.parts[0].seen_ms, back.parts[0].free_bytes) == (40, 9)
