"""Electing one leader among many: each candidate casts a vote, the oldest standing vote leads.

A vote is a sequential ephemeral, so it falls with its candidate's session. Each candidate watches only the vote before
its own: one death wakes one candidate. A vote's name begins with its candidate's own id, so a candidate whose reply
was lost recognises its vote instead of casting a second one.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from dataclasses import dataclass

from metadata.errors import ConnectionLossError, NoNodeError, SessionExpiredError
from metadata.parents import create_parents
from metadata.paths import election
from metadata.store import MetadataStore, SessionState

CONNECTION_LOSSES_MAX = 100  # of one campaign, in a row
RETRY_PAUSE_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Leadership:
    """Won. Each leadership of an election has a greater ``token`` than every one before it.

    ``lost`` is set when the session is LOST or the vote is gone: stop acting as the leader at once.  # I13
    """

    token: int
    lost: asyncio.Event


class Election:
    """One candidate. ``campaign`` may be called again after ``resign`` or after a vote was lost."""

    def __init__(self, store: MetadataStore, name: str, identity: str, *, parent: str | None = None) -> None:
        """
        Args:
            identity: what ``leader`` tells others.
            parent: the node below which the votes are kept, when it is not the one of elections.
        """
        self._store = store
        self._parent = parent or election(name)
        self._identity = identity.encode()
        self._candidate: str | None = None  # begins the name of the vote that we cast, or may have cast
        self._vote: str | None = None
        self._lost = asyncio.Event()
        self._moved = asyncio.Event()
        self._is_listening = False

    @property
    def lost(self) -> asyncio.Event:
        """Set when the leadership (or the vote) that the latest campaign got is gone."""
        return self._lost

    async def campaign(self) -> Leadership:
        """Wait until this candidate leads. Cancelling leaves the vote in place: ``resign`` takes it back.

        Raises:
            SessionExpiredError: the session ended; a new store is needed.
            ConnectionLossError: lost too often in a row; the vote may stand.
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
        """Give the leadership or the candidacy up; nothing happens without one.

        Raises:
            ConnectionLossError: the vote may still stand; call again.
        """
        if self._candidate is None:
            return
        with contextlib.suppress(NoNodeError, SessionExpiredError):
            await self._store.sync(self._parent)  # a vote whose reply was lost may be news to the server we are at now
            for vote in await self._votes():
                if vote.startswith(self._candidate):
                    await self._store.delete(f"{self._parent}/{vote}")
        self._candidate = None
        self._listen(False)
        self._drop()

    async def leader(self) -> str | None:
        """The identity of the leader now, or None."""
        try:
            votes = await self._votes()
        except NoNodeError:
            return None
        for vote in votes:
            with contextlib.suppress(NoNodeError):
                value, _ = await self._store.get(f"{self._parent}/{vote}")
                return value.decode()
        return None

    async def _advance(self, candidate: str) -> Leadership | None:
        """One look at the votes: the leadership, or None with a watch that wakes us when the vote before ours falls."""
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
        """The name of our vote, cast now unless an earlier create of ours did it (though its reply was lost)."""
        if self._vote is not None:
            return self._vote
        await self._store.sync(self._parent)
        try:
            votes = await self._votes()
        except NoNodeError:
            await create_parents(self._store, f"{self._parent}/vote")
            votes = []
        mine = [vote for vote in votes if vote.startswith(candidate)]
        assert len(mine) <= 1, "a candidate casts one vote"
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
