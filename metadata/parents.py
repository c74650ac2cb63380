"""The missing nodes above a node, created on any backend."""

from __future__ import annotations

import contextlib

from heliograph.metadata.errors import NodeExistsError
from heliograph.metadata.store import MetadataStore
from heliograph.metadata.znode import ancestors_of


async def create_parents(store: MetadataStore, path: str) -> None:
    """Create the missing nodes above ``path``, persistent and empty, each in a write of its own.

    Idempotent. A failed call may have created some of them.
    """
    for ancestor in ancestors_of(path):
        with contextlib.suppress(NodeExistsError):
            await store.create(ancestor)
