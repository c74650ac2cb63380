"""What a session has seen of nodes, each with the revision that it was true at. No I/O.

A plan rests on what was seen; the transaction that carries it out compares every revision, so that something seen long
ago costs a second try and never a wrong answer.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from metadata.etcd.limits import CACHED_ENTRIES_MAX
from metadata.etcd.record import Family, NodeHead
from metadata.store import Stat


@dataclass(frozen=True, slots=True)
class SeenNode:
    """A node; ``mod_revision`` 0: there is none."""

    mod_revision: int = 0
    create_revision: int = 0
    czxid: int = 0
    version: int = 0
    created_ms: int = 0
    modified_ms: int = 0
    owner: int = 0
    data_length: int = 0

    @classmethod
    def of(cls, head: NodeHead, data_length: int, mod_revision: int, create_revision: int, owner: int) -> SeenNode:
        """A node as it was read."""
        czxid = head.czxid or mod_revision
        return cls(
            mod_revision, create_revision, czxid, head.version, head.created_ms, head.modified_ms, owner, data_length
        )


@dataclass(frozen=True, slots=True)
class SeenFamily:
    """What a node knew of its children; ``mod_revision`` 0: nothing was written of them yet."""

    mod_revision: int = 0
    family: Family = field(default_factory=Family)

    @property
    def pzxid(self) -> int:
        """The revision that changed the list of children last; 0: none did."""
        return self.family.pzxid or self.mod_revision

    def unaccounted(self, count: int) -> int:
        """How many children fell with their leases since the last change, if ``count`` are there now."""
        return self.family.creations - self.family.removals - count


def stat_of(node: SeenNode, family: SeenFamily, count: int) -> Stat:
    """The stat of an existing node that has ``count`` children."""
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
    """Nodes, families and numbers of children by path."""

    nodes: dict[str, SeenNode] = field(default_factory=dict)
    families: dict[str, SeenFamily] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    def update(self, other: Snapshot) -> None:
        """Take over what another one knows."""
        self.nodes.update(other.nodes)
        self.families.update(other.families)
        self.counts.update(other.counts)

    def trim(self) -> None:
        """Forget the oldest entries beyond the bound."""  # I15
        for entries in (self.nodes, self.families):
            while len(entries) > CACHED_ENTRIES_MAX:
                del entries[next(iter(entries))]
