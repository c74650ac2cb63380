"""The connections to the bookies that get the same entries, of an ensemble.

An entry goes to all of them. It is encoded once, gathered once with the others of its loop iteration, and remembered
once: every bookie gets the same bytes, under request ids that no connection gives by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from heliograph.actors.errors import BookieUnavailableError
from heliograph.actors.wire.client import JOINED_BYTES_MAX, BookieConnection
from heliograph.actors.wire.entry import entry_head
from heliograph.actors.wire.frame import encode_head
from heliograph.actors.wire.lacs import encode_lacs
from heliograph.actors.wire.messages import BookieOp, Status
from heliograph.actors.wire.ranges import (
    ALONE_BURST_MAX,
    RANGE_BYTES_MAX,
    RANGE_ENTRIES_MAX,
    RANGED_ENTRY_BYTES_MAX,
    SIZE_BYTES,
    AddListener,
    OutgoingEntry,
    SentRange,
    Told,
    encode_adds_in_parts,
    sized_head,
)

SHARED_ENTRIES_LEAST = 4  # of a group in a turn; fewer join those of other groups, in one frame for each bookie

_ADD, _OK = int(BookieOp.ADD), int(Status.OK)

Body = bytes | memoryview


class BookieGroup:
    """Sends each entry to all of some bookies."""

    def __init__(
        self,
        bookie_ids: tuple[str, ...],
        connection: Callable[[str], BookieConnection | None],
        ids: Iterator[int],
        call_soon: Callable[..., Any],
        on_gathering: Callable[[BookieGroup], None],
    ) -> None:
        """Args:
        connection: returns the connection to a bookie, None if its address is unknown.
        ids: request ids for all connections. Each of them stands for RANGE_ENTRIES_MAX ids from it on.
        on_gathering: called when an entry or a LAC waits for the others of the turn. Then ``end_frame`` and
            ``end_lacs`` have to be called.
        """
        self._bookie_ids = bookie_ids
        self._connection = connection
        self._ids = ids
        self._call_soon = call_soon
        self._on_gathering = on_gathering
        self._connections: list[BookieConnection] = []  # to all of the bookies, or to none
        self._adds: list[Told] = []  # those of the frame that this turn fills, as ``SentRange`` has them
        self._last: AddListener | None = None  # the listener of the last of them
        self._parts: list[Body] = []  # two for each of them: length and head, payload
        self._bytes = 0  # of the parts
        self._deadline_ms = 0  # of the last of them
        self._lacs: dict[int, int] = {}  # by ledger, that this turn tells
        self._lac_timeout_ms = 0

    @property
    def connections(self) -> list[BookieConnection]:
        """Return the connections to all of the bookies; none if a bookie has no known address."""
        if not self._connections:
            found = [self._connection(bookie_id) for bookie_id in self._bookie_ids]
            known = [connection for connection in found if connection is not None]
            self._connections = known if len(known) == len(found) else []
        return self._connections

    @property
    def gathered(self) -> int:
        """Return how many entries and LACs wait for the end of the turn."""
        return len(self._parts) // 2 + len(self._lacs)

    def forget_connections(self) -> None:
        """Drop the cached connections: one was replaced."""
        self._connections = []

    def add(
        self,
        ledger_id: int,
        entry_id: int,
        head: bytes,
        payload: Body,
        listener: AddListener,
        tag: Any,
        deadline_ms: int,
    ) -> None:
        """Send an entry to every bookie. The answers come in calls of ``listener``, never during this call.

        It is written at once if some bookie has no add to answer, and nothing waits to be written to it: so the order
        of requests is kept. Behind a burst it waits for the others of its turn, because a bookie would sync it by
        itself and all of them after it. A large payload is written at once and not copied.

        Args:
            head: the entry's bytes up to its payload.
            deadline_ms: when an error takes the place of an answer, on the clock of the connections.
        """
        size = len(head) + len(payload)
        parts = self._parts
        if not parts:
            is_alone = size > RANGED_ENTRY_BYTES_MAX
            for connection in self._connections or self.connections:
                pending = connection.adds
                if not (pending or pending.in_ranges or connection.is_flush_due):
                    is_alone |= connection.burst <= ALONE_BURST_MAX
                    connection.burst = 0
            if is_alone:
                self._send_alone(ledger_id, entry_id, head, payload, size, (listener, tag, deadline_ms))
                return
            self._on_gathering(self)
        elif size > RANGED_ENTRY_BYTES_MAX:
            self.end_frame()  # in order
            self._send_alone(ledger_id, entry_id, head, payload, size, (listener, tag, deadline_ms))
            return
        elif self._bytes + SIZE_BYTES + size > RANGE_BYTES_MAX or len(parts) >= 2 * RANGE_ENTRIES_MAX:  # I15
            self.end_frame()
            parts = self._parts
        if listener is self._last:
            self._adds[-1][1].append(tag)
        else:
            self._last = listener
            self._adds.append((listener, [tag]))
        parts += (sized_head(head, size), payload)
        self._bytes += SIZE_BYTES + size
        self._deadline_ms = deadline_ms

    def tell_lac(self, ledger_id: int, last_add_confirmed: int, timeout_ms: int) -> None:
        """Tell every bookie the LAC of a ledger, with others of this turn. Whether it was stored is not reported."""
        if not self._lacs:
            self._on_gathering(self)
            self._lac_timeout_ms = timeout_ms
        self._lacs[ledger_id] = last_add_confirmed

    def end_lacs(self, *, is_shared: bool = True) -> None:
        """Give the LACs that were gathered to the connections, as ``end_frame`` does with entries."""
        if not self._lacs:
            return
        lacs, self._lacs = self._lacs, {}
        left: Iterable[str] = self._bookie_ids
        if is_shared and (connections := self._connections or self.connections):
            frames = encode_lacs(next(self._ids), lacs)
            left = [connection.bookie_id for connection in connections if not connection.put_lacs(frames)]
        for connection in map(self._connection, left):
            if connection is not None:
                for ledger_id, last_add_confirmed in lacs.items():
                    connection.tell_lac(ledger_id, last_add_confirmed, self._lac_timeout_ms)

    def end_frame(self, *, is_shared: bool = True) -> None:
        """Give the entries that were gathered to the connections, whose ``flush`` writes them.

        Args:
            is_shared: in a frame that is the same for all of them. Else the entries join others that go there.
        """
        if not self._parts:
            return
        parts, self._parts = self._parts, []
        sent = SentRange(next(self._ids), len(parts) // 2, self._adds, self._deadline_ms)
        size, self._bytes, self._adds, self._last = self._bytes, 0, [], None
        left: Iterable[str] = self._bookie_ids
        if is_shared and (connections := self._connections or self.connections):
            frame = encode_adds_in_parts(sent.first, sent.count, parts, size)
            left = [connection.bookie_id for connection in connections if not connection.put_range(sent, frame)]
        if left:
            for number, add in enumerate(sent.one_by_one()):
                head = bytes(parts[2 * number][SIZE_BYTES:])
                ledger_id, entry_id, _ = entry_head(head)
                entry = OutgoingEntry(ledger_id, entry_id, head, parts[2 * number + 1])
                self._send_to_each(left, entry, (*add, sent.deadline_ms))

    def _send_alone(
        self, ledger_id: int, entry_id: int, head: bytes, payload: Body, size: int, add: tuple[AddListener, Any, int]
    ) -> None:
        """Send a frame ADD that is the same for every bookie."""
        connections = self._connections
        if not connections:
            self._send_to_each(self._bookie_ids, OutgoingEntry(ledger_id, entry_id, head, payload), add)
            return
        request_id = next(self._ids)
        begin = encode_head([_ADD, request_id, ledger_id, entry_id, 0, 0, -1], size)
        frame = (b"".join((begin, head, payload)),) if size <= JOINED_BYTES_MAX else (begin + head, payload)
        answer = encode_head([request_id, _OK, -1, ""], 0)
        for connection in connections:
            transport, pending = connection.transport, connection.adds
            if transport is None or (pending and not connection.has_room):  # I15
                self._send_to_each((connection.bookie_id,), OutgoingEntry(ledger_id, entry_id, head, payload), add)
                continue
            pending[request_id] = add
            connection.burst += 1
            connection.awaited, connection.awaited_id = answer, request_id
            if connection.is_flush_due:
                connection.put_parts(frame)
            elif len(frame) == 1:
                transport.write(frame[0])
            else:
                transport.writelines(frame)

    def _send_to_each(self, bookie_ids: Iterable[str], entry: OutgoingEntry, add: tuple[AddListener, Any, int]) -> None:
        """Send an entry by the requests of each connection, or answer that there is none."""
        for bookie_id in bookie_ids:
            connection = self._connection(bookie_id)
            if connection is None:
                error = BookieUnavailableError(f"bookie {bookie_id} is not registered and was never seen")
                self._call_soon(add[0].on_add_answer, bookie_id, add[1], error)
            else:
                connection.add(entry, *add)
