"""The plan of one etcd transaction, by ZooKeeper's rules, from the observed nodes. No I/O, no clock.

The paths and values of the operations were checked before (``metadata/znode.py``).

Several calls may share a transaction, as long as no two of them write the same node: each keeps its own outcome, and
the watchers are told one event for each. A call that cannot be done leaves the plan as it was before it.

etcd takes each key once per transaction. A ``multi`` that touches a node twice is planned on its last state, and its
events, which the keys then do not tell, are written down (``record_events``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from heliograph.metadata.backends.etcd.transactions.observed_revisions import (
    ObservedFamily,
    ObservedNode,
    Snapshot,
    stat_of,
)
from heliograph.metadata.backends.etcd.wire.record import Family
from heliograph.metadata.errors import (
    BadVersionError,
    MetadataError,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
)
from heliograph.metadata.store import (
    ANY_VERSION,
    Check,
    Create,
    Delete,
    EventType,
    Operation,
    Reap,
    Set,
    Stat,
    WatchEvent,
)
from heliograph.metadata.znode import ROOT, is_due, parent_of

Result = str | Stat | None
NEVER = -1


class CountNeeded(Exception):
    """The plan needs the number of children of ``path``."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


@dataclass(frozen=True, slots=True)
class PlannedNode:
    """A node as the transaction leaves it. ``fresh``: created by the transaction.

    ``value`` is the node's new value if ``is_written``, which may be null; otherwise the value is as it is in etcd.
    """

    observed: ObservedNode
    exists: bool
    fresh: bool = False
    value: bytes | None = None
    is_written: bool = False


@dataclass(frozen=True, slots=True)
class PendingStat:
    """The stat that a ``set`` will answer with, once the transaction's revision is known.

    ``family`` is None when the transaction changes no child of the node: what etcd then says holds. Otherwise it is
    the node's family at this point of the transaction, and ``family_revision`` that of its latest change: 0 for the
    transaction's own, NEVER for none.
    """

    path: str
    node: PlannedNode
    family: Family | None
    family_revision: int

    def resolved(self, revision: int, stored: ObservedFamily, count: int) -> Stat:
        """Return the stat; ``stored`` and ``count`` are the node's family and children after the transaction."""
        observed = self.node.observed
        node = replace(observed, mod_revision=revision, czxid=revision if self.node.fresh else observed.czxid)
        if self.family is None:
            return stat_of(node, stored, count)
        count = self.family.creations - self.family.removals - stored.unaccounted(count)  # those that fell never count
        return stat_of(node, ObservedFamily(self.family_revision or revision, self.family), count)


PlannedResult = str | PendingStat | None


@dataclass(slots=True)
class _Layer:
    """Changes of one call, above those of the calls before it."""

    nodes: dict[str, PlannedNode] = field(default_factory=dict)
    families: dict[str, Family] = field(default_factory=dict)
    events: list[WatchEvent] = field(default_factory=list)
    touches: int = 0  # of nodes; more than there are nodes: one was touched twice
    sets: int = 0
    listings: int = 0  # at most so many nodes to be reaped are listed or taken off the list


class TransactionPlan:
    """The transaction of one session that is being planned.

    Attributes:
        looked_nodes, looked_families: the observations that the plan relies on, by path, including those of failed
            calls.
        nodes, families: the changed nodes and families, by path, in the order of the first change.
        events: the events for watchers, in order.
        record_events: whether ``events`` must be written down.
    """

    def __init__(self, snapshot: Snapshot, session_id: int, wall_ms: int) -> None:
        self._snapshot = snapshot
        self._session_id = session_id
        self._wall_ms = wall_ms
        self._layer = _Layer()
        self.looked_nodes: dict[str, ObservedNode] = {}
        self.looked_families: dict[str, ObservedFamily] = {}
        self.nodes: dict[str, PlannedNode] = {}
        self.families: dict[str, Family] = {}
        self.events: list[WatchEvent] = []
        self.record_events = False
        self.value_bytes = 0
        self.sets = 0
        self._listings = 0

    def listings(self) -> Iterator[tuple[str, bool]]:
        """Yield the nodes whose kind becomes, or ceases to be, one that is reaped: the path, and whether it is listed
        now."""
        for path, node in self.nodes.items():
            was_listed = self.looked_nodes[path].owner < 0
            is_listed = node.exists and node.observed.owner < 0
            if was_listed != is_listed:
                yield path, is_listed

    def run(self, operations: Sequence[Operation]) -> list[PlannedResult] | MetadataError | None:
        """Plan one call. Return its results, or the error of its first operation that cannot be done.

        None: the call writes a node that an earlier call of the plan writes, and belongs in the next transaction.

        Raises:
            CountNeeded: nothing was planned; run it again with the number in the snapshot.
        """
        self._layer = layer = _Layer()
        results: list[PlannedResult] = []
        for index, operation in enumerate(operations):
            try:
                results.append(self._run(operation))
            except MetadataError as error:
                error.operation_index = index
                self._layer = _Layer()
                return error
        if self.nodes and not layer.nodes.keys().isdisjoint(self.nodes):
            return None
        self._adopt(layer)
        return results

    def settled(self, result: PlannedResult) -> PlannedResult:
        """Return a result of ``run`` once the plan is complete: later calls may have changed children of the node."""
        if not isinstance(result, PendingStat) or result.family is not None or result.path not in self.families:
            return result
        observed = self.looked_families[result.path]
        return replace(result, family=observed.family, family_revision=observed.mod_revision or NEVER)

    @property
    def size(self) -> int:
        """Operations of the etcd transaction, counted on its longer side."""
        changes = len(self.nodes) + len(self.families) + 2 * self.sets + self.record_events + self._listings
        return 1 + max(changes, len(self.looked_nodes) + len(self.looked_families))

    @property
    def is_empty(self) -> bool:
        return not self.nodes

    def _adopt(self, layer: _Layer) -> None:
        assert self.nodes.keys().isdisjoint(layer.nodes), "two calls of a transaction write different nodes"
        assert layer.touches >= len(layer.nodes), "a node changes by being touched"
        self.nodes.update(layer.nodes)
        self.families.update(layer.families)
        self.events.extend(layer.events)
        self.record_events = self.record_events or layer.touches > len(layer.nodes)
        self.value_bytes += sum(len(node.value or b"") for node in layer.nodes.values())
        self.sets += layer.sets
        self._listings += layer.listings
        self._layer = _Layer()

    def _run(self, operation: Operation) -> PlannedResult:
        match operation:
            case Create():
                return self._create(operation)
            case Set():
                return self._set(operation)
            case Delete():
                self._delete(operation)
            case Reap():
                self._reap(operation)
            case Check():
                self._checked(operation.path, operation.version)
        return None

    def _create(self, operation: Create) -> str:
        path = operation.path
        if path == ROOT and not operation.sequence:
            raise NodeExistsError("the root always exists")
        parent_path = parent_of(path)
        parent = self._node(parent_path)
        if not parent.exists:
            raise NoNodeError(f"no node {parent_path}, so {path} cannot be created in it")
        family = self._family(parent_path)
        if operation.sequence:
            path = f"{path}{family.creations:010d}"
        if self._node(path).exists:
            raise NodeExistsError(f"{path} exists")
        if parent.observed.owner > 0:
            raise NoChildrenForEphemeralsError(f"{parent_path} is ephemeral and cannot have children")
        observed = ObservedNode(
            created_ms=self._wall_ms,
            modified_ms=self._wall_ms,
            owner=self._session_id if operation.ephemeral else operation.kind,
            data_length=len(operation.value or b""),
        )
        self._put(path, PlannedNode(observed, exists=True, fresh=True, value=operation.value, is_written=True))
        self._layer.listings += operation.kind != 0
        self._layer.families[parent_path] = replace(family, creations=family.creations + 1, pzxid=0)
        self._note(EventType.CREATED, path)
        return path

    def _set(self, operation: Set) -> PendingStat:
        path = operation.path
        node = self._checked(path, operation.version)
        observed = replace(
            node.observed,
            version=node.observed.version + 1,
            modified_ms=self._wall_ms,
            data_length=len(operation.value or b""),
        )
        changed = PlannedNode(observed, exists=True, fresh=node.fresh, value=operation.value, is_written=True)
        self._put(path, changed)
        self._note(EventType.CHANGED, path)
        self._layer.sets += 1
        family = self._changed_family(path)
        if family is None and node.fresh:
            family = Family()
        return PendingStat(path, changed, family, 0)

    def _delete(self, operation: Delete) -> None:
        path = operation.path
        node = self._checked(path, operation.version)
        count = self._count(path)
        if count:
            raise NotEmptyError(f"{path} has {count} children")
        parent_path = parent_of(path)
        family = self._family(parent_path)
        self._layer.listings += node.observed.owner < 0
        self._put(path, replace(node, exists=False, fresh=False, value=None, is_written=False))
        self._layer.families[path] = Family()
        self._layer.families[parent_path] = replace(family, removals=family.removals + 1, pzxid=0)
        self._note(EventType.DELETED, path)

    def _reap(self, operation: Reap) -> None:
        path = operation.path
        node = self._checked(path, ANY_VERSION)
        stat = stat_of(node.observed, ObservedFamily(0, self._family(path)), self._count(path))
        if not stat.num_children and not is_due(stat, self._wall_ms):
            raise BadVersionError(f"the time of {path} has not come")
        self._delete(Delete(path))

    def _checked(self, path: str, version: int) -> PlannedNode:
        node = self._node(path)
        if not node.exists:
            raise NoNodeError(f"no node {path}")
        if version not in (ANY_VERSION, node.observed.version):
            raise BadVersionError(f"{path} has version {node.observed.version}, not {version}")
        return node

    def _node(self, path: str) -> PlannedNode:
        for nodes in (self._layer.nodes, self.nodes):
            if path in nodes:
                return nodes[path]
        # A node that was never observed is the one that a sequence is about to make: taken for missing, and compared.
        observed = self.looked_nodes[path] = self._snapshot.nodes.get(path) or ObservedNode()
        return PlannedNode(observed, exists=observed.mod_revision > 0)

    def _family(self, path: str) -> Family:
        return self._changed_family(path) or self._look_at_family(path).family

    def _look_at_family(self, path: str) -> ObservedFamily:
        observed = self.looked_families[path] = self._snapshot.families.get(path) or ObservedFamily()
        return observed

    def _changed_family(self, path: str) -> Family | None:
        for families in (self._layer.families, self.families):
            if path in families:
                return families[path]
        return None

    def _count(self, path: str) -> int:
        """Return how many children the node has at this point of the transaction."""
        family = self._family(path)
        known = family.creations - family.removals
        if known == 0:
            return 0
        observed = self._look_at_family(path)
        if observed.mod_revision == 0:
            return known  # all of them are the transaction's own
        if path not in self._snapshot.counts:
            raise CountNeeded(path)
        return known - observed.unaccounted(self._snapshot.counts[path])

    def _put(self, path: str, node: PlannedNode) -> None:
        self._layer.nodes[path] = node
        self._layer.touches += 1

    def _note(self, kind: EventType, path: str) -> None:
        self._layer.events.append(WatchEvent(kind, path))


def visit_needed(
    operations: Sequence[Operation], add_node: Callable[[str], None], add_family: Callable[[str], None]
) -> None:
    """Pass on the nodes and families that the plan of some operations will need, as far as their paths tell."""
    for operation in operations:
        path = operation.path
        is_named_later = isinstance(operation, Create) and operation.sequence
        if not is_named_later:
            add_node(path)
        if isinstance(operation, Delete | Reap):
            add_family(path)
        if isinstance(operation, Create) and (is_named_later or path != ROOT):
            add_node(parent_of(path))
        if isinstance(operation, Create | Delete | Reap) and (is_named_later or path != ROOT):
            add_family(parent_of(path))
