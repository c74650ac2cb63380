"""Writes: in the order of the calls, as many as possible in one transaction, each exactly once.

A plan is made from the observed nodes and sent with the condition that none of them has changed. If one has, etcd
refuses the transaction and returns the present nodes, and another plan is made. A transaction whose answer was lost is
recognised by the sequence number that it left in the session's record, or sent again: it takes effect only once.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from heliograph.base.backoff import Backoff
from heliograph.base.clock import wall_ms
from heliograph.base.errors import HeliographError
from heliograph.metadata.backends.etcd.calls.calls import EtcdWrite
from heliograph.metadata.backends.etcd.calls.reader import EtcdReader
from heliograph.metadata.backends.etcd.session import EtcdSession
from heliograph.metadata.backends.etcd.transactions.observed_revisions import ObservedFamily, ObservedNode, Snapshot
from heliograph.metadata.backends.etcd.transactions.plan import (
    CountNeeded,
    PendingStat,
    PlannedResult,
    Result,
    TransactionPlan,
    visit_needed,
)
from heliograph.metadata.backends.etcd.transactions.transaction import EtcdTransaction, ObservedSession
from heliograph.metadata.backends.etcd.wire.failures import CompactedError
from heliograph.metadata.backends.etcd.wire.limits import (
    BATCH_BYTES_MAX,
    CONFLICT_PAUSE_MS,
    CONFLICT_PAUSE_MS_MAX,
    CONFLICTS_MAX,
    CONFLICTS_WITHOUT_PAUSE,
    OPERATIONS_MAX,
)
from heliograph.metadata.backends.etcd.wire.record import Family, SessionRecord
from heliograph.metadata.errors import ConnectionLossError, MetadataError, SessionExpiredError, ValueTooLargeError
from heliograph.metadata.session.clock import now
from heliograph.metadata.store import Create, Delete, Operation, Reap, Set

_OPERATIONS_OF: dict[type[Operation], int] = {
    Create: 3,
    Set: 3,
    Delete: 4,
    Reap: 5,
}  # of etcd, at most; a check takes one


@dataclass(frozen=True, slots=True)
class _Batch:
    """The writes that share one etcd transaction, and their plan."""

    plan: TransactionPlan
    writes: list[EtcdWrite]
    planned: list[list[PlannedResult] | MetadataError]
    transaction: EtcdTransaction


@dataclass(frozen=True, slots=True)
class _Done:
    """A batch that took effect at ``revision``; 0: it changes nothing and was not sent."""

    batch: _Batch
    revision: int
    stats: Snapshot


class EtcdWriter:
    """The writes of one session, one transaction at a time. ``cache`` holds the observed nodes."""

    def __init__(self, session: EtcdSession, reader: EtcdReader, cache: Snapshot) -> None:
        self._session = session
        self._requests = session.requests
        self._reader = reader
        self._cache = cache
        self._random = random.Random()
        self._sequence = 0  # of the newest plan
        self._applied = 0  # the sequence number of the newest plan that took effect, <= _sequence
        self._fresh: set[tuple[bool, str]] = set()  # (is family, path): observed at one revision
        self._doubtful: dict[int, _Batch] = {}  # by sequence number: sent, and no answer came
        self._began_at = 0.0
        self._tried_since = 0.0
        self._answering: set[asyncio.Task[None]] = set()

    async def carry_out(self, writes: Sequence[EtcdWrite]) -> Sequence[EtcdWrite]:
        """Apply as many of the writes, from the first on, as fit into one transaction, and answer or fail them.

        Returns:
            the remaining writes.
        """
        assert writes, "there is something to write"
        self._fresh.clear()
        self._doubtful.clear()
        self._tried_since = now()
        self._began_at = writes[0].began_at
        try:
            return await self._carry_out(writes)
        finally:
            self._cache.counts.clear()
            self._cache.trim()

    async def _carry_out(self, writes: Sequence[EtcdWrite]) -> Sequence[EtcdWrite]:
        limit, conflicts = len(writes), 0
        pauses = Backoff(CONFLICT_PAUSE_MS, CONFLICT_PAUSE_MS_MAX, self._random, jitter=1)
        while True:
            batch = None
            try:
                await self._look(writes[:limit])
                batch = await self._make_batch(writes[:limit])
                done = await self._attempt(batch)
            except HeliographError as error:
                taken = batch.writes if batch is not None else writes[:limit]
                if isinstance(error, ValueTooLargeError) and len(taken) > 1:
                    limit = 1  # one of them is too large, or all together: one at a time
                    continue
                self._fail(taken, error)
                return writes[len(taken) :]
            if done is not None:
                self._remember(done)
                await self._answer_all(done)
                return writes[len(done.batch.writes) :]
            conflicts += 1
            if conflicts > CONFLICTS_MAX:
                self._fail(batch.writes, ConnectionLossError("other clients change the same nodes without a pause"))
                return writes[len(batch.writes) :]
            if conflicts > CONFLICTS_WITHOUT_PAUSE:
                await asyncio.sleep(pauses.pause())

    async def _look(self, writes: Sequence[EtcdWrite]) -> None:
        """Read the nodes that the plan needs and that were not observed yet."""
        nodes: dict[str, None] = {}
        families: dict[str, None] = {}
        for write in writes:
            visit_needed(write.operations, lambda path: nodes.setdefault(path), lambda path: families.setdefault(path))
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

    async def _make_batch(self, writes: Sequence[EtcdWrite]) -> _Batch:
        while True:
            try:
                return self._plan(writes)
            except CountNeeded as needed:
                await self._fetch([needed.path], [needed.path], [needed.path])

    def _plan(self, writes: Sequence[EtcdWrite]) -> _Batch:
        plan = TransactionPlan(self._cache, self._session.id, wall_ms())
        planned: list[list[PlannedResult] | MetadataError] = []
        for write in writes:
            if planned and not _fits(plan, write):
                break
            outcome = plan.run(write.operations)
            if outcome is None:
                break
            planned.append(outcome)
        taken = list(writes[: len(planned)])
        results = [result for outcome in planned if isinstance(outcome, list) for result in outcome]
        self._sequence += 1
        transaction = EtcdTransaction(
            self._requests,
            plan,
            [result.path for result in results if isinstance(result, PendingStat)],
            self._session.id,
            SessionRecord(self._sequence, self._session.password, self._session.owner),
            must_write=bool(self._doubtful),  # else a doubtful one might still happen later
            is_barrier=any(write.is_barrier for write in taken),
        )
        return _Batch(plan, taken, planned, transaction)

    async def _attempt(self, batch: _Batch) -> _Done | None:
        """Send a batch until etcd answers. Return None if nodes have changed: another plan is needed.

        Raises:
            ConnectionLossError: whether it happened is unknown.
            HeliographError: it did not happen.
        """
        if not batch.transaction.is_write and self._is_all_fresh(batch.plan):
            return _Done(batch, 0, Snapshot())
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
                answer = await connection.transact(batch.transaction.request(session.record.mod_revision))
            except ConnectionLossError as error:
                if batch.transaction.is_write:
                    self._doubtful[batch.transaction.record.sequence] = batch
                session.give_up(connection, error)
                continue
            if answer.succeeded:
                if batch.transaction.is_write:
                    session.record = ObservedSession(answer.header.revision, batch.transaction.record)
                return _Done(batch, answer.header.revision, batch.transaction.stats(answer))
            session.record, snapshot = batch.transaction.refusal(answer)
            record = session.record.record
            if record is None or record.owner != session.owner:  # it has ended, or was taken over
                session.lose()
                continue  # ``until_connected`` raises the error that fits
            if (late := self._happened()) is not None:
                return await self._late(late)
            self._cache.counts.clear()
            self._see(snapshot)
            return None

    def _is_all_fresh(self, plan: TransactionPlan) -> bool:
        looked = {(False, path) for path in plan.looked_nodes} | {(True, path) for path in plan.looked_families}
        return looked <= self._fresh

    def _happened(self) -> _Batch | None:
        """Return the batch whose answer was lost, if the session's record says that it took effect."""
        record = self._session.record.record
        if record is None or record.owner != self._session.owner:
            return None
        return self._doubtful.get(record.sequence)

    async def _late(self, batch: _Batch) -> _Done:
        revision = self._session.record.mod_revision
        for request in (batch.transaction.late_stats_request(revision), batch.transaction.late_stats_request(0)):
            connection = await self._session.until_connected(self._began_at, self._tried_since)
            try:
                return _Done(batch, revision, batch.transaction.late_stats(await connection.transact(request)))
            except CompactedError:
                continue  # read the present values instead
        raise ConnectionLossError("the call happened, but its result could not be read")

    def _remember(self, done: _Done) -> None:
        if not done.revision:
            return
        assert done.revision >= self._session.record.mod_revision, "revisions only grow"
        sequence = done.batch.transaction.record.sequence
        assert self._applied < sequence <= self._sequence, "a plan is applied once, in order"
        self._applied = sequence
        plan, cache = done.batch.plan, self._cache
        for path, node in plan.nodes.items():
            observed = node.observed
            czxid = done.revision if node.fresh else observed.czxid
            left = replace(observed, mod_revision=done.revision, create_revision=0, czxid=czxid)
            cache.nodes[path] = left if node.exists else ObservedNode()
        for path, family in plan.families.items():
            cache.families[path] = ObservedFamily(done.revision, family) if family != Family() else ObservedFamily()

    async def _answer_all(self, done: _Done) -> None:
        for path, family in done.stats.families.items():
            count = done.stats.counts[path]
            if family.unaccounted(count):
                done.stats.families[path] = await self._accounted(path, family, count, done.revision)
        feed, plan = self._session.feed, done.batch.plan
        looked = [node.mod_revision for node in plan.looked_nodes.values()]
        looked += [family.mod_revision for family in plan.looked_families.values()]
        revision = done.revision if done.batch.transaction.changes_tree else max(looked, default=0)
        if revision <= feed.revision or not feed.has_watches:
            _answer(done)
            return
        # The watches are told before the caller is answered; later calls do not wait for that.
        task = asyncio.get_running_loop().create_task(self._answer_later(done, revision))
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def _answer_later(self, done: _Done, revision: int) -> None:
        await self._session.feed.reached(revision)
        _answer(done)

    async def _accounted(self, path: str, family: ObservedFamily, count: int, revision: int) -> ObservedFamily:
        """Return the family with the revision at which children vanished with their leases."""
        with contextlib.suppress(HeliographError):  # the write itself has happened
            connection = await self._session.until_connected(self._began_at, self._tried_since)
            await self._reader.account(connection, path, family, count, revision)
            answer = await connection.transact(self._requests.transaction([], self._requests.lookup((), [path])))
            latest = self._requests.snapshot(answer.responses, (), [path]).families[path]
            self._cache.families[path] = latest
            return ObservedFamily(family.mod_revision, replace(family.family, pzxid=max(latest.pzxid, family.pzxid)))
        return family

    def _fail(self, writes: Sequence[EtcdWrite], error: HeliographError) -> None:
        self._cache.nodes.clear()  # the next plan rests on what is read now
        self._cache.families.clear()
        for write in writes:
            write.fail(error)


def _fits(plan: TransactionPlan, write: EtcdWrite) -> bool:
    cost = sum(_OPERATIONS_OF.get(type(operation), 1) for operation in write.operations)
    value_bytes = sum(len(op.value or b"") for op in write.operations if isinstance(op, Create | Set))
    return plan.size + cost <= OPERATIONS_MAX and plan.value_bytes + value_bytes <= BATCH_BYTES_MAX


def _answer(done: _Done) -> None:
    for write, outcome in zip(done.batch.writes, done.batch.planned, strict=True):
        if isinstance(outcome, MetadataError):
            write.fail(outcome)
        else:
            write.answer([_resolved(done, result) for result in outcome])


def _resolved(done: _Done, planned: PlannedResult) -> Result:
    result = done.batch.plan.settled(planned)
    if not isinstance(result, PendingStat):
        return result
    return result.resolved(done.revision, done.stats.families[result.path], done.stats.counts[result.path])
