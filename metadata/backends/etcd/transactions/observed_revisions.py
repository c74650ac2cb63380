"""A session's observations of nodes, each with the revision at which it was true. No I/O.

A plan relies on observations. Its transaction compares every revision, so an outdated observation costs a second
attempt and never gives a wrong answer.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from heliograph.metadata.backends.etcd.wire.limits import CACHED_ENTRIES_MAX
from heliograph.metadata.backends.etcd.wire.record import Family, NodeHead
from heliograph.metadata.store import Stat


@dataclass(frozen=True, slots=True)
class ObservedNode:
    """A node as it was observed; ``mod_revision`` 0: there was none."""

    mod_revision: int = 0
    create_revision: int = 0
    czxid: int = 0
    version: int = 0
    created_ms: int = 0
    modified_ms: int = 0
    owner: int = 0  # the session of an ephemeral, or the kind of a node that is reaped
    data_length: int = 0

    @classmethod
    def of(cls, head: NodeHead, data_length: int, mod_revision: int, create_revision: int, owner: int) -> ObservedNode:
        """Return a node as it was read; ``owner`` is its lease."""
        czxid = head.czxid or mod_revision
        return cls(
            mod_revision,
            create_revision,
            czxid,
            head.version,
            head.created_ms,
            head.modified_ms,
            owner or head.kind,
            data_length,
        )


@dataclass(frozen=True, slots=True)
class ObservedFamily:
    """The family record of a node as it was observed; ``mod_revision`` 0: there was none."""

    mod_revision: int = 0
    family: Family = field(default_factory=Family)

    @property
    def pzxid(self) -> int:
        """The revision that changed the list of children last; 0: none has."""
        return self.family.pzxid or self.mod_revision

    def unaccounted(self, count: int) -> int:
        """Return how many children vanished with their leases since the last change, given that ``count`` are left."""
        return self.family.creations - self.family.removals - count


def stat_of(node: ObservedNode, family: ObservedFamily, count: int) -> Stat:
    """Return the stat of an existing node that has ``count`` children."""
    return Stat(
        czxid=node.czxid,
        mzxid=node.mod_revision,
        version=node.version,
        cversion=2 * family.family.creations - count,
        ephemeral_owner=node.owner,
        data_length=node.data_length,
        num_children=count,
        pzxid=max(family.pzxid, node.czxid),
        created_ms=node.created_ms,
        modified_ms=node.modified_ms,
    )


@dataclass(slots=True)
class Snapshot:
    """Observed nodes, families and numbers of children, by path."""

    nodes: dict[str, ObservedNode] = field(default_factory=dict)
    families: dict[str, ObservedFamily] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    def update(self, other: Snapshot) -> None:
        """Add the observations of another snapshot."""
        self.nodes.update(other.nodes)
        self.families.update(other.families)
        self.counts.update(other.counts)

    def trim(self) -> None:
        """Forget the oldest entries beyond the bound."""  # I15
        for entries in (self.nodes, self.families):
            while len(entries) > CACHED_ENTRIES_MAX:
                del entries[next(iter(entries))]
