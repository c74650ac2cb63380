"""A lock between sessions: one session holds it, the others acquire it in the order of their requests.

The lock is released when its holder's session ends, so a holder that stops running does not block the others. A
former holder may continue without knowing; the token protects against that: the protected resource refuses a token
smaller than one it has seen.
"""

from __future__ import annotations

from heliograph.metadata.errors import NodeExistsError
from heliograph.metadata.paths import lock
from heliograph.metadata.recipes.election import Election, Leadership
from heliograph.metadata.store import MetadataStore


async def claim(store: MetadataStore, path: str, value: bytes = b"", *, parents: bool = False) -> bool:
    """Create an ephemeral node, unless this session has created it already and the reply was lost.

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


class Lock:
    """One contender for the lock of a name. Not re-entrant.

    ``async with`` returns the ``Leadership``: its ``token`` increases from holder to holder, its ``lost`` is set when
    the lock is no longer held.  # I13
    """

    def __init__(self, store: MetadataStore, name: str, identity: str) -> None:
        """
        Args:
            identity: what ``holder`` returns to others.
        """
        self._candidacy = Election(store, name, identity, parent=lock(name))

    async def acquire(self) -> Leadership:
        """Wait until this contender holds the lock. A cancelled wait keeps its place in the queue: ``release`` deletes
        it.

        Raises:
            SessionExpiredError: the session ended; a new store is needed.
            ConnectionLossError: the connection was lost too often in a row; ``release`` before trying again.
        """
        return await self._candidacy.campaign()

    async def release(self) -> None:
        """Release the lock, or leave the queue. Do nothing without either.

        Raises:
            ConnectionLossError: the lock may still be held; call again.
        """
        await self._candidacy.resign()

    async def holder(self) -> str | None:
        """Return the identity of the present holder, or None."""
        return await self._candidacy.leader()

    async def __aenter__(self) -> Leadership:
        try:
            return await self.acquire()
        except BaseException:
            await self.release()
            raise

    async def __aexit__(self, *_: object) -> None:
        await self.release()
