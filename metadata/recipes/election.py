"""The election of one leader among many candidates: each creates a vote, the oldest existing vote leads.

A vote is a sequential ephemeral node, so it ends with its candidate's session. Each candidate watches only the vote
before its own: one lost vote wakes one candidate. A vote's name begins with its candidate's id, so a candidate whose
reply was lost recognises its vote and does not create a second one.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from dataclasses import dataclass

from heliograph.metadata.errors import ConnectionLossError, NoNodeError, SessionExpiredError
from heliograph.metadata.parents import create_parents
from heliograph.metadata.paths import election
from heliograph.metadata.store import MetadataStore, SessionState

CONNECTION_LOSSES_MAX = 100  # consecutive ones of one campaign
RETRY_PAUSE_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Leadership:
    """A won election. Its ``token`` is greater than that of every earlier leadership of the election.

    ``lost`` is set when the session is LOST or the vote is gone: the leader must stop acting at once.  # I13
    """

    token: int
    lost: asyncio.Event


class Election:
    """One candidate. ``campaign`` may be called again after ``resign`` or after a vote was lost."""

    def __init__(self, store: MetadataStore, name: str, identity: str, *, parent: str | None = None) -> None:
        """
        Args:
            identity: what ``leader`` returns to others.
            parent: the parent of the votes; None: the node of the election of this name.
        """
        self._store = store
        self._parent = parent or election(name)
        self._identity = identity.encode()
        self._candidate: str | None = None  # the prefix of the vote that we created, or may have created
        self._vote: str | None = None
        self._lost = asyncio.Event()
        self._moved = asyncio.Event()
        self._is_listening = False

    @property
    def lost(self) -> asyncio.Event:
        """The event that is set when the vote of the latest campaign is gone, and with it the leadership."""
        return self._lost

    async def campaign(self) -> Leadership:
        """Wait until this candidate leads. Cancelling leaves the vote in place: ``resign`` deletes it.

        Raises:
            SessionExpiredError: the session ended; a new store is needed.
            ConnectionLossError: the connection was lost too often in a row; the vote may exist.
        """
        assert self._vote is None, "one campaign at a time: resign first"
        self._lost = asyncio.Event()
        self._listen(True)
        candidate = self._candidate = self._candidate or uuid.uuid4().hex
        losses = 0
        while True:
            self._moved.clear()
            try:
                leadership = await self._advance(candidate)
                losses = 0
            except ConnectionLossError:
                losses += 1
                if losses > CONNECTION_LOSSES_MAX:
                    raise
                await asyncio.sleep(RETRY_PAUSE_SECONDS)
                continue
            if leadership is not None:
                return leadership
            await self._moved.wait()

    async def resign(self) -> None:
        """Delete the vote, and with it the leadership or candidacy. Do nothing without a vote.

        Raises:
            ConnectionLossError: the vote may still exist; call again.
        """
        if self._candidate is None:
            return
        with contextlib.suppress(NoNodeError, SessionExpiredError):
            await self._store.sync(self._parent)  # this server may not know a vote whose reply was lost
            for vote in await self._votes():
                if vote.startswith(self._candidate):
                    await self._store.delete(f"{self._parent}/{vote}")
        self._candidate = None
        self._listen(False)
        self._drop()

    async def leader(self) -> str | None:
        """Return the identity of the present leader, or None."""
        try:
            votes = await self._votes()
        except NoNodeError:
            return None
        for vote in votes:
            with contextlib.suppress(NoNodeError):
                value, _ = await self._store.get(f"{self._parent}/{vote}")
                return (value or b"").decode()
        return None

    async def _advance(self, candidate: str) -> Leadership | None:
        """Read the votes. Return the leadership, or set a watch on the vote before ours and return None."""
        own = await self._cast(candidate)
        votes = await self._votes()
        place = votes.index(own) if own in votes else -1
        try:
            if place == 0:
                _, stat = await self._store.get(f"{self._parent}/{own}", lambda _: self._drop(own))
                return Leadership(stat.czxid, self._lost)
            if place > 0:
                await self._store.get(f"{self._parent}/{votes[place - 1]}", lambda _: self._moved.set())
                return None
            self._drop(own)
        except NoNodeError:
            pass
        self._moved.set()
        return None

    async def _cast(self, candidate: str) -> str:
        """Return the name of our vote. Create it, unless an earlier create succeeded and its reply was lost."""
        if self._vote is not None:
            return self._vote
        await self._store.sync(self._parent)
        try:
            votes = await self._votes()
        except NoNodeError:
            await create_parents(self._store, f"{self._parent}/vote")
            votes = []
        mine = [vote for vote in votes if vote.startswith(candidate)]
        assert len(mine) <= 1, "a candidate has one vote"
        if mine:
            self._vote = mine[0]
        else:
            path = f"{self._parent}/{candidate}-"
            self._vote = (await self._store.create(path, self._identity, ephemeral=True, sequence=True)).rpartition(
                "/"
            )[2]
        self._lost.clear()
        return self._vote

    async def _votes(self) -> list[str]:
        return sorted(await self._store.children(self._parent), key=lambda name: int(name.rpartition("-")[2]))

    def _drop(self, vote: str | None = None) -> None:
        if vote is not None and vote != self._vote:
            return
        self._vote = None
        self._lost.set()

    def _listen(self, wanted: bool) -> None:
        if wanted and not self._is_listening:
            self._store.add_session_listener(self._on_session)
        elif self._is_listening and not wanted:
            self._store.remove_session_listener(self._on_session)
        self._is_listening = wanted

    def _on_session(self, state: SessionState) -> None:
        if state is SessionState.LOST:
            self._drop()
            self._listen(False)
        self._moved.set()
