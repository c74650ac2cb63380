"""All chunks of a large message go to one consumer (pure): which one, and the chunks that wait for him.

They go to him though he asked for no more, since nobody else can use them; but not while his connection has too much to
write, or a message of any size would pile up there (I15).
"""

from __future__ import annotations

from sortedcontainers import SortedSet

from actors.broker.dispatch import ConsumerState

CHUNKED_MESSAGES_MAX = 1_000  # whose consumer is remembered until their last chunk; the oldest are forgotten


class ChunkOwners:
    """The chunked messages of one subscription."""

    def __init__(self) -> None:
        self._owners: dict[str, ConsumerState] = {}
        self._waiting: dict[ConsumerState, SortedSet] = {}  # entries, by whom they wait for
        self._waits_for: dict[int, ConsumerState] = {}

    def __len__(self) -> int:
        return len(self._waits_for)

    def __contains__(self, index: int) -> bool:
        return index in self._waits_for

    def owner(self, uuid: str, candidate: ConsumerState) -> ConsumerState:
        """Who gets a chunk of the message; ``candidate`` when it is the first."""
        owner = self._owners.setdefault(uuid, candidate)
        if len(self._owners) > CHUNKED_MESSAGES_MAX:
            del self._owners[next(iter(self._owners))]
        return owner

    def finish(self, uuid: str) -> None:
        """The last chunk was delivered."""
        self._owners.pop(uuid, None)

    def wait(self, index: int, owner: ConsumerState) -> None:
        """A chunk waits until its owner can be written to."""
        self._waits_for[index] = owner
        self._waiting.setdefault(owner, SortedSet()).add(index)

    def next_ready(self) -> int | None:
        """The first chunk whose owner can be written to again."""
        if not self._waiting:
            return None
        return min((waiting[0] for owner, waiting in self._waiting.items() if owner.is_writable), default=None)

    def discard(self, index: int) -> None:
        """The chunk waits no more."""
        owner = self._waits_for.pop(index, None)
        if owner is not None:
            self._waiting[owner].discard(index)
            if not self._waiting[owner]:
                del self._waiting[owner]

    def discard_up_to(self, index: int) -> None:
        """No chunk up to and with ``index`` waits any more."""
        for waiting in [waiting for waiting in self._waits_for if waiting <= index]:
            self.discard(waiting)

    def leave(self, owner: ConsumerState) -> list[int]:
        """The consumer leaves: its messages are anybody's. Returns the chunks that waited for it."""
        self._owners = {uuid: other for uuid, other in self._owners.items() if other is not owner}
        waiting = list(self._waiting.get(owner, ()))
        for index in waiting:
            self.discard(index)
        return waiting

    def clear(self) -> None:
        """Nothing is known, nothing waits."""
        self._owners.clear()
        self._waiting.clear()
        self._waits_for.clear()
