"""The largest ensemble that a new ledger of any topic may need, and whether enough bookies are left for it."""

from __future__ import annotations

import re
from collections.abc import Collection

from heliograph.actors.auditor.ledger_scan import scan_records
from heliograph.base.errors import ConflictError
from heliograph.metadata import paths
from heliograph.metadata.model import NamespacePolicies, PartitionedTopicRecord, Persistence, TopicPolicies, TopicRecord
from heliograph.metadata.store import MetadataStore

NAMESPACE_DEPTH = 2  # tenant, namespace
TOPIC_DEPTH = 3  # tenant, namespace, topic
_PARTITION = re.compile(r"-partition-\d+$")


async def widest_ensemble(store: MetadataStore, default_ensemble_size: int, reads_at_once_max: int) -> int:
    """Return the largest ensemble size of a namespace or a topic, 0 if there is no namespace.

    A topic's own policies come first, then what it was created with, then its namespace. Topics without a ledger count
    too, since they may get one.

    Args:
        default_ensemble_size: of namespaces that do not set their own.

    Raises:
        MetadataError: not all could be read; nothing may be concluded.
    """
    policies = await scan_records(store, paths.TOPIC_POLICIES, TOPIC_DEPTH, TopicPolicies, reads_at_once_max)
    own = {topic: int(found.overrides["ensemble_size"]) for topic, found in policies.items() if _has_copies(found)}
    namespaces = await scan_records(store, paths.NAMESPACES, NAMESPACE_DEPTH, NamespacePolicies, reads_at_once_max)
    topics = await scan_records(store, paths.TOPICS, TOPIC_DEPTH, TopicRecord, reads_at_once_max)
    parents = await scan_records(
        store, paths.PARTITIONED_TOPICS, TOPIC_DEPTH, PartitionedTopicRecord, reads_at_once_max
    )
    asked_for: list[tuple[str, Persistence | None]] = [
        *((topic, record.persistence) for topic, record in topics.items()),
        *((topic, record.persistence) for topic, record in parents.items()),
    ]
    created_with = [
        copies.ensemble_size
        for topic, copies in asked_for
        if copies is not None and _PARTITION.sub("", topic) not in own
    ]
    by_namespace = [
        record.persistence.ensemble_size if record.has_own_copies else default_ensemble_size
        for record in namespaces.values()
    ]
    widest: int = max([0, *own.values(), *created_with, *by_namespace])
    return widest


async def require_writable(store: MetadataStore, leaving: Collection[str], needed: int, field: str = "bookie") -> None:
    """Check that enough writable bookies are left without the leaving ones and the ones that are to leave already.

    Args:
        needed: the widest ensemble.
        field: of the caller that asked for too much.

    Raises:
        ConflictError: too few writable bookies would be left.
        MetadataError: the store failed.
    """
    available = {*await store.children(paths.BOOKIES_AVAILABLE)}
    others = available - {*leaving, *await store.children(paths.BOOKIES_DRAINING)}
    if len(others) < needed:
        raise ConflictError(
            f"without {', '.join(sorted(leaving))}, {len(others)} writable bookies would be left, and there may be "
            f"topics with an ensemble of {needed}: keep more bookies, start others first, or lower ensemble_size",
            field=field,
            limit=f"at least {needed} left",
        )


def _has_copies(policies: TopicPolicies) -> bool:
    return "ensemble_size" in policies.overrides
