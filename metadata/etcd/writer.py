"""Carrying out writes: in the order of the calls, as many in one transaction as can share one, each exactly once.

A plan is made on what was seen of the nodes and sent with the condition that nothing of it has changed; if something
has, etcd's refusal says how things are, and the plan is made anew. A transaction whose answer was lost is recognised by
the sequence number that it left in the session's record, or sent again: it can take effect only once.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from heliograph.errors import HeliographError
from metadata.errors import ConnectionLossError, MetadataError, SessionExpiredError, ValueTooLargeError
from metadata.etcd.calls import Write
from metadata.etcd.draft import CountNeeded, Draft, PendingStat, PlannedResult, Result, looks_at
from metadata.etcd.failures import CompactedError
from metadata.etcd.limits import (
    BATCH_BYTES_MAX,
    CONFLICT_PAUSE_MS_MAX,
    CONFLICTS_MAX,
    CONFLICTS_WITHOUT_PAUSE,
    OPERATIONS_MAX,
)
from metadata.etcd.reader import Reader
from metadata.etcd.record import Family, SessionRecord
from metadata.etcd.seen import SeenFamily, SeenNode, Snapshot
from metadata.etcd.session import Session
from metadata.etcd.transaction import SeenSession, Transaction
from metadata.session_clock import now
from metadata.store import Create, Delete, Operation, Set

_OPERATIONS_OF: dict[type[Operation], int] = {Create: 3, Set: 3, Delete: 4}  # of etcd, at most; a check takes one


@dataclass(frozen=True, slots=True)
class _Plan:
    """What one etcd transaction is to do, and for whom."""

    draft: Draft
    writes: list[Write]
    planned: list[list[PlannedResult] | MetadataError]
    transaction: Transaction


@dataclass(frozen=True, slots=True)
class _Done:
    """A plan that took effect, or needed none (``revision`` 0)."""

    plan: _Plan
    revision: int
    stats: Snapshot


class Writer:
    """The writes of one session, one transaction at a time. ``cache`` is what was seen of the nodes."""

    def __init__(self, session: Session, reader: Reader, cache: Snapshot) -> None:
        self._session = session
        self._requests = session.requests
        self._reader = reader
        self._cache = cache
        self._sequence = 0
        self._fresh: set[tuple[bool, str]] = set()  # (is family, path): what one answer of etcd said together
        self._doubtful: dict[int, _Plan] = {}  # by sequence number: sent, and no answer came
        self._began_at = 0.0
        self._tried_since = 0.0
        self._answering: set[asyncio.Task[None]] = set()

    async def carry_out(self, writes: Sequence[Write]) -> Sequence[Write]:
        """Do as many of the writes, from the first on, as fit into one transaction, and answer or fail them.

        Returns:
            the others, which are still to be done.
        """
        self._fresh.clear()
        self._doubtful.clear()
        self._tried_since = now()
        self._began_at = writes[0].began_at
        try:
            return await self._carry_out(writes)
        finally:
            self._cache.counts.clear()
            self._cache.trim()

    async def _carry_out(self, writes: Sequence[Write]) -> Sequence[Write]:
        limit, conflicts = len(writes), 0
        while True:
            plan = None
            try:
                await self._look(writes[:limit])
                plan = await self._plan(writes[:limit])
                done = await self._attempt(plan)
            except HeliographError as error:
                taken = plan.writes if plan is not None else writes[:limit]
                if isinstance(error, ValueTooLargeError) and len(taken) > 1:
                    limit = 1  # one of them is too much, or all together: each for itself
                    continue
                self._fail(taken, error)
                return writes[len(taken) :]
            if done is not None:
                self._remember(done)
                await self._answer_all(done)
                return writes[len(done.plan.writes) :]
            conflicts += 1
            if conflicts > CONFLICTS_MAX:
                self._fail(plan.writes, ConnectionLossError("other clients change the same nodes all the time"))
                return writes[len(plan.writes) :]
            await self._pause(conflicts)

    async def _pause(self, conflicts: int) -> None:
        if conflicts > CONFLICTS_WITHOUT_PAUSE:
            await asyncio.sleep(random.uniform(0, min(2 ** min(conflicts, 10), CONFLICT_PAUSE_MS_MAX)) / 1000)

    async def _look(self, writes: Sequence[Write]) -> None:
        """Read what the plan will rest on, where it was never seen."""
        nodes: dict[str, None] = {}
        families: dict[str, None] = {}
        for write in writes:
            looks_at(write.operations, lambda path: nodes.setdefault(path), lambda path: families.setdefault(path))
        unknown = [(False, path) for path in nodes if path not in self._cache.nodes]
        unknown += [(True, path) for path in families if path not in self._cache.families]
        for first in range(0, len(unknown), OPERATIONS_MAX):
            some = unknown[first : first + OPERATIONS_MAX]
            await self._fetch(
                [path for is_family, path in some if not is_family], [p for is_family, p in some if is_family]
            )

    async def _fetch(self, nodes: Sequence[str], families: Sequence[str], counts: Sequence[str] = ()) -> None:
        request = self._requests.transaction(
            [self._requests.exists(self._session.key)], self._requests.lookup(nodes, families, counts)
        )
        while True:
            connection = await self._session.until_connected(self._began_at, self._tried_since)
            try:
                answer = await connection.transact(request)
                break
            except ConnectionLossError as error:
                self._session.give_up(connection, error)
        if not answer.succeeded:
            self._session.lose()
            raise self._session.clock.over
        self._see(self._requests.snapshot(answer.responses, nodes, families, counts))

    def _see(self, snapshot: Snapshot) -> None:
        self._cache.update(snapshot)
        self._fresh = {(False, path) for path in snapshot.nodes} | {(True, path) for path in snapshot.families}

    async def _plan(self, writes: Sequence[Write]) -> _Plan:
        while True:
            try:
                return self._draft(writes)
            except CountNeeded as needed:
                await self._fetch([needed.path], [needed.path], [needed.path])

    def _draft(self, writes: Sequence[Write]) -> _Plan:
        draft = Draft(self._cache, self._session.id, time.time_ns() // 1_000_000)
        planned: list[list[PlannedResult] | MetadataError] = []
        for write in writes:
            if planned and not _fits(draft, write):
                break
            outcome = draft.run(write.operations)
            if outcome is None:
                break
            planned.append(outcome)
        taken = list(writes[: len(planned)])
        results = [result for outcome in planned if isinstance(outcome, list) for result in outcome]
        self._sequence += 1
        transaction = Transaction(
            self._requests,
            draft,
            [result.path for result in results if isinstance(result, PendingStat)],
            self._session.id,
            SessionRecord(self._sequence, self._session.password),
            must_write=bool(self._doubtful),  # or what is in doubt might still happen, after we said that it did not
            is_barrier=any(write.is_barrier for write in taken),
        )
        return _Plan(draft, taken, planned, transaction)

    async def _attempt(self, plan: _Plan) -> _Done | None:
        """Carry a plan out; None: things have changed, it must be made anew.

        Raises:
            HeliographError: it did not happen; or, ConnectionLossError, nobody knows.
        """
        if not plan.transaction.is_write and self._rests_on_one_look(plan.draft):
            return _Done(plan, 0, Snapshot())
        session = self._session
        while True:
            try:
                connection = await session.until_connected(self._began_at, self._tried_since)
            except SessionExpiredError as error:
                if self._doubtful:
                    raise ConnectionLossError(f"{error}; whether the call happened is unknown") from error
                raise
            if (late := self._happened()) is not None:
                return await self._late(late)
            try:
                answer = await connection.transact(plan.transaction.request(session.record.mod_revision))
            except ConnectionLossError as error:
                if plan.transaction.is_write:
                    self._doubtful[plan.transaction.record.sequence] = plan
                session.give_up(connection, error)
                continue
            if answer.succeeded:
                if plan.transaction.is_write:
                    session.record = SeenSession(answer.header.revision, plan.transaction.record)
                return _Done(plan, answer.header.revision, plan.transaction.stats(answer))
            session.record, snapshot = plan.transaction.refusal(answer)
            if session.record.mod_revision == 0:
                session.lose()
                continue  # to the error that fits
            if (late := self._happened()) is not None:
                return await self._late(late)
            self._cache.counts.clear()
            self._see(snapshot)
            return None

    def _rests_on_one_look(self, draft: Draft) -> bool:
        looked = {(False, path) for path in draft.looked_nodes} | {(True, path) for path in draft.looked_families}
        return looked <= self._fresh

    def _happened(self) -> _Plan | None:
        """The plan whose answer was lost, if the session's record says that it took effect."""
        record = self._session.record.record
        return self._doubtful.get(record.sequence) if record is not None else None

    async def _late(self, plan: _Plan) -> _Done:
        revision = self._session.record.mod_revision
        for request in (plan.transaction.late_stats_request(revision), plan.transaction.late_stats_request(0)):
            connection = await self._session.until_connected(self._began_at, self._tried_since)
            try:
                return _Done(plan, revision, plan.transaction.late_stats(await connection.transact(request)))
            except CompactedError:
                continue  # then as they are now
        raise ConnectionLossError("the call happened, but what it left behind could not be read")

    def _remember(self, done: _Done) -> None:
        if not done.revision:
            return
        draft, cache = done.plan.draft, self._cache
        for path, node in draft.nodes.items():
            seen = node.seen
            czxid = done.revision if node.fresh else seen.czxid
            cache.nodes[path] = SeenNode(
                done.revision, 0, czxid, seen.version, seen.created_ms, seen.modified_ms, seen.owner, seen.data_length
            ) if node.exists else SeenNode()  # fmt: skip
        for path, family in draft.families.items():
            cache.families[path] = SeenFamily(done.revision, family) if family != Family() else SeenFamily()

    async def _answer_all(self, done: _Done) -> None:
        for path, family in done.stats.families.items():
            count = done.stats.counts[path]
            if family.unaccounted(count):
                done.stats.families[path] = await self._accounted(path, family, count, done.revision)
        feed, draft = self._session.feed, done.plan.draft
        looked = [node.mod_revision for node in draft.looked_nodes.values()]
        looked += [family.mod_revision for family in draft.looked_families.values()]
        revision = done.revision if done.plan.transaction.changes_tree else max(looked, default=0)
        if revision <= feed.revision or not feed.has_watches:
            _answer(done)
            return
        # The watches are told first; later calls need not wait for that.
        task = asyncio.get_running_loop().create_task(self._answer_later(done, revision))
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def _answer_later(self, done: _Done, revision: int) -> None:
        await self._session.feed.reached(revision)
        _answer(done)

    async def _accounted(self, path: str, family: SeenFamily, count: int, revision: int) -> SeenFamily:
        """The same family, dated after the children that fell with their leases."""
        with contextlib.suppress(HeliographError):  # the write itself has happened
            connection = await self._session.until_connected(self._began_at, self._tried_since)
            await self._reader.account(connection, path, family, count, revision)
            answer = await connection.transact(self._requests.transaction([], self._requests.lookup((), [path])))
            latest = self._requests.snapshot(answer.responses, (), [path]).families[path]
            self._cache.families[path] = latest
            return SeenFamily(family.mod_revision, replace(family.family, pzxid=max(latest.pzxid, family.pzxid)))
        return family

    def _fail(self, writes: Sequence[Write], error: HeliographError) -> None:
        self._cache.nodes.clear()  # whatever was wrong, look anew
        self._cache.families.clear()
        for write in writes:
            write.fail(error)


def _fits(draft: Draft, write: Write) -> bool:
    cost = sum(_OPERATIONS_OF.get(type(operation), 1) for operation in write.operations)
    value_bytes = sum(len(op.value) for op in write.operations if isinstance(op, Create | Set))
    return draft.size + cost <= OPERATIONS_MAX and draft.value_bytes + value_bytes <= BATCH_BYTES_MAX


def _answer(done: _Done) -> None:
    for write, outcome in zip(done.plan.writes, done.plan.planned, strict=True):
        if isinstance(outcome, MetadataError):
            write.fail(outcome)
        else:
            write.answer([_resolved(done, result) for result in outcome])


def _resolved(done: _Done, planned: PlannedResult) -> Result:
    result = done.plan.draft.settled(planned)
    if not isinstance(result, PendingStat):
        return result
    return result.resolved(done.revision, done.stats.families[result.path], done.stats.counts[result.path])
