"""The operator's report: the states of the parts' processes, and the record that it keeps while it leads.

Beside it are the files by which others watch the cluster.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from heliograph.base.clock import wall_ms
from heliograph.base.completion import end_task
from heliograph.base.errors import HeliographError
from heliograph.client import discovery
from heliograph.client.discovery import GATEWAY
from heliograph.cluster import labels
from heliograph.cluster.head.watch_files import keep_files, targets_text
from heliograph.cluster.labels import Node, Place
from heliograph.cluster.naming import kind_of, sort_key
from heliograph.cluster.operator import roster as rosters
from heliograph.cluster.operator.ports import ActorState, ClusterPort, PartFacts
from heliograph.cluster.watch.config import WatchFiles
from heliograph.metadata import paths
from heliograph.metadata.errors import SessionExpiredError
from heliograph.metadata.model import Persistence
from heliograph.metadata.operator_records import ClusterReport, NodeReport, PartReport, Roster
from heliograph.metadata.store import MetadataStore
from heliograph.report.findings import NOT_STARTING
from heliograph.report.gathering import ALIVE, MISSING, gather
from heliograph.report.members import with_members
from heliograph.report.record import REPORT_SECONDS, REPORT_SECONDS_MAX, load_report, save_report, with_since

WAIT_SECONDS = 2.0  # the operator waits so long for a report that is being made, and then goes on beside it
EASE = 20  # a report that took a second to make is made again after so many, unless something changed
HERE_SECONDS = 60.0  # between two looks at the files of this machine; Ray removes its boards with each session
THERE_SECONDS = 600.0  # the same on another machine, where a look is a task of Ray
STARTS_REPORTED = 3  # in a row, from which on they are a crash loop
_OWN_ADDRESS = ("gateway", "metadata")  # kinds that are not registered in metadata with their addresses
_WATCHED = (
    paths.BOOKIES_AVAILABLE,
    paths.BOOKIES_READONLY,
    paths.BOOKIES_DRAINING,
    paths.BROKERS_AVAILABLE,
    paths.UNDERREPLICATION_DISABLED,
)

log = logging.getLogger(__name__)


class Reporter:
    """Keep the record of the cluster. Make a new report when a registration changes, and every 10 s."""

    def __init__(self, store: MetadataStore, identity: str, copies: Persistence | None = None) -> None:
        self._store = store
        self._copies = copies  # where a namespace sets none; None: not known
        self._identity = identity
        self._watched: tuple[int, ...] = ()
        self._given: tuple[Sequence[PartReport], Sequence[str], Sequence[NodeReport]] | None = None  # of the latest
        self._due = 0.0
        self._last: ClusterReport | None = None
        self._making: asyncio.Task[None] | None = None
        self.on_report: Callable[[ClusterReport], None] = lambda report: None  # called with each that was stored

    async def has_changed(self) -> bool:
        """Return whether other bookies and brokers are registered than at the call before, or repair began or ended.

        Raises:
            MetadataError: the store failed.
        """
        stats = [await self._store.exists(path) for path in _WATCHED]
        tasks = await self._store.exists(paths.UNDERREPLICATED)
        lacks = tasks is not None and tasks.num_children > 0  # each task would be a report a second
        before, self._watched = self._watched, (*(stat.pzxid if stat else -1 for stat in stats), lacks)
        if before != self._watched:
            self._due = 0.0
        return before != self._watched

    async def report(
        self,
        parts: Sequence[PartReport],
        notes: Sequence[str],
        nodes: Sequence[NodeReport] = (),
        metadata_url: str = "",
    ) -> None:
        """Bring the record up to date. A report that takes long is finished later.

        Args:
            metadata_url: names the etcd members, if the cluster runs them.

        Raises:
            SessionExpiredError: the session ended.
        """
        measured = [replace(part, skew_ms=0.0, round_ms=0.0) for part in parts]  # these are measured again each time
        given = measured, notes, nodes
        if self._making is not None and not await self._is_made():  # what is given now comes after it
            return
        if given != self._given or time.monotonic() >= self._due:
            for note in set(notes) - {*(self._given[1] if self._given else ())}:
                log.warning("%s", note)
            self._given = given
            work = self._make(parts, notes, nodes, metadata_url)
            self._making = asyncio.get_running_loop().create_task(work, name="report")
            await self._is_made()

    async def _is_made(self) -> bool:
        """Return whether the report is finished within a moment; if it failed, raise why."""
        assert self._making is not None, "one is being made"
        done, _ = await asyncio.wait((self._making,), timeout=WAIT_SECONDS)
        if done:
            task, self._making = self._making, None
            task.result()
        return bool(done)

    async def stop(self) -> None:
        """End the work. The record stays as it is."""
        await end_task(self._making)

    async def _make(
        self, parts: Sequence[PartReport], notes: Sequence[str], nodes: Sequence[NodeReport], metadata_url: str
    ) -> None:
        begun = time.monotonic()
        try:
            self._last = self._last or await load_report(self._store)
            parts, troubles = await with_members(parts, metadata_url)
            found = await gather(self._store, parts, (*notes, *troubles), self._copies)
        except SessionExpiredError:
            raise
        except HeliographError as error:  # of one record, or for a moment: the operator goes on, and readers are told
            found = ClusterReport(parts=tuple(parts), notes=(*notes, f"the report is not whole: {error}"))
        eased = min(REPORT_SECONDS_MAX, EASE * (time.monotonic() - begun))
        self._due = time.monotonic() + max(REPORT_SECONDS, eased)
        found = replace(found, identity=self._identity, as_of_ms=wall_ms(), nodes=tuple(nodes))
        self._last = with_since(found, self._last)
        with contextlib.suppress(HeliographError) if found.underreplicated_ledgers < 0 else contextlib.nullcontext():
            await save_report(self._store, self._last)
            self.on_report(self._last)


def part_reports(
    roster: Roster,
    others: Iterable[str],
    running: frozenset[str],
    nodes: Sequence[Node],
    facts: Mapping[str, PartFacts],
    actors: Mapping[str, ActorState],
) -> list[PartReport]:
    """Return a report of every part that the cluster has or is to have. Pure.

    Args:
        others: names of the parts that do not follow from the roster.
        running: names of the parts that Ray has actors of.
        facts: what parts said of themselves last.
        actors: what Ray says of the actors of the parts that answered none of the latest questions.
    """
    known = {part.name: part for part in roster.parts}
    names = {*running, *others, *(part.name for part in roster.parts if not part.is_held)}

    def reported(name: str) -> PartReport:
        made, part = PartReport(name, kind_of(name)), known.get(name)
        place = Place() if part is None else rosters.place_of(part)
        if part is not None and part.is_leaving:
            made = replace(made, is_leaving=True, note="is leaving")
        if name not in running:
            why = "nothing runs it: the operator starts it"
            if not any(place.admits(node) for node in nodes):
                why = f"it is waiting for {place}"
            return replace(made, state=MISSING, note=made.note or why, home=part.address if part else "")
        actor, fact = actors.get(name), facts.get(name)
        if actor is not None and not actor.is_answering:
            why = labels.why_not_running(place, nodes, actor.state or None, actor.restarts)
            made = replace(made, state=actor.state or "SILENT", restarts=actor.restarts, note=made.note or why)
        if fact is None:
            return made
        made = _with_facts(made, fact)
        if actor is not None and actor.is_answering:
            wrong = part_problem(fact)
            # The part serves now, but was started again and again, or needs much memory.
            made = replace(made, restarts=actor.restarts, note=made.note or wrong, is_warning=not fact.failure)
        return made

    return [reported(name) for name in sorted(names, key=sort_key)]


def node_reports(roster: Roster, nodes: Sequence[Node]) -> list[NodeReport]:
    """Return the machines of the cluster, and the machines that parts wait for. Pure."""
    alive = {node.address for node in nodes}
    states = {part.address: "AWAY" for part in roster.parts if part.address} | dict.fromkeys(alive, ALIVE)
    states |= {address: "LEAVING" for address in roster.leaving_nodes if address in alive}
    return [NodeReport(address, state) for address, state in sorted(states.items())]


def part_problem(facts: PartFacts) -> str:
    """Return the problem that a part reports of itself; empty if it reports none."""
    where = f"on {facts.home}: " if facts.home else ""
    again = f"started {facts.starts} times in a row" if facts.starts >= STARTS_REPORTED else ""
    if facts.failure:
        return f"{where}{NOT_STARTING}: {facts.failure}" + (f" ({again}, with growing pauses)" if again else "")
    if again:
        ends = "serves now, after it ended" if facts.address else "ends"
        return f"{where}its process {ends} again and again ({again}, with growing pauses): see helio logs"
    return f"{where}{facts.memory}" if facts.memory else ""


def _with_facts(part: PartReport, facts: PartFacts) -> PartReport:
    return replace(
        part,
        state=part.state or ALIVE,
        address=facts.address if part.kind in _OWN_ADDRESS else "",
        home=facts.home,
        pid=facts.pid,
        version=facts.version,
        installed=facts.installed,
        formats=dict(facts.formats),
        open_files_max=facts.open_files_max,
        skew_ms=facts.skew_ms,
        round_ms=facts.round_ms,
    )


class Watching:
    """Keeps the files true by which others watch the cluster.

    It works in the background, so that a machine that does not answer delays no look of the operator.
    """

    def __init__(self, cluster: ClusterPort, files: WatchFiles | None) -> None:
        self._cluster = cluster
        self._files = files
        self._text = ""
        self._due = 0.0
        self._failed = ""
        self._task: asyncio.Task[None] | None = None

    def look(self, facts: Mapping[str, PartFacts]) -> None:
        """Write the files by the latest facts of the parts, if these changed or a look is due."""
        files = self._files
        if files is None or (self._task is not None and not self._task.done()):
            return
        urls = {name: each.address if name == GATEWAY else each.metrics_address for name, each in facts.items()}
        text = targets_text(files.cluster, {name: (url, facts[name].home) for name, url in urls.items()})
        if text == self._text and time.monotonic() < self._due:
            return
        self._text = text
        self._task = asyncio.get_running_loop().create_task(self._keep(files, text), name="watch files")

    async def stop(self) -> None:
        await end_task(self._task)

    async def _keep(self, files: WatchFiles, text: str) -> None:
        is_here = discovery.is_attached() and discovery.own_address() == files.address
        self._due = time.monotonic() + (HERE_SECONDS if is_here else THERE_SECONDS)
        try:
            if is_here:
                await asyncio.to_thread(keep_files, files.home, text)
            else:
                await self._cluster.on_node(files.address, keep_files, files.home, text)
        except (HeliographError, OSError) as error:
            if str(error) != self._failed:
                log.warning("the files for Prometheus are not kept: %s", error)
            self._failed = str(error)
        else:
            self._failed = ""
