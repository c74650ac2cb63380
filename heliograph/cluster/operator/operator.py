"""The operator of one metadata session: it follows nodes and roster, and acts while it leads."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from heliograph.base.backoff import Backoff
from heliograph.base.clock import wall_ms
from heliograph.base.completion import end_task
from heliograph.base.errors import ConflictError, HeliographError, NotFoundError, ServiceNotReadyError
from heliograph.base.interval import until_tick
from heliograph.base.settings import fields_added
from heliograph.client.discovery import AUDITOR, METADATA, OPERATOR
from heliograph.cluster import labels
from heliograph.cluster.labels import Node
from heliograph.cluster.naming import kind_of, sort_key
from heliograph.cluster.operator import roster as rosters
from heliograph.cluster.operator import wishes
from heliograph.cluster.operator.changes.members import MemberRules, Members
from heliograph.cluster.operator.changes.moving import Moving
from heliograph.cluster.operator.changes.recovery import Recovery
from heliograph.cluster.operator.departure import Departure, require_others, unload
from heliograph.cluster.operator.granting import Granting, Outcome, Progress, Way, by_subject
from heliograph.cluster.operator.planning import OperatorPlan, OperatorRules, Sight, plan
from heliograph.cluster.operator.ports import ActorState, ClusterPort, OperatorContext, PartFacts
from heliograph.cluster.operator.reporting import Reporter, Watching, node_reports, part_problem, part_reports
from heliograph.cluster.operator.rolling import Rolling
from heliograph.cluster.operator.storage import load_roster, load_wish, load_wishes, save_roster, store_wish
from heliograph.cluster.watch.config import WatchFiles
from heliograph.metadata.model import Persistence
from heliograph.metadata.operator_records import RollingRestart, Roster, Wish, WishKind, WishState
from heliograph.metadata.recipes.election import Election
from heliograph.metadata.recipes.occupancy import registered
from heliograph.metadata.store import MetadataStore
from heliograph.metrics.metric import Histogram

log = logging.getLogger(__name__)

ELECTION = "operator"
POLL_SECONDS = 1.0  # between two looks at the nodes
FACTS_EVERY = 10  # looks, between two questions to the parts
KEEP_MS_MAX = 120_000  # age of a wish to stop parts in good order, after which their machine may be back
CREATE_MS, CREATE_MS_MAX = 1_000, 60_000  # pauses between attempts to create one part  # I15
JOIN_MS_MAX = 600_000  # after which the parts of a node that joined are not asked any more; they keep trying
STARTED_SECONDS = 3.0  # for a part that serves to say so
SCALED = {"bookies": "bookie", "brokers": "broker"}  # subjects of wishes, and the kinds of parts that they are


@fields_added("copies", "members", "watch_files")
@dataclass(frozen=True, slots=True)
class OperatorSettings:
    """Settings of the operator.

    Attributes:
        identity: its name for people, with the node it runs on.
        others: names of the parts that do not follow from the roster, which have to run, too.
        ensemble_size: of namespaces that do not set their own.
        start_seconds: for a restarted part to serve and for the copies to be back.
        copies: of namespaces that set none; None: not known, as from an earlier release.
        members: rules for making etcd members; None: the cluster runs none.
        watch_files: files that Prometheus reads; None: not known, as from an earlier release.
    """

    identity: str
    rules: OperatorRules
    others: tuple[str, ...]
    ensemble_size: int
    start_seconds: float
    copies: Persistence | None = None
    members: MemberRules | None = None
    watch_files: WatchFiles | None = None


class Operator:
    """One candidate in the election of operators, and its work while it leads."""

    def __init__(
        self, store: MetadataStore, cluster: ClusterPort, settings: OperatorSettings, metadata_url: str = ""
    ) -> None:
        self._store = store
        self._cluster = cluster
        self._settings = settings
        self._election = Election(store, ELECTION, settings.identity)
        self._roster: Roster | None = None  # None until this operator leads
        self._changing = asyncio.Lock()
        self._looking = asyncio.Lock()
        self._facts: dict[str, PartFacts] = {}
        self._attempts: dict[str, tuple[float, Backoff]] = {}  # at most one a part: when the next may be, and pauses
        self._work: dict[str, asyncio.Task[None]] = {}  # by part, or "restart"; at most one each (I15)
        self._notes: dict[str, str] = {}  # by part or node
        self._plan_notes: tuple[str, ...] = ()
        self._actors: dict[str, ActorState] = {}
        self.reporter = Reporter(store, settings.identity, settings.copies)
        self._metadata_url = metadata_url
        roster, said = (self._leading, self._change), (self._note, self._wrong)
        self._context = OperatorContext(store, cluster, *roster, *said, settings.ensemble_size, settings.start_seconds)
        self._members = Members(self._context, settings.rules, settings.members)
        moving, recovery = Moving(self._context).ways(), Recovery(self._context).ways()
        self._granting = Granting(
            store,
            {
                WishKind.SCALE: Way(self._begin_scaling, self._scaling),
                WishKind.DECOMMISSION: Way(self._begin_decommission, self._decommission),
                WishKind.KEEP: Way(self._keep, self._kept),
                WishKind.LEAVE: Way(self._begin_leave, self._leave),
                WishKind.JOIN: Way(self._begin_join, self._join),
                WishKind.RESTART: Way(self._begin_restart, self._restart),
                **moving,
                **recovery,
                WishKind.MEMBERS: self._members.resizing(),
                WishKind.REPLACE: by_subject(METADATA, self._members.replacement(), recovery[WishKind.REPLACE]),
            },
            lambda: self._look(with_facts=True),
        )
        self._watching = Watching(cluster, settings.watch_files)
        self._counts = dict.fromkeys(("looks_failed", "parts_created", "creations_failed"), 0)
        self._look_duration = Histogram()
        self._taking = asyncio.Lock()  # of wishes that check whether others suffice, until the roster says who leaves
        self._erasing: dict[str, bool] = {}  # bookies whose data is to be deleted, and whether it was
        self._left: dict[str, int] = {}  # ledgers to be moved from bookies that leave

    async def run(self) -> None:
        """Wait for the leadership, then act until it is lost.

        Raises:
            MetadataError: the session ended; a new store and a new operator are needed.
        """
        if (leader := await self._election.leader()) is not None:
            log.warning("%s waits: %s leads", self._settings.identity, leader)
        leadership = await self._election.campaign()
        log.info("%s leads", self._settings.identity)
        self._roster = await load_roster(self._store) or Roster()
        looks = 0
        try:
            await self._remember_erasures()
            while not leadership.lost.is_set():
                began = time.monotonic()
                try:
                    await self._look(with_facts=looks % FACTS_EVERY == 0)
                    await self._granting.look()
                except ServiceNotReadyError as error:
                    self._counts["looks_failed"] += 1
                    log.warning("%s", error)
                self._look_duration.observe(time.monotonic() - began)
                looks += 1
                await asyncio.sleep(until_tick(POLL_SECONDS))
        finally:
            self._roster = None
            await self._granting.stop()
            for task in self._work.values():
                task.cancel()
            await asyncio.gather(*self._work.values(), return_exceptions=True)
            await self.reporter.stop()
            await self._watching.stop()

    def statistics(self) -> dict[str, Any]:
        """Return the counters since the session began, and the numbers of wanted and present parts."""
        roster = self._roster or Roster()
        wanted = {part.name for part in roster.parts if not part.is_held} | {*self._others(roster)}
        return {
            "is_leader": int(self._roster is not None),
            **self._counts,
            "looks": sum(self._look_duration.counts),
            "look_duration": self._look_duration.told(),
            "parts_wanted": len(wanted | {*self._replicators(roster)}),
            "parts_answering": sum(actor.is_answering for name, actor in self._actors.items() if name != OPERATOR),
            "changes_under_way": len(self._work),
        }

    # -- wishes

    async def _begin_scaling(self, wish: Wish) -> Outcome:
        count = int(text) if (text := wish.arguments.get("count", "")).isdecimal() else 0
        kind, roster = SCALED.get(wish.subject, wish.subject), await self._leading()
        sight = await self._cluster.sight(self._homes())
        away = [
            part.name
            for part in rosters.staying(roster, kind)
            if not any(rosters.place_of(part).admits(node) for node in sight.nodes)
        ]
        async with self._taking:
            leaving = rosters.surplus(roster, kind, max(1, count), away)
            rosters.scaled(roster, kind, count, leaving)  # which checks kind and number
            if leaving and kind == "bookie":
                await require_others(self._store, leaving, self._settings.ensemble_size)
            await self._change(lambda now: rosters.scaled(now, kind, count, rosters.surplus(now, kind, count, away)))
        log.warning("%d %ss are wanted; leaving: %s", count, kind, ", ".join(leaving) or "none")
        await self._look(with_facts=False)
        return {}

    async def _scaling(self, wish: Wish) -> Progress:
        kind, found = SCALED[wish.subject], await self.progress()
        mine = [part for name, part in found["parts"].items() if kind_of(name) == kind]
        is_leaving = any(kind_of(name) == kind for name in found["leaving"])
        has_all = sum(part["is_serving"] for part in mine) >= int(wish.arguments["count"])
        return Progress(has_all and not is_leaving, "; ".join(found["notes"]), found)

    async def _begin_decommission(self, wish: Wish) -> Outcome:
        name, roster = wish.subject, await self._leading()
        rosters.require_part(roster, name, "bookie")
        with contextlib.suppress(NotFoundError):  # it never served
            await self._cluster.ask(AUDITOR, "decommission", name)
        if wishes.DELETES_DATA in wish.arguments.values():
            self._erasing[name] = False
        await self._change(lambda now: rosters.with_leaving(now, [name]))
        self._start_work(await self._leading())
        return {}

    async def _decommission(self, wish: Wish) -> Progress:
        name, roster = wish.subject, await self._leading()
        is_gone = all(part.name != name for part in roster.parts)
        left = 0 if is_gone else self._left.get(name, 0)
        outcome = {
            "bookie": name,
            "done": is_gone,
            "ledgers_left": left,
            "data_deleted": self._erasing.get(name, False),
        }
        if is_gone:
            self._erasing.pop(name, None)
            self._left.pop(name, None)
        return Progress(is_gone, "" if is_gone else self._notes.get(name, ""), outcome)

    async def _keep(self, wish: Wish) -> Outcome:
        name = wish.subject
        rosters.require_part(await self._leading(), name, "bookie")
        await self._change(lambda now: rosters.with_staying(now, name))  # first: its work is not begun again
        await end_task(self._work.get(name))
        with contextlib.suppress(NotFoundError):  # it was not being emptied yet, or this is done again
            await self._cluster.ask(AUDITOR, "cancel_decommission", name)
        self._erasing.pop(name, None)
        self._note(name, "")
        return {}

    async def _kept(self, wish: Wish) -> Progress:
        return Progress(True, "", {"bookie": wish.subject, "cancelled": True})

    async def _begin_leave(self, wish: Wish) -> Outcome:
        async with self._taking:
            address, roster, options = wish.subject, await self._leading(), wish.arguments.values()
            if wishes.KEEPS_DATA in options and wall_ms() - wish.asked_ms > KEEP_MS_MAX:
                raise ConflictError("nobody stopped the parts in time: run helio leave again", field="node")
            if address not in roster.nodes:
                raise NotFoundError(f"no node {address} has parts", field="address", limit=", ".join(roster.nodes))
            nodes = (await self._cluster.sight(self._homes())).nodes
            self._require_other_nodes(address, nodes, roster)
            at = _only_at(address, nodes, roster)
            bookies = [name for name in at if kind_of(name) == "bookie"]
            if bookies and wishes.FORCED not in options:
                await require_others(self._store, bookies, self._settings.ensemble_size)
            if wishes.KEEPS_DATA in options:
                here = self._parts_on(address, nodes, roster)
                await self._give_away(here)
                return {"stopped": here}
            log.warning("%s is to leave, with %s", address, ", ".join(at) or "no part")
            await self._change(lambda now: rosters.with_leaving_node(now, address))
            await self._look(with_facts=False)
            return {}

    async def _leave(self, wish: Wish) -> Progress:
        address, roster = wish.subject, await self._leading()
        if "stopped" in wish.outcome:
            stopped = ", ".join(wish.outcome["stopped"])
            return Progress(True, f"{stopped} stopped in good order" if stopped else "", {"left": {}})
        here = self._parts_on(address, (await self._cluster.sight(self._homes())).nodes, roster)
        left = {name: self._notes.get(name, f"{name} is still there") for name in here}
        return Progress(not left, "; ".join(left.values()), {"left": left})

    def _parts_on(self, address: str, nodes: Sequence[Node], roster: Roster) -> list[str]:
        """Return the parts that run on a node or can run there only."""
        at, homes = _only_at(address, nodes, roster), self._homes()
        return [
            part.name for part in roster.parts if part.name in at or (part.address or homes.get(part.name)) == address
        ]

    async def _give_away(self, names: Sequence[str]) -> None:
        """Stop what runs on a node that is about to end; brokers give their topics to others first."""
        for name in sorted(names, key=sort_key, reverse=True):
            if kind_of(name) == "broker":
                await unload(name, self._store, self._cluster)
            with contextlib.suppress(HeliographError):  # else it ends with the node, as in a failure
                await self._cluster.ask(name, "stop")

    async def _remember_erasures(self) -> None:
        for wish in await load_wishes(self._store):
            if wish.state is WishState.ACCEPTED and wishes.DELETES_DATA in wish.arguments.values():
                self._erasing[wish.subject] = False

    async def store_wish(self, wish: Wish) -> Wish:
        return await store_wish(self._store, wish)

    async def load_wish(self, subject: str) -> Wish | None:
        return await load_wish(self._store, subject)

    async def _begin_restart(self, wish: Wish) -> Outcome:
        roster = await self._leading()
        if roster.restart is not None:  # of the release before, or of an operator that ended since
            return {}
        names = wish.arguments["names"].split() if wish.arguments else []
        known = [part.name for part in roster.parts if not part.is_leaving and not part.is_held]
        known = sorted([*known, *self._others(roster), *self._replicators(roster)], key=_restart_order)
        for name in names:
            if name not in known:
                raise NotFoundError(f"there is no part {name!r} to restart", field="part", limit=", ".join(known))
        wanted = tuple(name for name in known if not names or name in names)
        await self._change(lambda now: rosters.with_restart(now, RollingRestart(wanted)))
        self._start_work(await self._leading())
        return {}

    async def _restart(self, wish: Wish) -> Progress:
        found = await self.progress()
        return Progress(not found["restart_left"], found["failure"] or self._notes.get("restart", ""), found)

    async def _begin_join(self, wish: Wish) -> Outcome:
        await self._change(lambda now: rosters.without_leaving_node(now, wish.subject))
        return {}

    async def _join(self, wish: Wish) -> Progress:
        address, named, found = wish.subject, wish.arguments.get("bookie", ""), await self.progress()
        at = [name for name, part in found["parts"].items() if part["address"] == address or name == named]
        missing = {} if address in found["nodes"] else {address: "the operator has not seen it yet"}
        if named and named not in at:
            missing[named] = "the operator has not made it yet"
        # Each is asked: the registration of a process that ended lasts as long as its session.
        waits = await asyncio.gather(*(self._cluster.started(name, STARTED_SECONDS) for name in at))
        for name, why in zip(at, waits, strict=True):
            if why or not found["parts"][name]["is_serving"]:
                missing[name] = found["wrong"].get(name) or why or "it is starting"
        done = f"serving here: {', '.join(at)}" if at else "no part has its place here yet"
        note = "; ".join(f"{name}: {why}" for name, why in sorted(missing.items()))
        is_over = not missing or wall_ms() - wish.asked_ms > JOIN_MS_MAX
        return Progress(is_over, f"waiting for {note}" if missing else done, {"parts": at, "missing": missing})

    # -- what callers ask for

    def _require_other_nodes(self, address: str, nodes: Sequence[Node], roster: Roster) -> None:
        stores = [name for name in self._others(roster) if kind_of(name) == METADATA]
        if kept := [name for name in stores if self._homes().get(name) == address]:
            raise ConflictError(
                f"{address} has the metadata store on its disk ({', '.join(kept)}): it cannot leave", field="node"
            )
        leaving = {address, *roster.leaving_nodes}
        brokers = {node.address for node in nodes if node.labels.get(labels.BROKER) == labels.ANY}
        if address in brokers and brokers <= leaving:
            raise ConflictError(
                f"{address} is the only node labelled {labels.BROKER}={labels.ANY}: nothing would serve clients",
                field="node",
            )

    async def progress(self) -> dict[str, Any]:
        """Return the parts that are wanted, that are present, and the changes under way.

        Returns:
            ``wanted_bookies``, ``wanted_brokers``; ``parts`` by name with ``address`` and ``is_serving``; ``leaving``;
            ``places``: addresses of all parts with those that leave; ``wrong``: why parts do not start;
            ``restart_left``, ``restart_done`` and ``failure`` of the rolling restart; ``nodes``; and ``notes``. What
            is returned is in the report, too.
        """
        await self._leading()
        with contextlib.suppress(ServiceNotReadyError):  # of Ray: then by the latest look
            await self._look(with_facts=False)
        roster = await self._leading()
        serving = await registered(self._store)
        restart = roster.restart or RollingRestart(())
        return {
            "wanted_bookies": roster.wanted_bookies,
            "wanted_brokers": roster.wanted_brokers,
            "parts": {
                part.name: {
                    "address": part.address or self._homes().get(part.name, ""),
                    "is_serving": part.name in serving,
                }
                for part in roster.parts
                if not part.is_leaving
            },
            "leaving": [part.name for part in roster.parts if part.is_leaving],
            "places": {part.name: part.address or self._homes().get(part.name, "") for part in roster.parts},
            "wrong": {name: wrong for name, facts in self._facts.items() if (wrong := part_problem(facts))},
            "restart_left": list(restart.left),
            "restart_done": list(restart.done),
            "failure": roster.failure,
            "nodes": list(roster.nodes),
            "notes": [*self._plan_notes, *self._notes.values()],
        }

    # -- one look

    async def _look(self, *, with_facts: bool) -> None:
        async with self._looking:  # callers have it look, too
            await self._look_alone(with_facts=with_facts)

    async def _look_alone(self, *, with_facts: bool) -> None:
        sight = await self._cluster.sight(self._homes())
        if await self.reporter.has_changed() or with_facts:
            found = await self._cluster.facts(sight.running)
            self._facts = {name: facts for name, facts in {**self._facts, **found}.items() if name in sight.running}
            for name in (name for name, facts in found.items() if not facts.failure):
                self._attempts.pop(name, None)  # it is there: its next loss has nothing to do with this one
            self._actors = await self._cluster.actors(sight.running)
            self._watching.look(self._facts)
            shortage = await self._cluster.memory_shortage()
            self._note("memory", shortage.note(time.time()) if shortage is not None else "")
        made: list[OperatorPlan] = []

        def planned(now: Roster) -> Roster:
            made[:] = [plan(now, sight, self._settings.rules)]
            return made[0].roster

        await self._change(planned)
        done = made[0]
        self._plan_notes = done.notes
        for name in (*done.create, *(name for name in self._others(done.roster) if name not in sight.running)):
            await self._create(name, done.roster)
        for name in done.surplus:
            self._start(name, self._cluster.remove(name))
        for name in done.departures:
            self._start(name, self._departure(name).leave_node())
        for name in done.moves:
            self._start(name, self._move(name))
        self._start_work(done.roster)
        await self._report(done, sight)

    async def _create(self, name: str, roster: Roster) -> None:
        now = asyncio.get_running_loop().time()
        due, pauses = self._attempts.get(name, (now, Backoff(CREATE_MS, CREATE_MS_MAX)))
        if now < due or name in self._work or "restart" in self._work:
            return
        self._attempts[name] = (now + pauses.pause(), pauses)
        log.warning("%s does not run: creating it", name)
        try:
            await self._cluster.create(name, roster)
        except Exception as error:  # Ray raises many classes here; all mean the same
            self._counts["creations_failed"] += 1
            log.warning("%s cannot be created: %s", name, error)
            self._notes[name] = f"{name} cannot be created: {error}"
        else:
            self._counts["parts_created"] += 1
            self._notes.pop(name, None)

    async def _move(self, name: str) -> None:
        """End a broker in good order; the next look creates it at its place."""
        self._note(name, f"{name} moves to another node")
        await unload(name, self._store, self._cluster)
        await self._cluster.remove(name)
        self._facts.pop(name, None)
        self._note(name, "")

    def _start_work(self, roster: Roster) -> None:
        for part in roster.parts:
            if part.is_leaving:
                self._start(part.name, self._departure(part.name).take_out())
        if roster.restart is not None:
            self._start("restart", Rolling(self._context).run())

    def _start(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        if name in self._work:
            work.close()
            return
        task = self._work[name] = asyncio.get_running_loop().create_task(work, name=f"operator {name}")
        task.add_done_callback(lambda ended: self._ended(name, ended))

    def _ended(self, name: str, task: asyncio.Task[None]) -> None:
        self._work.pop(name, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            if not isinstance(error, HeliographError):
                log.error("%s: the operator's work failed", name, exc_info=error)
            self._notes[name] = f"{name}: {error}; it is tried again"

    def _wrong(self, name: str) -> str:
        return part_problem(self._facts[name]) if name in self._facts else ""

    def _departure(self, name: str) -> Departure:
        return Departure(name, self._context, self._erasing, self._left)

    def _note(self, name: str, text: str) -> None:
        if self._notes.get(name, "") != text:
            log.info("%s", text or f"{name}: done")
        self._notes[name] = text
        if not text:
            del self._notes[name]

    async def _report(self, done: OperatorPlan, sight: Sight) -> None:
        failure = (done.roster.failure,) if done.roster.failure else ()
        notes = (*done.notes, *(text for _, text in sorted(self._notes.items())), *failure)
        others = (OPERATOR, *self._others(done.roster), *self._replicators(done.roster))
        found = part_reports(done.roster, others, sight.running, sight.nodes, self._facts, self._actors)
        url = self._members.store_url(done.roster) or self._metadata_url
        await self.reporter.report(found, notes, node_reports(done.roster, sight.nodes), url)

    # -- the roster

    async def _change(self, change: Callable[[Roster], Roster]) -> None:
        async with self._changing:
            roster = await self._leading()
            changed = change(roster)
            if changed != roster:
                await save_roster(self._store, changed)
                self._roster = changed

    async def _leading(self) -> Roster:
        if self._roster is None:
            leader = await self._election.leader()
            raise ServiceNotReadyError(f"this operator waits: {leader or 'none yet'} leads; try again")
        return self._roster

    def _others(self, roster: Roster) -> list[str]:
        """Return the parts that are neither bookies nor brokers nor replication workers."""
        members = [member.name for member in roster.members]
        return members + [name for name in self._settings.others if not members or kind_of(name) != METADATA]

    def _replicators(self, roster: Roster) -> list[str]:
        return rosters.replicators(roster) if self._settings.rules.has_replicators else []

    def _homes(self) -> dict[str, str]:
        return {name: facts.home for name, facts in self._facts.items()}


def _restart_order(name: str) -> tuple[int, tuple[int, int, str]]:
    """Bookies, then what uses them; the metadata store last, because nothing can be stored while it is away."""
    return (1 if kind_of(name) == "metadata" else 0), sort_key(name)


def _only_at(address: str, nodes: Sequence[Node], roster: Roster) -> list[str]:
    """Return the names of the parts that can run on the node of this address only."""
    return [part.name for node in nodes if node.address == address for part in rosters.parts_at(roster, node)]
