"""Requests to etcd, and the reading of its answers, for plans and for reads. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from heliograph.metadata.backends.etcd.transactions.observed_revisions import ObservedFamily, ObservedNode, Snapshot
from heliograph.metadata.backends.etcd.transactions.plan import TransactionPlan
from heliograph.metadata.backends.etcd.wire.keys import Keys
from heliograph.metadata.backends.etcd.wire.record import (
    Family,
    NodeHead,
    SessionRecord,
    decode_family,
    decode_node,
    decode_session,
    encode_events,
    encode_family,
    encode_node,
    encode_session,
)


@dataclass(frozen=True, slots=True)
class ObservedSession:
    """The session's own record as it was observed; ``mod_revision`` 0: the session is over."""

    mod_revision: int = 0
    record: SessionRecord | None = None


class EtcdRequests:
    """The requests about the keys of one store, and the reading of their answers."""

    def __init__(self, api: Any, keys: Keys) -> None:
        self._api = api
        self.keys = keys

    def unchanged(self, key: bytes, mod_revision: int) -> Any:
        """Return the comparison that the key was last changed by ``revision``; 0: that there is no such key."""
        compare = self._api.Compare
        return compare(key=key, target=compare.MOD, result=compare.EQUAL, mod_revision=mod_revision)

    def exists(self, key: bytes) -> Any:
        compare = self._api.Compare
        return compare(key=key, target=compare.CREATE, result=compare.GREATER, create_revision=0)

    def put(self, key: bytes, value: bytes, lease: int = 0) -> Any:
        return self._api.RequestOp(request_put=self._api.PutRequest(key=key, value=value, lease=lease))

    def delete(self, key: bytes) -> Any:
        return self._api.RequestOp(request_delete_range=self._api.DeleteRangeRequest(key=key))

    def get(self, key: bytes, *, keys_only: bool = False, revision: int = 0) -> Any:
        """Return the operation that reads a key, at a past revision if one is given."""
        request = self._api.RangeRequest(key=key, keys_only=keys_only, revision=revision)
        return self._api.RequestOp(request_range=request)

    def listing(self, ends: tuple[bytes, bytes], limit: int = 0) -> Any:
        """Return the operation that lists the keys of a range, in order; at most ``limit`` of them, if it is not 0."""
        request = self._api.RangeRequest(key=ends[0], range_end=ends[1], keys_only=True, limit=limit)
        return self._api.RequestOp(request_range=request)

    def count(self, path: str, *, revision: int = 0) -> Any:
        """Return the operation that counts the children of a node, at a past revision if one is given."""
        start, end = self.keys.children(path)
        request = self._api.RangeRequest(key=start, range_end=end, count_only=True, revision=revision)
        return self._api.RequestOp(request_range=request)

    def transaction(self, compares: Sequence[Any], success: Sequence[Any], failure: Sequence[Any] = ()) -> Any:
        """Return the request that does ``success`` if every comparison holds, else ``failure``."""
        return self._api.TxnRequest(compare=compares, success=success, failure=failure)

    def lookup(
        self, nodes: Sequence[str], families: Sequence[str], counts: Sequence[str] = (), *, revision: int = 0
    ) -> list[Any]:
        """Return the operations that read a snapshot, now or at a past revision; ``snapshot`` takes the answers."""
        return [
            *(self.get(self.keys.node(path), revision=revision) for path in nodes),
            *(self.get(self.keys.family(path), revision=revision) for path in families),
            *(self.count(path, revision=revision) for path in counts),
        ]

    def snapshot(
        self, answers: Sequence[Any], nodes: Sequence[str], families: Sequence[str], counts: Sequence[str] = ()
    ) -> Snapshot:
        """Return the snapshot in the answers to ``lookup``."""
        middle, end = len(nodes), len(nodes) + len(families)
        return Snapshot(
            {path: self.node_in(answer) for path, answer in zip(nodes, answers[:middle], strict=True)},
            {path: self.family_in(answer) for path, answer in zip(families, answers[middle:end], strict=True)},
            {path: answer.response_range.count for path, answer in zip(counts, answers[end:], strict=True)},
        )

    def node_in(self, answer: Any) -> ObservedNode:
        """Return the node that was read, without its value."""
        return self.node_and_value(answer)[0]

    def node_and_value(self, answer: Any) -> tuple[ObservedNode, bytes | None]:
        kvs = answer.response_range.kvs
        if not kvs:
            return ObservedNode(), b""
        kv = kvs[0]
        head, value = decode_node(kv.key, kv.value)
        return ObservedNode.of(head, len(value or b""), kv.mod_revision, kv.create_revision, kv.lease), value

    def family_in(self, answer: Any) -> ObservedFamily:
        kvs = answer.response_range.kvs
        if not kvs:
            return ObservedFamily()
        return ObservedFamily(kvs[0].mod_revision, decode_family(kvs[0].key, kvs[0].value))

    def session_in(self, answer: Any) -> ObservedSession:
        """Return the session's record that was read."""
        kvs = answer.response_range.kvs
        return (
            ObservedSession(kvs[0].mod_revision, decode_session(kvs[0].key, kvs[0].value)) if kvs else ObservedSession()
        )


class EtcdTransaction:
    """A plan as one request of a session.

    It also writes the session's record, with the next sequence number, on the condition that the record has not
    changed. So it takes effect at most once, however often it is sent, and never after a later transaction of the
    session.
    """

    def __init__(
        self,
        requests: EtcdRequests,
        plan: TransactionPlan,
        stat_paths: Iterable[str],
        session_id: int,
        record: SessionRecord,
        *,
        must_write: bool = False,
        is_barrier: bool = False,
    ) -> None:
        """
        Args:
            stat_paths: the nodes whose families and numbers of children are read after the writes.
            record: the session's record that it writes.
            must_write: write the record even if the plan changes nothing, so that no earlier transaction of the
                session can still take effect.
            is_barrier: write the barrier key too, so that the watch stream always reports the revision.
        """
        self._requests = requests
        self._nodes = list(plan.looked_nodes)
        self._families = list(plan.looked_families)
        keys = requests.keys
        self._compares = [
            *(
                requests.unchanged(keys.node(path), observed.mod_revision)
                for path, observed in plan.looked_nodes.items()
            ),
            *(
                requests.unchanged(keys.family(path), observed.mod_revision)
                for path, observed in plan.looked_families.items()
            ),
        ]
        self._session_key = keys.session(session_id)
        self.record = record
        self._stat_paths = list(dict.fromkeys(stat_paths))
        self.changes_tree = is_barrier or not plan.is_empty  # then the watch stream tells of its revision
        self.is_write = must_write or self.changes_tree
        self._success = self._changes(plan, session_id) if self.is_write else []
        if is_barrier:
            self._success.append(requests.put(keys.barrier, b""))
        self._stats_at = len(self._success)
        self._success += requests.lookup((), self._stat_paths, self._stat_paths)

    def request(self, session_revision: int) -> Any:
        """Return the request, given the revision that changed the session's record last."""
        assert session_revision > 0, "only a session that stands writes"
        requests = self._requests
        session = requests.unchanged(self._session_key, session_revision)
        failure = [requests.get(self._session_key), *requests.lookup(self._nodes, self._families)]
        return requests.transaction([session, *self._compares], self._success, failure)

    def late_stats_request(self, revision: int) -> Any:
        """Return the request for the same stats, for a transaction whose answer was lost; 0: the present stats."""
        lookup = self._requests.lookup((), self._stat_paths, self._stat_paths, revision=revision)
        return self._requests.transaction([], lookup)

    def late_stats(self, response: Any) -> Snapshot:
        """Return families and numbers of children after the writes, from the answer to the late request."""
        return self._requests.snapshot(response.responses, (), self._stat_paths, self._stat_paths)

    def stats(self, response: Any) -> Snapshot:
        """Return session and nodes as they are, from the answer to a transaction that did not take effect."""
        assert response.succeeded, "the transaction took effect"
        return self._requests.snapshot(response.responses[self._stats_at :], (), self._stat_paths, self._stat_paths)

    def refusal(self, response: Any) -> tuple[ObservedSession, Snapshot]:
        """Return session and nodes as they are, from the answer of a transaction that did not take effect."""
        assert not response.succeeded, "etcd has refused the transaction"
        session, *rest = response.responses
        return self._requests.session_in(session), self._requests.snapshot(rest, self._nodes, self._families)

    def _changes(self, plan: TransactionPlan, session_id: int) -> list[Any]:
        requests, keys = self._requests, self._requests.keys
        operations = [requests.put(self._session_key, encode_session(self._session_key, self.record), session_id)]
        for path, node in plan.nodes.items():
            key = keys.node(path)
            if not node.exists:
                if plan.looked_nodes[path].mod_revision:
                    operations.append(requests.delete(key))
                continue
            assert node.is_written, "a plan writes the whole value of a node that it changes"
            observed = node.observed
            head = NodeHead(
                0 if node.fresh else observed.czxid, observed.version, observed.created_ms, observed.modified_ms,
                min(0, observed.owner),
            )  # fmt: skip
            operations.append(requests.put(key, encode_node(key, head, node.value), max(0, observed.owner)))
        for path, is_listed in plan.listings():
            key = keys.reaped_node(path)
            operations.append(requests.put(key, b"") if is_listed else requests.delete(key))
        for path, family in plan.families.items():
            key = keys.family(path)
            if family != Family():
                operations.append(requests.put(key, encode_family(key, family)))
            elif plan.looked_families[path].mod_revision:
                operations.append(requests.delete(key))
        if plan.record_events:
            operations.append(requests.put(keys.events, encode_events(keys.events, plan.events)))
        return operations
