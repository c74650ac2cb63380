"""Bookies that are moved, held, placed, replaced and restarted on request: the steps, and what survives an operator."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from heliograph.actors.bookie.tools.copying import CopyReport, SourceFile
from heliograph.base.errors import BadRequestError, ConflictError, NotFoundError, ResourceError, ServiceNotReadyError
from heliograph.cluster import labels
from heliograph.cluster.labels import Node, Place
from heliograph.cluster.operator import roster as rosters
from heliograph.cluster.operator import wishes
from heliograph.cluster.operator.storage import load_roster, moving, store_wish
from heliograph.metadata import paths
from heliograph.metadata.backends.memory import MemoryStore
from heliograph.metadata.bookie_records import Cookie
from heliograph.metadata.codec import encode
from heliograph.metadata.model import BookieRegistration
from heliograph.metadata.operator_records import RollingRestart, RosterPart, Wish, WishKind, WishState
from tests.unit.cluster.operator.test_leaving import NODES, PlayedCluster, operated
from tests.unit.cluster.operator.test_wishes import ended, until_state
from tests.waits import until

NAME, OWN, OTHER = "bookie-2", "10.0.0.2", "10.0.0.3"
MOVE = Wish(WishKind.MOVE, NAME, {"to": "/b"}, 1)
LOG = SourceFile("1.log", 7, 0o600, 1)
MOVED_OUTCOME = {
    "bookie": NAME,
    "step": "start",
    "address": OWN,
    "journal_directories": ["/b/bookie-2/journal"],
    "data_directories": ["/b/bookie-2/ledgers"],
    "old_address": OWN,
    "old_directories": ["/a/journal.moved", "/a/ledgers.moved"],
    "files": 7,
    "bytes": 700,
    "serving": True,
}


class Disks:
    """The directories of bookie-2, copied by tasks that are recorded; ``fails`` are raised by name of the task."""

    def __init__(self, cluster: PlayedCluster, store: MemoryStore) -> None:
        self.done: list[str] = []
        self.fails: dict[str, Exception] = {}
        self._cluster = cluster
        self._store = store
        self.at, self.serves = OWN, f"{OWN}:1"  # where the process is, and its address once it serves
        cluster.answers["part_facts"] = lambda: {"node_address": self.at, "address": self.serves}
        cluster.answers["directories"] = {"journal": ["/a/journal"], "data": ["/a/ledgers"]}
        cluster.tasks = {
            "copy_ahead": lambda at, source, old, target, new: self.do("copy_ahead", frozenset({(1, LOG)})),
            "copy": self.copy,
            "retire": lambda at, old: self.do("retire", [path.with_name(f"{path.name}.moved") for path in old]),
            "find_copies": lambda at, name, roots: self.do(f"find {at} {roots[0]}", ([Path("/c/j")], [Path("/c/l")])),
        }

    def copy(self, at: str, source: str, old: Any, target: str, new: list[Path], ahead: Any) -> Any:
        assert NAME not in self._cluster.running, "nothing runs while it is copied"
        self.at = at
        return self.do(f"copy {at} {len(ahead)} {new[0]}", CopyReport(7, 700))

    def do(self, what: str, answer: Any) -> Any:
        self.done.append(what)
        if (error := self.fails.get(what.partition(" ")[0])) is not None:
            raise error
        return answer

    async def end(self, name: str = NAME) -> None:
        """End the registration of a bookie that is stopped."""
        await self._store.delete(paths.bookie_available(name))

    async def serve(self, name: str = NAME) -> None:
        value = encode(BookieRegistration(name, "10.0.0.2:1"))
        await self._store.create(paths.bookie_available(name), value, ephemeral=True)


async def part_of(store: MemoryStore, name: str = NAME) -> RosterPart:
    roster = await load_roster(store)
    assert roster is not None
    return rosters.part_named(roster, name)


async def refused(store: MemoryStore, wish: Wish) -> Exception:
    await store_wish(store, wish)
    found = await ended(store, wish.subject)
    assert found.state is WishState.REFUSED
    return wishes.refusal(found)


async def test_a_bookie_is_stopped_copied_placed_and_started() -> None:
    async with operated() as (_operator, cluster, store):
        disks = Disks(cluster, store)
        await store_wish(store, MOVE)
        done = await ended(store, NAME)
        assert done.state is WishState.DONE
        assert {**done.outcome, "placed_ms": 0} == {**MOVED_OUTCOME, "placed_ms": 0}
        assert disks.done == ["copy_ahead", f"copy {OWN} 1 /b/bookie-2/journal", "retire"]
        assert cluster.asked.count((NAME, "remove")) == 1
        part = await part_of(store)
        assert (part.journal_directories, part.address, part.is_held) == (("/b/bookie-2/journal",), OWN, False)
        await until(lambda: NAME in cluster.running)


async def test_a_bookie_goes_to_another_node_that_is_for_bookies() -> None:
    async with operated() as (_operator, cluster, store):
        disks = Disks(cluster, store)
        cluster.nodes += [Node("10.0.0.8", {}), Node("10.0.0.9", {labels.BOOKIE: "true", labels.RACK: "r2"})]
        assert isinstance(
            await refused(store, replace(MOVE, arguments={"to": "/b", "node": "10.0.0.7"})), NotFoundError
        )
        later = replace(MOVE, asked_ms=2, arguments={"to": "/b", "node": "10.0.0.8"})
        assert isinstance(await refused(store, later), ConflictError)
        assert disks.done == []
        arguments = {"to": "/b", "journals": "/fast", "node": "10.0.0.9"}
        await store_wish(store, replace(MOVE, asked_ms=3, arguments=arguments))
        assert (await ended(store, NAME)).outcome["old_address"] == OWN
        assert "copy 10.0.0.9 1 /fast/bookie-2/journal" in disks.done
        part = await part_of(store)
        assert (part.address, part.rack, part.data_directories) == ("10.0.0.9", "r2", ("/b/bookie-2/ledgers",))


@pytest.mark.parametrize(
    ("arguments", "ensemble_size", "error"),
    [
        ({"to": "b"}, 2, BadRequestError),
        ({"to": "/a/journal"}, 2, BadRequestError),
        ({"to": "/b"}, 3, ConflictError),
    ],
)
async def test_a_move_that_is_refused_stops_nothing(
    arguments: dict[str, str], ensemble_size: int, error: type[Exception]
) -> None:
    async with operated(ensemble_size) as (_operator, cluster, store):
        Disks(cluster, store)
        assert type(await refused(store, replace(MOVE, arguments=arguments))) is error
        assert (NAME, "remove") not in cluster.asked
        if error is ConflictError:
            await store_wish(store, replace(MOVE, asked_ms=2, arguments={**arguments, "force": wishes.FORCED}))
            assert (await ended(store, NAME)).state is WishState.DONE


async def test_a_bookie_that_others_come_to_need_while_it_is_copied_is_not_stopped() -> None:
    async with operated() as (_operator, cluster, store):
        disks = Disks(cluster, store)
        may_go_on = asyncio.Event()

        async def copy_ahead(*_: Any) -> Any:
            await may_go_on.wait()
            return frozenset()

        cluster.tasks["copy_ahead"] = copy_ahead
        await store_wish(store, MOVE)
        await until_state(store, NAME, WishState.ACCEPTED)
        await disks.end("bookie-3")
        may_go_on.set()
        found = await ended(store, NAME)
        assert "with an ensemble of 2" in found.note
        assert (found.state, NAME in cluster.running) == (WishState.REFUSED, True)


async def test_a_bookie_that_does_not_run_is_placed_and_not_moved() -> None:
    async with operated() as (_operator, cluster, store):
        Disks(cluster, store)

        def silent() -> None:
            raise ServiceNotReadyError("bookie-2 does not run")

        cluster.answers["part_facts"] = silent
        error = await refused(store, MOVE)
        assert isinstance(error, NotFoundError)
        assert "helio bookies place starts it where they are" in str(error)


async def test_a_bookie_whose_copy_fails_is_started_where_it_was() -> None:
    async with operated() as (_operator, cluster, store):
        disks = Disks(cluster, store)
        disks.fails["copy"] = ResourceError("the disk is full", field="to")
        assert str(await refused(store, MOVE)) == "bookie-2 is started where it was: the disk is full"
        part = await part_of(store)
        assert (part.is_held, part.journal_directories) == (False, ())
        await until(lambda: NAME in cluster.running)


async def test_a_move_survives_the_operator_and_a_start_of_the_cluster() -> None:
    """The one before ended after it had held the bookie; a start of the cluster does not end the hold."""
    begun = replace(
        MOVE,
        state=WishState.ACCEPTED,
        outcome={
            **{name: MOVED_OUTCOME[name] for name in ("bookie", "address", "journal_directories", "data_directories")},
            "step": "copy",
            "old_address": OWN,
            "old_directories": ["/a/journal", "/a/ledgers"],
        },
    )
    async with operated() as (_operator, cluster, store):
        disks = Disks(cluster, store)
        disks.fails["copy"] = ServiceNotReadyError("an earlier copy to /b is not over yet")
        await store_wish(store, begun)
        waiting = begun
        while not waiting.note:
            waiting = await until_state(store, NAME, WishState.ACCEPTED)
        assert "not over yet; it is tried again" in waiting.note
        assert (await part_of(store)).is_held
        assert await moving(store) == {NAME}
        disks.fails.clear()
        assert (await ended(store, NAME)).outcome["bytes"] == 700
        assert f"copy {OWN} 0 /b/bookie-2/journal" in disks.done, "nothing is known of what was copied before"
        assert not (await part_of(store)).is_held


async def test_a_move_whose_last_operator_had_changed_the_roster_copies_nothing_again() -> None:
    async with operated() as (operator, cluster, store):
        disks = Disks(cluster, store)
        place = ["/b/bookie-2/journal"], ["/b/bookie-2/ledgers"]
        await operator._change(lambda now: rosters.with_place(now, NAME, *place, None, ""))
        outcome = {**MOVED_OUTCOME, "step": "copy", "old_directories": ["/a/journal", "/a/ledgers"]}
        await store_wish(store, replace(MOVE, state=WishState.ACCEPTED, outcome=outcome))
        assert (await ended(store, NAME)).state is WishState.DONE
        assert disks.done == ["retire"]
        assert (NAME, "remove") not in cluster.asked


async def test_a_bookie_is_held_for_a_copy_by_hand_and_placed_on_it() -> None:
    async with operated() as (operator, cluster, store):
        disks = Disks(cluster, store)
        place = Wish(WishKind.PLACE, NAME, {"at": "/c", "node": OTHER}, 1)
        assert "serves where it is" in str(await refused(store, place))
        await disks.end("bookie-3")
        assert "with an ensemble of 2" in str(await refused(store, Wish(WishKind.HOLD, NAME, {}, 2)))
        await store_wish(store, Wish(WishKind.HOLD, NAME, {"force": wishes.FORCED}, 3))
        assert (await ended(store, NAME)).outcome == {"bookie": NAME, "stopped": True}
        assert NAME not in cluster.running
        await disks.end()
        await operator._look(with_facts=False)
        assert NAME not in cluster.running, "nothing starts it"
        await store_wish(store, replace(place, asked_ms=5))
        await until(lambda: NAME in cluster.running)
        disks.at = OTHER
        await disks.serve()
        assert (await ended(store, NAME)).outcome["serving"]
        part = await part_of(store)
        assert (part.address, part.journal_directories, part.data_directories) == (OTHER, ("/c/j",), ("/c/l",))
        assert f"find {OTHER} /c/bookie-2" in disks.done
        assert cluster.asked.count((NAME, "remove")) == 1, "what starts at its new place is not ended"


async def test_a_bookie_whose_node_has_another_address_is_placed_there_with_its_directories() -> None:
    async with operated() as (_operator, cluster, store):
        disks = Disks(cluster, store)
        cluster.nodes = [*NODES[:1], *NODES[2:], Node("10.0.0.9", NODES[1].labels)]
        await disks.end()
        await store_wish(store, Wish(WishKind.PLACE, NAME, {"node": "10.0.0.9"}, 1))
        done = await ended(store, NAME)  # its time is over: the settings give it a second
        assert (done.outcome["serving"], done.note) == (False, "bookie-2 starts on 10.0.0.9")
        part = await part_of(store)
        assert (part.address, part.journal_directories, disks.done) == ("10.0.0.9", (), [])
        assert cluster.asked.count((NAME, "remove")) == 1, "it waited for the old node"


async def test_a_placement_whose_last_operator_had_changed_the_roster_ends() -> None:
    """The one before ended after the bookie was started at its new place, and before that was recorded."""
    outcome = {
        "bookie": NAME,
        "address": OTHER,
        "journal_directories": ["/c/j"],
        "data_directories": ["/c/l"],
        "selector": {},
        "rack": "default",
        "ends": False,
    }
    async with operated() as (operator, cluster, store):
        Disks(cluster, store).at = OTHER
        place = ["/c/j"], ["/c/l"], Place({}, OTHER)
        await operator._change(lambda now: rosters.with_place(now, NAME, *place, "default"))
        asked = Wish(WishKind.PLACE, NAME, {"at": "/c", "node": OTHER}, 1, WishState.ACCEPTED, outcome=outcome)
        await store_wish(store, asked)
        done = await ended(store, NAME)
        assert (done.state, done.outcome["serving"]) == (WishState.DONE, True)
        assert (await part_of(store)).address == OTHER


async def test_the_registration_of_an_ended_process_is_not_taken_for_the_start() -> None:
    async with operated() as (_operator, cluster, store):
        disks = Disks(cluster, store)
        await store_wish(store, MOVE)
        await until(lambda: "retire" in disks.done)
        disks.serves = ""
        waiting = MOVE
        while waiting.note != f"{NAME} starts on {OWN}":
            waiting = await until_state(store, NAME, WishState.ACCEPTED)
        disks.serves = f"{OWN}:2"
        assert (await ended(store, NAME)).outcome["serving"]


async def test_a_dead_disk_is_replaced_and_its_copies_are_awaited() -> None:
    async with operated() as (operator, cluster, store):
        found = {"bookie": NAME, "is_alive": False, "ledgers_left": 3}
        asked: list[bool] = []

        def answer(argument: bool, found: dict[str, Any]) -> dict[str, Any]:
            asked.append(argument)
            return found

        cluster.answers["permit_empty_disk"] = lambda name, loss: answer(loss, {"ledgers": 3})
        cluster.answers["recovery_progress"] = lambda name: dict(found)
        cluster.answers["recover_bookie"] = lambda name, is_replaced: answer(is_replaced, dict(found))
        disks = Disks(cluster, store)
        await disks.end()
        await operator._change(lambda now: rosters.with_held(now, NAME))
        await store_wish(store, Wish(WishKind.REPLACE, NAME, {"loss": wishes.ACCEPTS_LOSS}, 1))
        waiting = await until_state(store, NAME, WishState.ACCEPTED)
        while not waiting.note:
            waiting = await until_state(store, NAME, WishState.ACCEPTED)
        assert waiting.note == "bookie-2 may start on empty directories; 3 ledgers name it"
        assert not (await part_of(store)).is_held, "it is started again, if it was stopped"
        found["is_alive"] = True
        await disks.serve()
        while "to be repaired" not in waiting.note:
            waiting = await until_state(store, NAME, WishState.ACCEPTED)
        assert waiting.note == "bookie-2: 3 ledgers to be repaired"
        found["ledgers_left"] = 0
        assert (await ended(store, NAME)).outcome == {"bookie": NAME, "is_alive": True, "ledgers_left": 0}
        assert asked == [True, True], "the loss is accepted, and open ledgers are recovered once"


async def test_a_replacement_that_an_operator_permitted_and_did_not_record_goes_on() -> None:
    """The bookie serves by then, so that nobody would be permitted to have it start on empty directories."""
    async with operated() as (_operator, cluster, store):

        def permit(name: str, accepts_loss: bool) -> None:
            raise ConflictError(f"{name} serves")

        cluster.answers["permit_empty_disk"] = permit
        done = {"bookie": NAME, "is_alive": True, "ledgers_left": 0}
        cluster.answers["recover_bookie"] = lambda name, is_replaced: dict(done)
        cluster.answers["recovery_progress"] = lambda name: dict(done)
        begun = {"bookie": NAME, "is_alive": False, "ledgers_left": 0, "start": 4, "is_permitted": False}
        cookie = encode(Cookie(NAME, "i", (), (), start=5))
        await store.create(paths.bookie_cookie(NAME), cookie, parents=True)
        await store_wish(store, Wish(WishKind.REPLACE, NAME, {}, 1, WishState.ACCEPTED, outcome=begun))
        assert (await ended(store, NAME)).outcome == done


async def test_a_lost_bookie_is_recovered_in_as_many_rounds_as_there_is_room_for() -> None:
    async with operated() as (_operator, cluster, store):
        left = [3, 2, 1, 0]
        cluster.answers["recover_bookie"] = lambda name: {"is_alive": False, "ledgers_left": left.pop(0)}
        await store_wish(store, Wish(WishKind.RECOVER, NAME, {}, 1))
        assert (await ended(store, NAME)).state is WishState.DONE
        assert left == []

        def too_few(name: str) -> None:
            raise ConflictError("too few others")

        cluster.answers["recover_bookie"] = too_few
        assert "too few others" in str(await refused(store, Wish(WishKind.RECOVER, NAME, {}, 2)))


def restarting(names: str, asked_ms: int = 1) -> Wish:
    return Wish(WishKind.RESTART, wishes.PARTS, {"names": names} if names else {}, asked_ms)


async def test_parts_are_restarted_by_a_wish_and_a_stop_before_the_end_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async def not_started(name: str, seconds: float) -> str:
        await asyncio.sleep(0.01)
        return "no disk"

    async with operated() as (_operator, cluster, store):
        assert "no part 'bookie-9'" in str(await refused(store, restarting("bookie-9")))
        await store_wish(store, restarting("broker-3 bookie-2", 2))
        done = await ended(store, wishes.PARTS)
        assert (done.state, done.outcome["failure"]) == (WishState.DONE, "")
        removed = [name for name, method in cluster.asked if method == "remove"]
        assert removed == ["bookie-2", "broker-3"]
        monkeypatch.setattr(cluster, "started", not_started)
        await store_wish(store, restarting("", 3))
        done = await ended(store, wishes.PARTS)
        assert done.state is WishState.DONE
        assert "bookie-1 does not serve after 1 s: no disk" in done.note
        assert done.outcome["failure"] == done.note


async def test_a_restart_that_the_release_before_began_is_the_one_that_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with operated() as (operator, cluster, store):
        may_start = asyncio.Event()

        async def started(name: str, seconds: float) -> str:
            await may_start.wait()
            return ""

        monkeypatch.setattr(cluster, "started", started)
        await operator._change(lambda now: rosters.with_restart(now, RollingRestart((NAME,))))
        await store_wish(store, restarting(""))
        await until_state(store, wishes.PARTS, WishState.ACCEPTED)
        may_start.set()
        assert (await ended(store, wishes.PARTS)).outcome["restart_left"] == []
        assert {name for name, method in cluster.asked if method == "remove"} == {NAME}
