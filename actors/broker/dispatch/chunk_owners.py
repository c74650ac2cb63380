"""The consumer of each chunked message of a shared subscription, and the chunks that wait for their consumer (pure).

All chunks of a message go to one consumer. They go to it even if it has no permits left, because no other consumer can
use them; but not while its connection has too much to write, or a message of any size would pile up there (I15).
"""

from __future__ import annotations

from collections.abc import Collection

from sortedcontainers import SortedSet

from heliograph.actors.broker.dispatch.dispatcher import ConsumerState

CHUNKED_MESSAGES_MAX = 1_000  # whose consumer is kept until their last chunk; the oldest are forgotten


class ChunkOwners:
    """The chunked messages of one subscription."""

    def __init__(self) -> None:
        self._owners: dict[str, ConsumerState] = {}  # by the uuid of the message
        self._waiting: dict[ConsumerState, SortedSet] = {}  # chunks that wait until the consumer can be written to
        self._waits_for: dict[int, ConsumerState] = {}  # the same by chunk
        self._uuids: dict[int, str] = {}  # by chunk that was delivered and not acknowledged
        self._pieces: dict[str, set[int]] = {}  # the same chunks by message

    def __len__(self) -> int:
        return len(self._waits_for)

    def __contains__(self, index: int) -> bool:
        return index in self._waits_for

    def owner(self, uuid: str, candidate: ConsumerState) -> ConsumerState:
        """Return the consumer of a message; it becomes ``candidate`` if this is the first chunk."""
        owner = self._owners.setdefault(uuid, candidate)
        if len(self._owners) > CHUNKED_MESSAGES_MAX:
            del self._owners[next(iter(self._owners))]
        assert len(self._owners) <= CHUNKED_MESSAGES_MAX, "one message joins at a time"  # I15
        return owner

    def note(self, index: int, uuid: str) -> None:
        """Note that an entry is a chunk of a message, until it is acknowledged."""
        self._uuids[index] = uuid
        self._pieces.setdefault(uuid, set()).add(index)

    def owner_of(self, index: int) -> ConsumerState | None:
        """Return the consumer that has the first chunk of a message and not the last one; None if ``index`` is not a
        chunk of such a message."""
        return self._owners.get(self._uuids[index]) if index in self._uuids else None

    def others(self, index: int) -> Collection[int]:
        """Return the known chunks of the message that an entry is a chunk of."""
        return self._pieces[self._uuids[index]] if index in self._uuids else ()

    def delivered(self, index: int, consumer: ConsumerState, *, is_last: bool) -> None:
        """Note the delivery of a chunk. Its message has no consumer any more after its last one."""
        uuid = self._uuids[index]
        if is_last:
            self._owners.pop(uuid, None)
        else:
            self.owner(uuid, consumer)

    def forget(self, index: int) -> None:
        """Forget an entry that was acknowledged."""
        uuid = self._uuids.pop(index, None)
        if uuid is not None:
            self._pieces[uuid].discard(index)
            if not self._pieces[uuid]:
                del self._pieces[uuid]

    def wait(self, index: int, owner: ConsumerState) -> None:
        """Keep a chunk until its consumer can be written to."""
        assert index not in self._waits_for, "a chunk waits for one consumer"
        assert not owner.is_writable, "a chunk is delivered to a consumer that can be written to"
        self._waits_for[index] = owner
        self._waiting.setdefault(owner, SortedSet()).add(index)

    def next_ready(self) -> int | None:
        """Return the first waiting chunk whose consumer can be written to again, None if there is none."""
        if not self._waiting:
            return None
        return min((waiting[0] for owner, waiting in self._waiting.items() if owner.is_writable), default=None)

    def discard(self, index: int) -> None:
        """Stop keeping a chunk. Do nothing if it does not wait."""
        owner = self._waits_for.pop(index, None)
        if owner is not None:
            self._waiting[owner].remove(index)
            if not self._waiting[owner]:
                del self._waiting[owner]

    def forget_up_to(self, index: int) -> None:
        """Forget chunks up to and including ``index``."""
        for known in [known for known in self._uuids if known <= index]:
            self.forget(known)
        for waiting in [waiting for waiting in self._waits_for if waiting <= index]:
            self.discard(waiting)

    def leave(self, owner: ConsumerState) -> list[int]:
        """Let other consumers have the messages of a consumer that leaves. Return the chunks that waited for it."""
        self._owners = {uuid: other for uuid, other in self._owners.items() if other is not owner}
        waiting = list(self._waiting.get(owner, ()))
        for index in waiting:
            self.discard(index)
        assert owner not in self._waiting, "no chunk waits for a consumer that left"
        return waiting

    def clear(self) -> None:
        """Forget all messages and waiting chunks."""
        self._owners.clear()
        self._waiting.clear()
        self._waits_for.clear()
        self._uuids.clear()
        self._pieces.clear()
