"""Creates the missing nodes above a node, and reads the children of a node in pages, on any backend."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from heliograph.metadata.errors import NodeExistsError, NoNodeError
from heliograph.metadata.store import MetadataStore
from heliograph.metadata.znode import ancestors_of


async def create_parents(store: MetadataStore, path: str) -> None:
    """Create the missing nodes above ``path``, persistent and empty, each in a write of its own.

    Idempotent. A failed call may have created some of them.
    """
    for ancestor in ancestors_of(path):
        with contextlib.suppress(NodeExistsError):
            await store.create(ancestor)


async def child_pages(store: MetadataStore, path: str, start: str = "") -> AsyncIterator[list[str]]:
    """Yield the names of the children at or after ``start`` in pages, so that no step handles all of them.

    Raises:
        NoNodeError: also if the node is deleted meanwhile.
        MetadataError: as the store.
    """
    while page := await store.children_from(path, start):
        yield page
        start = page[-1] + "\0"  # no name is between the two


async def children_if_any(store: MetadataStore, path: str) -> list[str]:
    """Return the names of a node's children; none if there is no node. Raises MetadataError as the store."""
    try:
        return await store.children(path)
    except NoNodeError:
        return []
