"""Reads: many in one request, each of one revision of etcd.

etcd deletes a child whose lease ends without a change of its parent's family record. The next session that reads the
parent finds fewer children than the record says, searches etcd's history for the revision at which their number fell,
and records it before it answers. So numbers of children, ``cversion`` and ``pzxid`` are exact in every answer; if etcd
has compacted that part of its history, ``pzxid`` is the oldest revision left of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import Any

from heliograph.base.errors import HeliographError
from heliograph.metadata.backends.etcd.calls.calls import EtcdRead, Page, ReadKind, ReadResult
from heliograph.metadata.backends.etcd.session import EtcdSession
from heliograph.metadata.backends.etcd.transactions.observed_revisions import ObservedFamily, ObservedNode, Snapshot
from heliograph.metadata.backends.etcd.wire.connection import EtcdConnection
from heliograph.metadata.backends.etcd.wire.failures import CompactedError
from heliograph.metadata.backends.etcd.wire.record import encode_family
from heliograph.metadata.errors import ConnectionLossError, RecordError
from heliograph.metadata.session.clock import now


class EtcdReader:
    """The reads of one session. Observed nodes are kept in ``cache``."""

    def __init__(self, session: EtcdSession, cache: Snapshot) -> None:
        self._session = session
        self._requests = session.requests
        self._cache = cache

    async def answer(self, reads: Sequence[EtcdRead]) -> None:
        waiting = list(reads)
        tried_since = now()
        try:
            while waiting := [read for read in waiting if not read.is_over]:
                began_at = min(read.began_at for read in waiting)
                connection = await self._session.until_connected(began_at, tried_since)
                try:
                    waiting = await self._answer_on(connection, waiting)
                except ConnectionLossError as error:
                    self._session.give_up(connection, error)  # a read may be repeated
        except HeliographError as error:
            for read in waiting:
                read.fail(error)

    async def account(
        self, connection: EtcdConnection, path: str, family: ObservedFamily, count: int, revision: int
    ) -> None:
        """Record that children vanished with their leases. Nothing happens if another session has recorded it already.

        Args:
            family: as it was observed.
            count: the number of children at ``revision``.

        Raises:
            RecordError: there are more children than were ever created.
            HeliographError: as the connection.
        """
        if family.unaccounted(count) < 0:
            raise RecordError(f"{path} has more children than were ever created in it")
        key = self._requests.keys.family(path)
        fell_at = await self._fell_at(connection, path, family.mod_revision, count, revision)
        accounted = replace(
            family.family,
            removals=family.family.creations - count,
            pzxid=fell_at if fell_at > family.mod_revision else family.pzxid,
        )
        request = self._requests.transaction(
            [self._requests.unchanged(key, family.mod_revision), self._requests.exists(self._session.key)],
            [self._requests.put(key, encode_family(key, accounted))],
        )
        await connection.transact(request)

    async def _fell_at(self, connection: EtcdConnection, path: str, low: int, count: int, high: int) -> int:
        """Return the first revision from ``low`` on at which there are ``count`` children.

        Up to ``high`` their number only falls.
        """
        while low < high:
            middle = (low + high) // 2
            request = self._requests.transaction([], [self._requests.count(path, revision=middle)])
            try:
                is_fallen = (await connection.transact(request)).responses[0].response_range.count == count
            except CompactedError:
                is_fallen = False
            low, high = (low, middle) if is_fallen else (middle + 1, high)
        return high

    async def _answer_on(self, connection: EtcdConnection, reads: Sequence[EtcdRead]) -> list[EtcdRead]:
        """Answer the reads. Return the reads that have to be repeated, because children had to be accounted for."""
        each = [self._operations(read) for read in reads]
        operations = list(chain.from_iterable(each))
        request = self._requests.transaction([self._requests.exists(self._session.key)], operations)
        answer = await connection.transact(request)
        if not answer.succeeded:
            self._session.lose()
            raise self._session.clock.over
        self._cache.trim()
        assert len(answer.responses) == len(operations), "etcd answers every operation"
        again = []
        responses = iter(answer.responses)
        for read, asked in zip(reads, each, strict=True):
            try:
                result = self._result(read, answer.header.revision, list(islice(responses, len(asked))))
            except RecordError as error:
                read.fail(error)
                continue
            if result.exists and result.family.unaccounted(result.count):
                await self.account(connection, read.path, result.family, result.count, result.revision)
                again.append(read)
                continue
            if read.on_result is not None and not read.is_over:
                read.on_result(result)
            read.answer(result)
        return again

    def _operations(self, read: EtcdRead) -> list[Any]:
        requests, path = self._requests, read.path
        lists = read.kind is not ReadKind.NODE
        family = requests.get(requests.keys.family(path))
        operations = [requests.get(requests.keys.node(path), keys_only=lists), family]
        if read.kind is not ReadKind.CHILDREN:
            operations.append(requests.count(path))
        if read.kind is not ReadKind.NODE:
            start, end = requests.keys.children(path)
            page = read.kind if isinstance(read.kind, Page) else Page("", 0)
            operations.append(requests.listing((start + page.start.encode(), end), page.limit))
        return operations

    def _result(self, read: EtcdRead, revision: int, answers: Sequence[Any]) -> ReadResult:
        requests, path = self._requests, read.path
        family = requests.family_in(answers[1])
        count = int(answers[2].response_range.count)
        self._cache.families[path] = family
        if read.kind is ReadKind.NODE:
            node, value = requests.node_and_value(answers[0])
            self._cache.nodes[path] = node
            return ReadResult(revision, node, family, count, value)
        kvs = answers[0].response_range.kvs
        node = ObservedNode(kvs[0].mod_revision, kvs[0].create_revision) if kvs else ObservedNode()
        start = len(requests.keys.children(path)[0])
        names = tuple(kv.key[start:].decode() for kv in answers[-1].response_range.kvs)
        return ReadResult(revision, node, family, count, names=names)
