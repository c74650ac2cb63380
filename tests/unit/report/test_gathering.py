"""The report says how a cluster is by what the metadata holds."""

from __future__ import annotations

import asyncio

import pytest

from heliograph.base.home import ClusterState
from heliograph.cli.operations.cluster import _show_status, version_notes
from heliograph.cli.output import Output
from heliograph.metadata import paths
from heliograph.metadata.backends.memory import MemoryServer
from heliograph.metadata.bookie_records import BookieStartFailure, UnderReplicatedLedger
from heliograph.metadata.codec import encode
from heliograph.metadata.model import (
    BookieRegistration,
    BrokerRegistration,
    NamespacePolicies,
    Persistence,
    TopicRecord,
)
from heliograph.metadata.operator_records import BookieRack, ClusterReport, PartReport, RestoredMark
from heliograph.metadata.recipes.cluster_init import initialise
from heliograph.report.gathering import gather
from heliograph.report.publishing import publishing_notes


def seen(
    *,
    writable: str = "",
    readonly: str = "",
    draining: str = "",
    tasks: tuple[UnderReplicatedLedger, ...] = (),
    failed: tuple[BookieStartFailure, ...] = (),
    full: str = "",
    nearly_full: str = "",
    restored_backup_ms: int = 0,
) -> ClusterReport:
    """Return the report of a cluster in which every bookie's process answers."""
    every = [*writable.split(), *readonly.split(), *(failure.bookie_id for failure in failed)]

    async def scenario() -> ClusterReport:
        store = MemoryServer().open_session()
        await initialise(store)
        for names, path_of in ((writable, paths.bookie_available), (readonly, paths.bookie_readonly)):
            for name in names.split():
                record = BookieRegistration(
                    name,
                    "h:1",
                    used_share=0.97,
                    is_full=name in full.split(),
                    is_nearly_full=name in nearly_full.split(),
                )
                await store.create(path_of(name), encode(record), ephemeral=True)
        for name in draining.split():
            await store.create(paths.bookie_draining(name))
        for task in tasks:
            await store.create(paths.underreplicated(task.ledger_id), encode(task))
        for failure in failed:
            await store.create(paths.bookie_start_failure(failure.bookie_id), encode(failure), parents=True)
        if restored_backup_ms:
            await store.create(paths.RESTORED, encode(RestoredMark(restored_backup_ms, restored_backup_ms + 1)))
        return await gather(store, [PartReport(name, "bookie", "ALIVE") for name in sorted(every)])

    return asyncio.run(scenario())


def test_a_bookie_that_is_emptied_as_asked_is_no_fault() -> None:
    moving = tuple(UnderReplicatedLedger(number, ("b3",)) for number in range(3))
    found = seen(writable="b1 b2", readonly="b3", draining="b3", tasks=moving)
    assert found.is_healthy
    assert [part.note for part in found.parts] == ["", "", "being decommissioned"]
    assert (found.underreplicated_ledgers, found.ledgers_moving) == (0, 3)


@pytest.mark.parametrize(
    "lost",
    [UnderReplicatedLedger(7, ("b2", "b3")), UnderReplicatedLedger(7, ("b3",), is_abandoned=True)],
    ids=["on another bookie", "without its writer"],
)
def test_copies_that_are_missing_meanwhile_are_one(lost: UnderReplicatedLedger) -> None:
    found = seen(writable="b1 b2", readonly="b3", draining="b3", tasks=(UnderReplicatedLedger(1, ("b3",)), lost))
    assert not found.is_healthy
    assert (found.underreplicated_ledgers, found.ledgers_moving) == (1, 1)


def test_the_copies_of_a_dead_bookie_are_missing_whether_it_is_to_go_or_not() -> None:
    found = seen(writable="b1 b2", draining="b3", tasks=(UnderReplicatedLedger(1, ("b3",)),))
    assert not found.is_healthy
    assert (found.underreplicated_ledgers, found.ledgers_moving) == (1, 0)


def test_ledgers_with_lost_entries_are_counted() -> None:
    tasks = (UnderReplicatedLedger(1, ("b1",), lost_entries=2), UnderReplicatedLedger(2, ("b1",)))
    found = seen(writable="b1 b2 b3", tasks=tasks)
    assert not found.is_healthy
    assert (found.underreplicated_ledgers, found.ledgers_damaged) == (2, 1)


def test_a_full_disk_is_a_fault() -> None:
    found = seen(writable="b1 b2", readonly="b3", full="b3")
    assert not found.is_healthy
    assert found.parts[2].note == "read-only: its disk is full (97% used)"


def test_a_disk_that_is_nearly_full_is_a_warning() -> None:
    found = seen(writable="b1 b2 b3", nearly_full="b2")
    assert found.is_healthy
    assert [part.note for part in found.parts] == ["", "its disk is nearly full (97% used)", ""]


def test_a_bookie_that_does_not_start_says_why() -> None:
    failure = BookieStartFailure("b3", "CookieMismatchError", "b3 misses journal directory 1 of 1", 4)
    found = seen(writable="b1 b2", failed=(failure,))
    assert not found.is_healthy
    assert found.parts[2].note == (
        "does not start: CookieMismatchError: b3 misses journal directory 1 of 1 (4 starts in a row)"
    )


def test_bookies_that_do_not_start_for_one_reason_are_offered_no_loss() -> None:
    failures = [BookieStartFailure(name, "JournalCorruptError", "damaged", way_out="Lose it") for name in ("b2", "b3")]
    alone = seen(writable="b1 b2", failed=(failures[1],)).parts[2].note
    assert alone == "does not start: JournalCorruptError: damaged. Lose it"
    second, third = (part.note for part in seen(writable="b1", failed=tuple(failures)).parts[1:])
    assert "b3 did not start for the same reason" in second
    assert "b2 did not start for the same reason" in third
    assert "Lose it" not in second + third


def test_restored_metadata_is_shown_with_the_command_that_ends_its_wait(capsys: pytest.CaptureFixture[str]) -> None:
    assert seen(writable="bookie-1").restored_backup_ms == 0
    found = seen(writable="bookie-1", restored_backup_ms=1_700_000_000_000)
    assert found.restored_backup_ms == 1_700_000_000_000
    _show_status(Output(False), found, ClusterState("n", "ray", ""), [])
    shown = capsys.readouterr().out
    assert "2023-11-14" in shown
    assert "helio backup accept" in shown


def test_versions_that_differ_are_one_line_each() -> None:
    same = [PartReport("bookie-1", "bookie", version="0.1.0"), PartReport("broker-1", "broker", version="0.1.0")]
    same.append(PartReport("gateway", "gateway"))
    assert version_notes(same, "0.1.0") == []
    (differ,) = version_notes([*same, PartReport("broker-2", "broker", version="0.2.0")], "0.2.0")
    assert "0.1.0: bookie-1, broker-1; 0.2.0: broker-2" in differ
    (client,) = version_notes(same, "0.2.0")
    assert client == "this program is 0.2.0, and no part of the cluster is"


async def test_registered_parts_have_addresses_and_racks_and_unreadable_records_are_named() -> None:
    store = MemoryServer().open_session()
    await initialise(store)
    await store.create(paths.bookie_available("b1"), encode(BookieRegistration("b1", "h:1", "r1")))
    await store.create(paths.bookie_available("b2"), encode(BookieRegistration("b2", "h:2", "r1")))
    await store.create(paths.bookie_available("b3"), b"damaged")
    await store.create(paths.bookie_rack("b2"), encode(BookieRack("b2", "r2")), parents=True)
    broker = BrokerRegistration("id", "pulsar://h:6650", actor_name="broker-1")
    await store.create(paths.broker_available("id"), encode(broker))
    for name in ("a", "b-partition-3", "p-partition-0", "p-partition-1"):
        await store.create(paths.topic("public", "default", name), b"", parents=True)
    await store.create(paths.partitioned_topic("public", "default", "p"), b"", parents=True)
    await store.create(paths.non_persistent_topic("public", "default", "c"), b"", parents=True)
    found = await gather(store, [PartReport("b1", "bookie", "ALIVE"), PartReport("b4", "bookie", "MISSING")], ["x"])
    assert [(part.name, part.address, part.rack, part.note) for part in found.parts] == [
        ("b1", "h:1", "r1", ""),
        ("b4", "", "", "is not registered in metadata"),
        ("b2", "h:2", "r2", ""),
        ("broker-1", "pulsar://h:6650", "", ""),
    ]
    assert (found.service_urls, found.topics) == (("pulsar://h:6650",), 4)  # a, b-partition-3, p, c
    assert found.notes[0] == "x"
    assert "/b3: " in found.notes[1]


def test_status_says_how_many_copies_are_written() -> None:  # I20
    assert seen(writable="b1 b2 b3").publishing_notes == ()
    found = seen(writable="b1 b2", readonly="b3", full="b3")
    (note,) = found.publishing_notes
    assert note.startswith("publishing goes on with 2 of 3 copies: b3 is full (")
    found = seen(writable="b1", readonly="b2")
    (note,) = found.publishing_notes
    assert note == "publishing is stopped on new topics: 1 bookie takes entries; b2 is read-only"


def test_a_cluster_of_one_copy_is_not_said_to_be_stopped() -> None:
    """The copies of namespaces that set none are in the settings of the cluster, and not in their records."""

    async def notes(copies: Persistence | None) -> list[str]:
        store = MemoryServer().open_session()
        await initialise(store)
        return await publishing_notes(store, ["b1"], {}, default=copies)

    assert asyncio.run(notes(Persistence(1, 1, 1))) == []
    assert len(asyncio.run(notes(Persistence(3, 3, 2)))) == 1


async def test_a_namespace_with_a_minimum_of_copies_is_stopped_alone() -> None:  # I20
    store = MemoryServer().open_session()
    await initialise(store)
    strict = NamespacePolicies(minimum_write_copies=9)  # at most the write quorum counts
    await store.create(paths.namespace("public", "strict"), encode(strict))
    for name in ("a", "b"):
        await store.create(paths.topic("public", "strict", name), encode(TopicRecord(name)), parents=True)
    await store.create(paths.topic("public", "default", "c"), encode(TopicRecord("c")), parents=True)
    await store.create(paths.bookie_cookie("b3"), parents=True)
    found = await publishing_notes(store, ["b1", "b2"], {})
    assert found == [
        "publishing is stopped by minimum_write_copies on 2 topics, or stops with their next ledger: "
        "2 bookies take entries; b3 is down",
        "publishing goes on with 2 of 3 copies: b3 is down",
    ]


@pytest.mark.parametrize(("partitions", "counted"), [(998, 3), (999, 1_001)])
def test_many_topics_are_counted_without_their_names(partitions: int, counted: int) -> None:
    async def scenario() -> None:
        store = MemoryServer().open_session()
        await initialise(store)
        await store.create(paths.partitioned_topic("public", "default", "parted"), parents=True)
        names = ["a", "b", *(f"parted-partition-{number}" for number in range(partitions))]
        for name in names:
            await store.create(paths.topic("public", "default", name), parents=True)
        assert (await gather(store, ())).topics == counted

    asyncio.run(scenario())
