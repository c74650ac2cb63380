"""An ephemeral node as a claim: one session holds it, and knows its own again after a lost reply."""

from __future__ import annotations

from metadata.errors import NodeExistsError
from metadata.store import MetadataStore


async def claim(store: MetadataStore, path: str, value: bytes = b"", *, parents: bool = False) -> bool:
    """Make an ephemeral node, or find that this session has made it already: an earlier reply was lost.

    Returns:
        False when another session holds it, or did a moment ago.

    Raises:
        ConnectionLossError: it may or may not be ours; calling again finds out.
        NoNodeError: there is no parent, and ``parents`` is False.
    """
    try:
        await store.create(path, value, ephemeral=True, parents=parents)
    except NodeExistsError:
        stat = await store.exists(path)
        return stat is not None and stat.ephemeral_owner == store.session_id
    return True
