"""Wishes: what is stored lasts and is carried out by whichever operator leads, and what excludes it is named."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from heliograph.base.errors import BadRequestError, ConflictError, NotFoundError, ServiceNotReadyError
from heliograph.base.home import ClusterHome, ClusterState
from heliograph.client import discovery
from heliograph.cluster import wishing
from heliograph.cluster.operator import calls, wishes
from heliograph.cluster.operator.granting import Granting, Progress, Way
from heliograph.cluster.operator.storage import (
    load_roster,
    load_wish,
    load_wishes,
    move_wish,
    save_roster,
    store_wish,
)
from heliograph.metadata import paths
from heliograph.metadata.backends.memory import MemoryServer, MemoryStore
from heliograph.metadata.backup.restore import restore
from heliograph.metadata.backup.snapshot import snapshot
from heliograph.metadata.connect import connect_store
from heliograph.metadata.operator_records import ClusterReport, PartReport, Wish, WishKind, WishState
from heliograph.metadata.recipes.cluster_init import initialise
from heliograph.metadata.recipes.election import Election
from heliograph.report.record import save_report
from tests.unit.cluster.operator.test_leaving import first, operated
from tests.waits import until

TWO_BROKERS = Wish(WishKind.SCALE, "brokers", {"count": "2"}, 1)
WITHOUT_3 = Wish(WishKind.DECOMMISSION, "bookie-3", {}, 2)
SECONDS_MAX = 120.0


async def until_state(store: MemoryStore, subject: str, *states: WishState) -> Wish:
    while True:
        found = await load_wish(store, subject)
        if found is not None and found.state in states:
            return found
        await asyncio.sleep(0.001)


async def ended(store: MemoryStore, subject: str) -> Wish:
    return await until_state(store, subject, WishState.DONE, WishState.REFUSED)


async def test_a_wish_is_carried_out_without_its_caller_and_tells_programs_the_outcome() -> None:
    async with operated() as (_operator, cluster, store):
        await store_wish(store, TWO_BROKERS)
        await until_state(store, "brokers", WishState.ACCEPTED, WishState.DONE)
        await store.delete(f"{paths.BROKERS_AVAILABLE}/broker-3")  # it serves no more
        done = await ended(store, "brokers")
        assert (done.state, done.outcome["wanted_brokers"]) == (WishState.DONE, 2)
        assert sorted(name for name in done.outcome["parts"] if name.startswith("broker")) == ["broker-1", "broker-2"]
        assert "broker-3" not in cluster.running


async def test_a_wish_that_no_operator_has_seen_lasts_and_the_next_one_carries_it_out() -> None:
    async with operated(wish=WITHOUT_3) as (_operator, cluster, store):
        done = await ended(store, "bookie-3")
        assert (done.state, done.outcome["done"]) == (WishState.DONE, True)
        assert "bookie-3" not in cluster.running
        roster = await load_roster(store)
        assert roster is not None
        assert roster.wanted_bookies == 2


async def test_a_refusal_reaches_the_caller_as_the_error_that_it_is() -> None:
    async with operated() as (_operator, _cluster, store):
        for wish, error, why in (
            (Wish(WishKind.SCALE, "bookies", {"count": "1"}, 1), ConflictError, "ensemble of 2"),
            (Wish(WishKind.SCALE, "brokers", {"count": "0"}, 1), BadRequestError, "asked for"),
            (Wish(WishKind.SCALE, "gateways", {"count": "2"}, 1), BadRequestError, "cannot be scaled"),
            (Wish(WishKind.DECOMMISSION, "bookie-9", {}, 1), NotFoundError, "no bookie 'bookie-9'"),
            (Wish(WishKind.DECOMMISSION, "broker-1", {}, 1), NotFoundError, "no bookie 'broker-1'"),
        ):
            await store_wish(store, wish)
            refused = await ended(store, wish.subject)
            assert refused.state is WishState.REFUSED
            raised = wishes.refusal(refused)
            assert type(raised) is error
            assert why in str(raised)


async def test_a_bookie_is_emptied_erased_and_ended_in_this_order() -> None:
    async with operated() as (_operator, cluster, store):
        await store_wish(store, replace(WITHOUT_3, arguments={"data": wishes.DELETES_DATA}))
        done = await ended(store, "bookie-3")
        assert done.outcome == {"bookie": "bookie-3", "done": True, "ledgers_left": 0, "data_deleted": True}
        own = [call for call in cluster.asked if "decommission" in call[1] or call[0] == "bookie-3"]
        methods = [method for _, method in own]
        assert methods[-3:] == ["erase", "remove", "finish_decommission"]
        assert set(methods[:-3]) == {"decommission"}


async def test_a_bookie_that_is_to_stay_after_all_stays_and_is_wanted_again() -> None:
    async with operated() as (operator, cluster, store):
        cluster.is_drained = False
        await store_wish(store, WITHOUT_3)
        waiting = await until_state(store, "bookie-3", WishState.ACCEPTED)
        while not waiting.outcome.get("ledgers_left"):
            await asyncio.sleep(0.001)
            waiting = await until_state(store, "bookie-3", WishState.ACCEPTED)
        assert waiting.note == "bookie-3 is being emptied: 7 ledgers to be moved"
        assert waiting.outcome["ledgers_left"] == 7
        await store_wish(store, Wish(WishKind.KEEP, "bookie-3", {}, 3))
        assert (await ended(store, "bookie-3")).state is WishState.DONE
        assert ("auditor", "cancel_decommission") in cluster.asked
        asked = len(cluster.asked)
        found = await operator.progress()
        assert (found["leaving"], found["wanted_bookies"]) == ([], 3)
        await operator._look(with_facts=False)
        assert len(cluster.asked) == asked, "nobody empties it any more"


async def test_an_auditor_that_does_not_answer_delays_no_other_wish() -> None:
    async with operated() as (_operator, cluster, store):
        cluster.answers["decommission"] = lambda name: asyncio.sleep(3_600)
        await store_wish(store, WITHOUT_3)
        await until(lambda: ("auditor", "decommission") in cluster.asked)
        await store_wish(store, TWO_BROKERS)
        await until_state(store, "brokers", WishState.ACCEPTED)
        found = await load_wish(store, "bookie-3")
        assert found is not None
        assert found.state is WishState.ASKED


async def test_a_fault_of_ours_is_told_and_tried_again() -> None:
    async with operated() as (_operator, cluster, store):
        cluster.fails = KeyError("ledgers_left")
        await store_wish(store, WITHOUT_3)
        waiting = WITHOUT_3
        while not waiting.note:
            await asyncio.sleep(0.001)
            waiting = await until_state(store, "bookie-3", WishState.ASKED)
        assert waiting.note == "'ledgers_left'; it is tried again"
        cluster.fails = None
        assert (await ended(store, "bookie-3")).state is WishState.DONE


async def test_an_auditor_that_is_away_delays_a_wish_and_refuses_nothing() -> None:
    async with operated() as (_operator, cluster, store):
        cluster.fails = ServiceNotReadyError("the auditor does not run")
        await store_wish(store, WITHOUT_3)
        waiting = WITHOUT_3
        while not waiting.note:
            await asyncio.sleep(0.001)
            waiting = await until_state(store, "bookie-3", WishState.ASKED)
        assert waiting.note == "the auditor does not run; it is tried again"
        cluster.fails = None
        assert (await ended(store, "bookie-3")).state is WishState.DONE


FOUR = Wish(WishKind.SCALE, "bookies", {"count": "4"}, 1)
KEEP_3 = Wish(WishKind.KEEP, "bookie-3", {}, 3)
MOVE_2 = Wish(WishKind.MOVE, "bookie-2", {"to": "/b"}, 5)
RESTART = Wish(WishKind.RESTART, wishes.PARTS, {}, 6)


@pytest.mark.parametrize(
    ("present", "later", "names"),
    [
        (FOUR, WITHOUT_3, ["'decommission bookie-3'", "'scale bookies 4'"]),
        (WITHOUT_3, FOUR, ["'scale bookies 4'", "'decommission bookie-3'"]),
        (WITHOUT_3, replace(WITHOUT_3, arguments={"data": "with its data"}), ["'decommission bookie-3 with its data'"]),
        (KEEP_3, WITHOUT_3, []),
        (WITHOUT_3, KEEP_3, []),
        (FOUR, replace(FOUR, arguments={"count": "5"}), []),
        (WITHOUT_3, TWO_BROKERS, []),
        (WITHOUT_3, replace(WITHOUT_3, subject="bookie-2"), []),
        (FOUR, replace(FOUR, asked_ms=9), []),
        (FOUR, Wish(WishKind.LEAVE, "10.0.0.3", {}, 4), ["'leave 10.0.0.3'", "'scale bookies 4'"]),
        (Wish(WishKind.LEAVE, "10.0.0.3", {}, 4), WITHOUT_3, ["'leave 10.0.0.3'"]),
        (Wish(WishKind.LEAVE, "10.0.0.3", {}, 4), Wish(WishKind.LEAVE, "10.0.0.2", {}, 5), []),
        (Wish(WishKind.LEAVE, "10.0.0.3", {}, 4), TWO_BROKERS, []),
        (MOVE_2, replace(MOVE_2, subject="bookie-3"), ["'move bookie-2 /b'", "'move bookie-3 /b'"]),
        (MOVE_2, RESTART, ["'move bookie-2 /b'", "'restart parts'"]),
        (RESTART, MOVE_2, ["'restart parts'"]),
        (RESTART, Wish(WishKind.HOLD, "bookie-2"), ["'hold bookie-2'"]),
        (MOVE_2, Wish(WishKind.LEAVE, "10.0.0.3", {}, 4), ["'leave 10.0.0.3'"]),
        (MOVE_2, replace(WITHOUT_3, subject="bookie-2"), ["'decommission bookie-2'"]),
        (MOVE_2, Wish(WishKind.PLACE, "bookie-2"), ["'place bookie-2'"]),
        (MOVE_2, WITHOUT_3, []),
        (RESTART, FOUR, []),
        (RESTART, replace(RESTART, arguments={"names": "bookie-2"}), ["'restart parts bookie-2'"]),
        (Wish(WishKind.REPLACE, "bookie-2"), RESTART, []),
        (Wish(WishKind.REPLACE, "bookie-2"), replace(WITHOUT_3, subject="bookie-2"), []),
        (Wish(WishKind.REPLACE, "bookie-2"), Wish(WishKind.PLACE, "bookie-2"), []),
        (Wish(WishKind.RECOVER, "bookie-2"), Wish(WishKind.REPLACE, "bookie-2"), []),
        (Wish(WishKind.REPLACE, "bookie-2"), Wish(WishKind.RECOVER, "bookie-2"), ["'replace bookie-2'"]),
    ],
)
def test_wishes_that_exclude_each_other_are_refused_by_name(present: Wish, later: Wish, names: list[str]) -> None:
    if not names:
        wishes.require_possible(later, [present])
        return
    with pytest.raises(ConflictError) as refused:
        wishes.require_possible(later, [present])
    assert all(name in str(refused.value) for name in names)
    wishes.require_possible(later, [replace(present, state=WishState.DONE)])


async def test_the_operator_refuses_the_later_of_two_that_were_stored_at_once() -> None:
    async with operated(wish=WITHOUT_3, earlier=FOUR) as (_operator, cluster, store):
        refused = await ended(store, "bookie-3")
        assert refused.state is WishState.REFUSED
        assert "'scale bookies 4'" in refused.note
        await until_state(store, "bookies", WishState.ACCEPTED)
        assert "bookie-3" in cluster.running


async def test_the_report_is_written_before_a_wish_is_done() -> None:
    store, states = MemoryServer().open_session(), list[WishState]()

    async def refresh() -> None:
        found = await load_wish(store, FOUR.subject)
        assert found is not None
        states.append(found.state)

    async def begin(wish: Wish) -> dict[str, Any]:
        return {}

    async def look(wish: Wish) -> Progress:
        return Progress(True, "", {})

    granting = Granting(store, {FOUR.kind: Way(begin, look)}, refresh)
    await store_wish(store, FOUR)
    await granting.look()
    await ended(store, FOUR.subject)
    assert states == [WishState.ACCEPTED]
    await granting.stop()


async def test_the_same_wish_again_is_the_one_that_is_open_and_a_damaged_one_stops_nobody() -> None:
    store = MemoryServer().open_session()
    assert await store_wish(store, FOUR) == FOUR
    assert await store_wish(store, replace(FOUR, asked_ms=9)) == FOUR
    await store.create(paths.wish("later/kind"), b"of a later release")
    assert await load_wishes(store) == [FOUR]
    await move_wish(store, replace(FOUR, asked_ms=9), WishState.ACCEPTED, "of another caller")
    assert (await load_wish(store, "bookies")) == FOUR
    await move_wish(store, FOUR, WishState.DONE, "")
    ended = await load_wish(store, "bookies")
    await move_wish(store, FOUR, WishState.ACCEPTED, "of an operator that leads no more")
    assert await load_wish(store, "bookies") == ended
    await store.close()


async def test_a_restored_backup_carries_out_no_wish_of_before(tmp_path: Path) -> None:
    store, other = MemoryServer().open_session(), MemoryServer().open_session()
    await initialise(store)
    await save_roster(store, first())
    await store_wish(store, FOUR)
    await snapshot(store, tmp_path / "backup")
    await restore(tmp_path / "backup", other)
    assert await load_wishes(other) == []
    assert await load_roster(other) == first()


def home_of(directory: Path, url: str) -> ClusterHome:
    home = ClusterHome(directory)
    home.save(ClusterState("n", "127.0.0.1:1", "", metadata_url=url))
    return home


async def asked(url: str, answer: Callable[[MemoryStore, Wish], Any], home: ClusterHome, said: list[str]) -> Wish:
    """Ask for four bookies, where ``answer`` plays the operator."""
    store: Any = await connect_store(url)
    await save_roster(store, first())

    async def play() -> None:
        await answer(store, await until_state(store, "bookies", WishState.ASKED))

    playing = asyncio.create_task(play())
    found = await wishing._through_metadata(wishing.Asked(FOUR, SECONDS_MAX, said.append, lambda: None), home)
    await playing
    assert found is not None
    return found


def test_a_command_writes_its_wish_into_the_metadata_and_follows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wishing, "POLL_SECONDS", 0.001)

    async def accept(store: MemoryStore, wish: Wish) -> None:
        await move_wish(store, wish, WishState.ACCEPTED, "1 more bookies are wanted")
        await until(lambda: bool(said))
        await move_wish(store, wish, WishState.DONE, "", {"wanted_bookies": 4})

    said: list[str] = []
    home = home_of(tmp_path, "memory://follow")
    done = asyncio.run(asked("memory://follow", accept, home, said))
    assert (done.state, done.outcome) == (WishState.DONE, {"wanted_bookies": 4})
    assert said == ["1 more bookies are wanted"]


def test_a_command_whose_wish_waits_for_an_operator_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wishing, "POLL_SECONDS", 0.001)
    monkeypatch.setattr(wishing, "UNANSWERED_SECONDS", 0.01)

    async def come_late(store: MemoryStore, wish: Wish) -> None:
        await until(lambda: bool(said))
        await move_wish(store, wish, WishState.ACCEPTED, "")
        await move_wish(store, wish, WishState.DONE, "")

    said: list[str] = []
    asyncio.run(asked("memory://late", come_late, home_of(tmp_path, "memory://late"), said))
    assert said == ["no operator leads now; the wish is stored, and is carried out when one does"]


@pytest.mark.parametrize(("version", "is_back"), [("", False), ("0.0.9", False), ("0.2.0", True)])
def test_a_command_beside_an_operator_of_an_older_release_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, is_back: bool
) -> None:
    """It leads and reads no wish of a kind that it does not know; one without reports is older still.

    After the way back, the report of the newer operator before it is left.
    """
    monkeypatch.setattr(wishing, "POLL_SECONDS", 0.001)
    monkeypatch.setattr(wishing, "UNANSWERED_SECONDS", SECONDS_MAX)

    async def lead(store: MemoryStore, wish: Wish) -> None:
        await Election(store, discovery.OPERATOR, "older").campaign()
        if version:
            await save_report(store, ClusterReport(parts=(PartReport("operator", "operator", version=version),)))
        if is_back:
            await store.create(paths.OPERATOR_REPORT, b"", ephemeral=True)
        monkeypatch.setattr(wishing, "UNANSWERED_SECONDS", 0)
        await until(lambda: bool(said))
        await move_wish(store, wish, WishState.DONE, "")

    said: list[str] = []
    url = f"memory://older{version}"
    asyncio.run(asked(url, lead, home_of(tmp_path, url), said))
    named = "one without reports" if is_back or not version else version
    assert said == [wishes.older_operator(named)]
    assert said[0].startswith(f"the operator runs an older version: {named}, and this command is of ")


def test_a_later_wish_ends_the_wait_for_an_earlier_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wishing, "POLL_SECONDS", 0.001)

    async def replace_it(store: MemoryStore, wish: Wish) -> None:
        await store_wish(store, replace(wish, arguments={"count": "5"}, asked_ms=9))

    with pytest.raises(ConflictError, match="took the place of 'scale bookies 4'"):
        asyncio.run(asked("memory://replaced", replace_it, home_of(tmp_path, "memory://replaced"), []))


def test_a_machine_that_cannot_open_the_store_has_the_operator_store_its_wish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls_made: list[str] = []

    def ask(namespace: str, method: str, argument: Any) -> Any:
        calls_made.append(method)
        if method == "store_wish":
            return argument
        return replace(FOUR, asked_ms=calls_of[0].asked_ms, state=WishState.REFUSED, note="too few")

    def attach(namespace: str, **_: Any) -> None:
        calls_made.append("join Ray")

    calls_of: list[Wish] = []
    monkeypatch.setattr(discovery, "attach", attach)
    monkeypatch.setattr(calls, "ask_operator", ask)
    monkeypatch.setattr(wishing, "wall_ms", lambda: 77)
    calls_of.append(replace(FOUR, asked_ms=77))
    with pytest.raises(ConflictError, match="too few"):
        wishing.wished(
            WishKind.SCALE, "bookies", {"count": "4"}, ClusterHome(tmp_path), "n", wait_seconds=1, progress=print
        )
    assert calls_made == ["join Ray", "store_wish", "load_wish"]


def test_a_cluster_without_an_operator_says_so(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no operator: helio up starts it"):
        wishing.wished(
            WishKind.SCALE,
            "bookies",
            {"count": "4"},
            home_of(tmp_path, "memory://without-operator"),
            "n",
            wait_seconds=1,
            progress=print,
        )
