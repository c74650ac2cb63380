"""A lock between sessions: one holds it, the others get it in the order in which they asked.

It falls with its holder's session, so a holder that stops running does not stop everybody. A holder that goes on
without knowing is what the token is for: whatever the lock protects refuses a smaller one than it has seen.
"""

from __future__ import annotations

from metadata.election import Election, Leadership
from metadata.paths import lock
from metadata.store import MetadataStore


class Lock:
    """One contender for the lock of a name. Not re-entrant.

    Use it as ``async with``, which gives the ``Leadership``: its ``token`` grows from holder to holder, its ``lost`` is
    set when the lock is no longer held.  # I13
    """

    def __init__(self, store: MetadataStore, name: str, identity: str) -> None:
        """
        Args:
            identity: what ``holder`` tells others.
        """
        self._candidacy = Election(store, name, identity, parent=lock(name))

    async def acquire(self) -> Leadership:
        """Wait until the lock is ours. A cancelled wait leaves our place in the queue: ``release`` gives it back.

        Raises:
            SessionExpiredError: the session ended; a new store is needed.
            ConnectionLossError: lost too often in a row; ``release`` before trying again.
        """
        return await self._candidacy.campaign()

    async def release(self) -> None:
        """Give the lock, or our place in the queue, back; nothing happens without one.

        Raises:
            ConnectionLossError: it may still be held; call again.
        """
        await self._candidacy.resign()

    async def holder(self) -> str | None:
        """The identity of whoever holds it now, or None."""
        return await self._candidacy.leader()

    async def __aenter__(self) -> Leadership:
        try:
            return await self.acquire()
        except BaseException:
            await self.release()
            raise

    async def __aexit__(self, *_: object) -> None:
        await self.release()
