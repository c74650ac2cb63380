"""An ephemeral node as a claim: one session holds it, and recognises its own claim after a lost reply."""

from __future__ import annotations

from heliograph.metadata.errors import NodeExistsError
from heliograph.metadata.store import MetadataStore


async def claim(store: MetadataStore, path: str, value: bytes = b"", *, parents: bool = False) -> bool:
    """Create an ephemeral node, unless this session created it before and the reply was lost.

    Returns:
        True when this session holds the node, False when another session holds it or held it a moment ago.

    Raises:
        ConnectionLossError: the node may or may not be ours; call again to find out.
        NoNodeError: the parent does not exist, and ``parents`` is False.
    """
    try:
        await store.create(path, value, ephemeral=True, parents=parents)
    except NodeExistsError:
        stat = await store.exists(path)
        return stat is not None and stat.ephemeral_owner == store.session_id
    return True
