"""Which bundle a topic is in, and which broker should own it (pure).

A namespace's topics are spread over its bundles by hash; a bundle's owner is chosen among the live brokers by
rendezvous hashing, so that every broker comes to the same answer and a broker that leaves moves only its own bundles.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from heliograph.protocol.topic_name import TopicName
from metadata import paths
from metadata.model import NamespacePolicies


def bundle_path(topic: TopicName, policies: NamespacePolicies) -> str:
    """The node whose ephemeral owner serves the topic."""
    return paths.bundle(topic.tenant, topic.namespace_name, topic.bundle(policies.bundles))


def candidate(path: str, broker_ids: Iterable[str]) -> str | None:
    """The broker that should own a bundle that has no owner; None when there is no broker."""
    return max(broker_ids, key=lambda broker_id: _weight(path, broker_id), default=None)


def _weight(path: str, broker_id: str) -> bytes:
    return hashlib.blake2b(f"{broker_id}\0{path}".encode(), digest_size=8).digest()
