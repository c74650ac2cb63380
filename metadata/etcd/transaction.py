"""Requests to etcd, and what its answers say, for whole plans and for reads. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from metadata.etcd.draft import Draft
from metadata.etcd.keys import Keys
from metadata.etcd.record import (
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
from metadata.etcd.seen import SeenFamily, SeenNode, Snapshot


@dataclass(frozen=True, slots=True)
class SeenSession:
    """Our session's record; ``mod_revision`` 0: the session is over."""

    mod_revision: int = 0
    record: SessionRecord | None = None


class Requests:
    """Builds requests about the keys of one store, and reads the answers."""

    def __init__(self, api: Any, keys: Keys) -> None:
        self._api = api
        self.keys = keys

    def unchanged(self, key: bytes, mod_revision: int) -> Any:
        """A comparison: the key was last changed by that revision; 0: there is no such key."""
        compare = self._api.Compare
        return compare(key=key, target=compare.MOD, result=compare.EQUAL, mod_revision=mod_revision)

    def exists(self, key: bytes) -> Any:
        """A comparison: there is such a key."""
        compare = self._api.Compare
        return compare(key=key, target=compare.CREATE, result=compare.GREATER, create_revision=0)

    def put(self, key: bytes, value: bytes, lease: int = 0) -> Any:
        """An operation."""
        return self._api.RequestOp(request_put=self._api.PutRequest(key=key, value=value, lease=lease))

    def delete(self, key: bytes) -> Any:
        """An operation."""
        return self._api.RequestOp(request_delete_range=self._api.DeleteRangeRequest(key=key))

    def get(self, key: bytes, *, keys_only: bool = False, revision: int = 0) -> Any:
        """An operation."""
        request = self._api.RangeRequest(key=key, keys_only=keys_only, revision=revision)
        return self._api.RequestOp(request_range=request)

    def listing(self, ends: tuple[bytes, bytes]) -> Any:
        """An operation: the keys of a range, in order."""
        return self._api.RequestOp(request_range=self._api.RangeRequest(key=ends[0], range_end=ends[1], keys_only=True))

    def count(self, path: str, *, revision: int = 0) -> Any:
        """An operation: how many children a node has."""
        start, end = self.keys.children(path)
        request = self._api.RangeRequest(key=start, range_end=end, count_only=True, revision=revision)
        return self._api.RequestOp(request_range=request)

    def transaction(self, compares: Sequence[Any], success: Sequence[Any], failure: Sequence[Any] = ()) -> Any:
        """A request."""
        return self._api.TxnRequest(compare=compares, success=success, failure=failure)

    def lookup(
        self, nodes: Sequence[str], families: Sequence[str], counts: Sequence[str] = (), *, revision: int = 0
    ) -> list[Any]:
        """Operations that read a snapshot, of a past revision if one is given; ``snapshot`` takes their answers."""
        return [
            *(self.get(self.keys.node(path), revision=revision) for path in nodes),
            *(self.get(self.keys.family(path), revision=revision) for path in families),
            *(self.count(path, revision=revision) for path in counts),
        ]

    def snapshot(
        self, answers: Sequence[Any], nodes: Sequence[str], families: Sequence[str], counts: Sequence[str] = ()
    ) -> Snapshot:
        """What the answers to ``lookup`` say."""
        middle, end = len(nodes), len(nodes) + len(families)
        return Snapshot(
            {path: self.node_in(answer) for path, answer in zip(nodes, answers[:middle], strict=True)},
            {path: self.family_in(answer) for path, answer in zip(families, answers[middle:end], strict=True)},
            {path: answer.response_range.count for path, answer in zip(counts, answers[end:], strict=True)},
        )

    def node_in(self, answer: Any) -> SeenNode:
        """The node that was read, without its value."""
        return self.node_and_value(answer)[0]

    def node_and_value(self, answer: Any) -> tuple[SeenNode, bytes]:
        """The node that was read."""
        kvs = answer.response_range.kvs
        if not kvs:
            return SeenNode(), b""
        kv = kvs[0]
        head, value = decode_node(kv.key, kv.value)
        return SeenNode.of(head, len(value), kv.mod_revision, kv.create_revision, kv.lease), value

    def family_in(self, answer: Any) -> SeenFamily:
        """The family that was read."""
        kvs = answer.response_range.kvs
        if not kvs:
            return SeenFamily()
        return SeenFamily(kvs[0].mod_revision, decode_family(kvs[0].key, kvs[0].value))

    def session_in(self, answer: Any) -> SeenSession:
        """The session's record that was read."""
        kvs = answer.response_range.kvs
        return SeenSession(kvs[0].mod_revision, decode_session(kvs[0].key, kvs[0].value)) if kvs else SeenSession()


class Transaction:
    """A draft as one request of a session.

    It writes the session's record too, with the next sequence number, and asks that nobody did so before: it can take
    effect once at most, however often it is sent, and never after a later transaction of the session.
    """

    def __init__(
        self,
        requests: Requests,
        draft: Draft,
        stat_paths: Iterable[str],
        session_id: int,
        record: SessionRecord,
        *,
        must_write: bool = False,
        is_barrier: bool = False,
    ) -> None:
        """
        Args:
            stat_paths: nodes whose families and numbers of children to read after the writes.
            record: the session's record to be.
            must_write: write the record even if the draft changes nothing, so that no earlier transaction of the
                session can still take effect.
            is_barrier: make an event of it, whatever else it does.
        """
        self._requests = requests
        self._nodes = list(draft.looked_nodes)
        self._families = list(draft.looked_families)
        keys = requests.keys
        self._compares = [
            *(requests.unchanged(keys.node(path), seen.mod_revision) for path, seen in draft.looked_nodes.items()),
            *(requests.unchanged(keys.family(path), seen.mod_revision) for path, seen in draft.looked_families.items()),
        ]
        self._session_key = keys.session(session_id)
        self.record = record
        self._stat_paths = list(dict.fromkeys(stat_paths))
        self.changes_tree = is_barrier or not draft.is_empty  # so that watchers hear of its revision
        self.is_write = must_write or self.changes_tree
        self._success = self._changes(draft, session_id) if self.is_write else []
        if is_barrier:
            self._success.append(requests.put(keys.barrier, b""))
        self._stats_at = len(self._success)
        self._success += requests.lookup((), self._stat_paths, self._stat_paths)

    def request(self, session_revision: int) -> Any:
        """The request, if the session's record was last changed by that revision."""
        requests = self._requests
        session = requests.unchanged(self._session_key, session_revision)
        failure = [requests.get(self._session_key), *requests.lookup(self._nodes, self._families)]
        return requests.transaction([session, *self._compares], self._success, failure)

    def late_stats_request(self, revision: int) -> Any:
        """Asks for the same stats, where the answer to the transaction itself was lost."""
        lookup = self._requests.lookup((), self._stat_paths, self._stat_paths, revision=revision)
        return self._requests.transaction([], lookup)

    def late_stats(self, response: Any) -> Snapshot:
        """Families and numbers of children after the writes, from the answer to the late request."""
        return self._requests.snapshot(response.responses, (), self._stat_paths, self._stat_paths)

    def stats(self, response: Any) -> Snapshot:
        """Families and numbers of children after the writes, from the answer of one that took effect."""
        return self._requests.snapshot(response.responses[self._stats_at :], (), self._stat_paths, self._stat_paths)

    def refusal(self, response: Any) -> tuple[SeenSession, Snapshot]:
        """How things are, from the answer of one that did not."""
        session, *rest = response.responses
        return self._requests.session_in(session), self._requests.snapshot(rest, self._nodes, self._families)

    def _changes(self, draft: Draft, session_id: int) -> list[Any]:
        requests, keys = self._requests, self._requests.keys
        operations = [requests.put(self._session_key, encode_session(self._session_key, self.record), session_id)]
        for path, node in draft.nodes.items():
            key = keys.node(path)
            if not node.exists:
                if draft.looked_nodes[path].mod_revision:
                    operations.append(requests.delete(key))
                continue
            assert node.value is not None, "what a draft changes it writes whole"
            seen = node.seen
            head = NodeHead(0 if node.fresh else seen.czxid, seen.version, seen.created_ms, seen.modified_ms)
            operations.append(requests.put(key, encode_node(key, head, node.value), seen.owner))
        for path, family in draft.families.items():
            key = keys.family(path)
            if family != Family():
                operations.append(requests.put(key, encode_family(key, family)))
            elif draft.looked_families[path].mod_revision:
                operations.append(requests.delete(key))
        if draft.record_events:
            operations.append(requests.put(keys.events, encode_events(keys.events, draft.events)))
        return operations
