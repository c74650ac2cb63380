"""``helio status`` reports health by what the metadata holds."""

from __future__ import annotations

import asyncio
import time

import pytest

from heliograph.cli.operations.cluster import _show_status
from heliograph.cli.output import Output
from heliograph.cluster.status import registrations
from heliograph.cluster.status.model import ActorStatus, ClusterStatus, explain, silence_note, version_notes
from heliograph.cluster.status.publishing import publishing_notes
from heliograph.metadata import paths
from heliograph.metadata.backends.memory import MemoryServer
from heliograph.metadata.bookie_records import BookieStartFailure, UnderReplicatedLedger
from heliograph.metadata.codec import encode
from heliograph.metadata.model import BookieRegistration, NamespacePolicies, TopicRecord
from heliograph.metadata.operator_records import RestoredMark
from heliograph.metadata.recipes.cluster_init import initialise
from heliograph.metadata.store import MetadataStore


def seen(
    monkeypatch: pytest.MonkeyPatch,
    *,
    writable: str = "",
    readonly: str = "",
    draining: str = "",
    tasks: tuple[UnderReplicatedLedger, ...] = (),
    failed: tuple[BookieStartFailure, ...] = (),
    full: str = "",
    nearly_full: str = "",
    restored_backup_ms: int = 0,
) -> ClusterStatus:
    """Return the status of a cluster in which every bookie's actor answers."""
    found = ClusterStatus("n", "ray", "", metadata_url="embedded://here")
    names = [*writable.split(), *readonly.split(), *(failure.bookie_id for failure in failed)]
    found.actors = [ActorStatus(name, "bookie", "ALIVE") for name in sorted(names)]

    async def scenario() -> None:
        server = MemoryServer()
        store = server.open_session()
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

        async def connect(url: str) -> MetadataStore:
            return server.open_session()

        monkeypatch.setattr(registrations, "connect_store", connect)
        await registrations.ask_metadata(found, None)

    asyncio.run(scenario())
    explain(found)
    return found


def test_a_bookie_that_is_emptied_as_asked_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    moving = tuple(UnderReplicatedLedger(number, ("b3",)) for number in range(3))
    found = seen(monkeypatch, writable="b1 b2", readonly="b3", draining="b3", tasks=moving)
    assert found.is_healthy
    assert [actor.note for actor in found.actors] == ["", "", "being decommissioned"]
    assert (found.underreplicated_ledgers, found.ledgers_moving) == (0, 3)


@pytest.mark.parametrize(
    "lost",
    [UnderReplicatedLedger(7, ("b2", "b3")), UnderReplicatedLedger(7, ("b3",), is_abandoned=True)],
    ids=["on another bookie", "without its writer"],
)
def test_copies_that_are_missing_meanwhile_are_one(
    monkeypatch: pytest.MonkeyPatch, lost: UnderReplicatedLedger
) -> None:
    found = seen(
        monkeypatch, writable="b1 b2", readonly="b3", draining="b3", tasks=(UnderReplicatedLedger(1, ("b3",)), lost)
    )
    assert not found.is_healthy
    assert (found.underreplicated_ledgers, found.ledgers_moving) == (1, 1)


def test_the_copies_of_a_dead_bookie_are_missing_whether_it_is_to_go_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    found = seen(monkeypatch, writable="b1 b2", draining="b3", tasks=(UnderReplicatedLedger(1, ("b3",)),))
    assert not found.is_healthy
    assert (found.underreplicated_ledgers, found.ledgers_moving) == (1, 0)


def test_ledgers_with_lost_entries_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = (UnderReplicatedLedger(1, ("b1",), lost_entries=2), UnderReplicatedLedger(2, ("b1",)))
    found = seen(monkeypatch, writable="b1 b2 b3", tasks=tasks)
    assert not found.is_healthy
    assert (found.underreplicated_ledgers, found.ledgers_damaged) == (2, 1)


def test_a_full_disk_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    found = seen(monkeypatch, writable="b1 b2", readonly="b3", full="b3")
    assert not found.is_healthy
    assert found.actors[2].note == "read-only: its disk is full (97% used)"


def test_a_disk_that_is_nearly_full_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    found = seen(monkeypatch, writable="b1 b2 b3", nearly_full="b2")
    assert found.is_healthy
    assert [actor.note for actor in found.actors] == ["", "its disk is nearly full (97% used)", ""]


def test_a_bookie_that_does_not_start_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    failure = BookieStartFailure("b3", "CookieMismatchError", "b3 misses journal directory 1 of 1", 4)
    found = seen(monkeypatch, writable="b1 b2", failed=(failure,))
    assert not found.is_healthy
    assert found.actors[2].note == (
        "does not start: CookieMismatchError: b3 misses journal directory 1 of 1 (4 starts in a row)"
    )


def test_bookies_that_do_not_start_for_one_reason_are_offered_no_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    failures = [BookieStartFailure(name, "JournalCorruptError", "damaged", way_out="Lose it") for name in ("b2", "b3")]
    alone = seen(monkeypatch, writable="b1 b2", failed=(failures[1],)).actors[2].note
    assert alone == "does not start: JournalCorruptError: damaged. Lose it"
    second, third = (actor.note for actor in seen(monkeypatch, writable="b1", failed=tuple(failures)).actors[1:])
    assert "b3 did not start for the same reason" in second
    assert "b2 did not start for the same reason" in third
    assert "Lose it" not in second + third


def test_restored_metadata_is_shown_with_the_command_that_ends_its_wait(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert seen(monkeypatch, writable="bookie-1").restored_backup_ms == 0
    found = seen(monkeypatch, writable="bookie-1", restored_backup_ms=1_700_000_000_000)
    assert found.restored_backup_ms == 1_700_000_000_000
    _show_status(Output(False), found, "")
    shown = capsys.readouterr().out
    assert "2023-11-14" in shown
    assert "helio backup accept" in shown


def test_versions_that_differ_are_one_line_each() -> None:
    same = {"bookie-1": "0.1.0", "broker-1": "0.1.0", "gateway": ""}
    assert version_notes(same, "0.1.0") == []
    (differ,) = version_notes({**same, "broker-2": "0.2.0"}, "0.2.0")
    assert "0.1.0: bookie-1, broker-1; 0.2.0: broker-2" in differ
    (client,) = version_notes(same, "0.2.0")
    assert client == "this program is 0.2.0, and no part of the cluster is"


def test_status_says_how_many_copies_are_written(monkeypatch: pytest.MonkeyPatch) -> None:  # I20
    assert seen(monkeypatch, writable="b1 b2 b3").publishing_notes == []
    found = seen(monkeypatch, writable="b1 b2", readonly="b3", full="b3")
    (note,) = found.publishing_notes
    assert note.startswith("publishing goes on with 2 of 3 copies: b3 is full (")
    found = seen(monkeypatch, writable="b1", readonly="b2")
    (note,) = found.publishing_notes
    assert note == "publishing is stopped on 0 topics: 1 bookies take entries; b2 is read-only"


def test_a_namespace_with_a_minimum_of_copies_is_stopped_alone(monkeypatch: pytest.MonkeyPatch) -> None:  # I20
    async def scenario() -> list[str]:
        store = MemoryServer().open_session()
        await initialise(store)
        strict = NamespacePolicies(minimum_write_copies=9)  # at most the write quorum counts
        await store.create(paths.namespace("public", "strict"), encode(strict))
        for name in ("a", "b"):
            await store.create(paths.topic("public", "strict", name), encode(TopicRecord(name)), parents=True)
        await store.create(paths.topic("public", "default", "c"), encode(TopicRecord("c")), parents=True)
        await store.create(paths.bookie_cookie("b3"), parents=True)
        return await publishing_notes(store, ["b1", "b2"], {})

    assert asyncio.run(scenario()) == [
        "publishing is stopped on 2 topics: 2 bookies take entries; b3 is down",
        "publishing goes on with 2 of 3 copies: b3 is down",
    ]


def test_a_silent_metadata_store_is_told_with_its_time() -> None:
    assert silence_note(1.6, 1_000_000.0) == ""
    since = time.strftime("%H:%M:%S", time.localtime(1_000_000.0 - 65))
    note = silence_note(65.0, 1_000_000.0)
    assert note == f"the metadata store is silent since {since}: open topics are served, changes of metadata wait"
