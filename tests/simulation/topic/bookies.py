"""The driver's connections to bookies, over the simulated network. Entries have the bytes of the real protocol."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgpack

from heliograph.actors.errors import BookieError, BookieUnavailableError
from heliograph.actors.ledger.driver.context import NO_BODY
from heliograph.actors.ledger.effects import LedgerEntry, Reply
from heliograph.actors.wire.entry import decode_entry, encode_entry
from heliograph.actors.wire.frame import encode_batch
from heliograph.actors.wire.messages import Answer, BookieOp, BookieRequest, Flag, Status
from heliograph.actors.wire.ranges import AddListener, OutgoingEntry
from tests.simulation.cluster.bookie import SimulatedBookie
from tests.simulation.cluster.disk import Copy
from tests.simulation.cluster.ranges import AddRanges
from tests.simulation.cluster.runner import Cluster
from tests.simulation.topic.loop import SimulatedLoop
from tests.simulation.world import Action, Process

OnAnswer = Callable[[Any, Answer | BookieError, memoryview], None]
Tell = Callable[..., None]  # status, LAC, body

STATUSES = {
    Reply.OK: Status.OK,
    Reply.ABSENT: Status.NO_ENTRY,
    Reply.FENCED: Status.FENCED,
    Reply.READ_ONLY: Status.READ_ONLY,
    Reply.UNAUTHORIZED: Status.UNAUTHORIZED,
    Reply.DAMAGED: Status.DAMAGED,
    Reply.UNKNOWN: Status.STORAGE_ERROR,
}
LENGTH_BYTES = 4  # in front of an entry of a range
KINDS = {  # the names that faults use
    BookieOp.ADD: "SendAdd",
    BookieOp.READ: "ReadEntry",
    BookieOp.READ_BATCH: "ReadBatch",
    BookieOp.READ_LAC: "ReadLac",
    BookieOp.WRITE_LAC: "SendLac",
    BookieOp.LIST_ENTRIES: "ListEntries",
}


class SimulatedBookieClient:
    """A stand-in for ``heliograph.actors.wire.connections.BookieClient``."""

    def __init__(
        self, cluster: Cluster, process: Process, loop: SimulatedLoop, on_fenced: Callable[[int], None]
    ) -> None:
        """
        Args:
            on_fenced: told of each ledger that a bookie calls fenced when it is asked.
        """
        self.on_fenced = on_fenced
        self.cluster = cluster
        self.process = process
        self.loop = loop
        self._links = {name: SimulatedLink(self, bookie) for name, bookie in cluster.bookies.items()}

    def connection(self, bookie_id: str) -> SimulatedLink | None:
        """Return the connection to a bookie. There is one to every bookie."""
        return self._links[bookie_id]

    def group(self, bookie_ids: tuple[str, ...]) -> SimulatedGroup:
        """Return the connections to some bookies."""
        return SimulatedGroup([self._links[bookie_id] for bookie_id in bookie_ids])

    def expire(self, now: int) -> None:
        """Do nothing: deadlines are events of the world."""

    def retry_now(self) -> None:
        """Do nothing: nothing waits before it connects."""

    def close(self) -> None:
        """Do nothing: there are no sockets."""


class SimulatedGroup:
    """A stand-in for ``heliograph.actors.wire.group.BookieGroup``. Each bookie gets an entry by itself."""

    def __init__(self, links: list[SimulatedLink]) -> None:
        self._links = links

    def add(
        self,
        ledger_id: int,
        entry_id: int,
        head: bytes,
        payload: bytes | memoryview,
        listener: AddListener,
        tag: Any,
        deadline_ms: int,
    ) -> None:
        """Send an entry to every bookie."""
        entry = OutgoingEntry(ledger_id, entry_id, head, payload)
        for link in self._links:
            link.add(entry, listener, tag, deadline_ms)

    def tell_lac(self, ledger_id: int, last_add_confirmed: int, timeout_ms: int) -> None:
        """Tell every bookie the LAC of a ledger."""
        for link in self._links:
            link.tell_lac(ledger_id, last_add_confirmed, timeout_ms)


class SimulatedLink:
    """The connection of one process to one bookie, a stand-in for ``BookieConnection``."""

    def __init__(self, client: SimulatedBookieClient, bookie: SimulatedBookie) -> None:
        self._client = client
        self._bookie = bookie
        self._random = client.cluster.world.stream(f"{client.process.name}|{bookie.name}")
        self._ranges = AddRanges(client.cluster.network, client.process, bookie, self._run, _on_refused)

    def add(self, entry: OutgoingEntry, listener: AddListener, tag: Any, deadline_ms: int) -> None:
        """Send an add, in a range if this run has them."""
        ledger_id, entry_id, packed = entry.ledger_id, entry.entry_id, entry.in_range()
        if self._client.cluster.network.profile.ranges and packed is not None:
            found = decode_entry(packed[LENGTH_BYTES:])
            copy = Copy(found.last_add_confirmed, found.length, bytes(found.payload))
            now = self._client.cluster.world.now + self._client.process.clock_ahead_ms
            self._ranges.add(ledger_id, entry_id, copy, listener, tag, max(0, deadline_ms - now))
            return

        def on_answer(tag: Any, answer: Answer | BookieError, body: memoryview) -> None:
            listener.on_add_answer(self._bookie.name, tag, answer)

        self.send(
            int(BookieOp.ADD),
            ledger_id,
            entry_id,
            0,
            0,
            -1,
            entry.head,
            on_answer,
            tag,
            deadline_ms,
            bytes(entry.payload),
        )

    def tell_lac(self, ledger_id: int, last_add_confirmed: int, timeout_ms: int) -> None:
        """Tell the bookie the LAC of a ledger, by itself: the network may lose, repeat and reorder it."""
        request = BookieRequest(BookieOp.WRITE_LAC, 0, ledger_id, last_add_confirmed)
        self.request(request, b"", lambda tag, answer, body: None, None, timeout_ms)

    def _run(self, action: Action) -> None:
        with self._client.loop.running():
            action()

    def request(self, request: BookieRequest, body: bytes, on_answer: OnAnswer, context: Any, timeout_ms: int) -> None:
        self.send(
            int(request.op),
            request.ledger_id,
            request.entry_id,
            int(request.flags),
            request.limit,
            request.last_entry_id,
            body,
            on_answer,
            context,
            self._client.cluster.world.now + self._client.process.clock_ahead_ms + timeout_ms,
        )

    def send(
        self,
        op: int,
        ledger_id: int,
        entry_id: int,
        flags: int,
        limit: int,
        last_entry_id: int,
        body: bytes,
        on_answer: OnAnswer,
        context: Any,
        deadline_ms: int,
        rest: bytes = b"",
    ) -> None:
        """Send a request. It may be lost, late, repeated or out of order; the first answer counts."""
        client, bookie = self._client, self._bookie
        world, network, process = client.cluster.world, client.cluster.network, client.process
        request = BookieRequest(BookieOp(op), 0, ledger_id, entry_id, Flag(flags), limit, last_entry_id)
        kind = KINDS[request.op]
        is_answered = False

        def deliver(answer: Answer | BookieError, data: memoryview) -> None:
            nonlocal is_answered
            if not is_answered:
                is_answered = True
                is_fenced = isinstance(answer, Answer) and answer.status is Status.FENCED
                if is_fenced and request.op is BookieOp.WRITE_LAC and context is not None:
                    client.on_fenced(ledger_id)  # in answer to a question of the broker
                with client.loop.running():
                    on_answer(context, answer, data)

        def tell(reply: Reply, lac: int = -1, data: bytes = b"") -> None:
            answer = Answer(0, STATUSES[reply], lac)
            network.send(bookie, process, lambda: deliver(answer, memoryview(data)), kind)

        def on_timeout() -> None:
            deliver(BookieUnavailableError(f"bookie {bookie.name} gave no answer in time"), NO_BODY)

        if not bookie.is_up and self._random.random() < 0.5:  # connection refused
            world.after(1, on_timeout, process)
        else:
            data = bytes(body) + bytes(rest)
            network.send(process, bookie, lambda: serve(bookie, request, data, tell), kind)
            world.after(max(0, deadline_ms - world.now - process.clock_ahead_ms), on_timeout, process)


def _on_refused(listener: AddListener, bookie_id: str, tag: Any, reply: Reply | None) -> None:
    if reply is None:
        listener.on_add_answer(bookie_id, tag, BookieUnavailableError("the bookie gave no answer in time"))
    else:
        listener.on_add_answer(bookie_id, tag, Answer(0, STATUSES[reply]))


def serve(bookie: SimulatedBookie, request: BookieRequest, body: bytes, tell: Tell) -> None:
    """Let a bookie do a request."""
    ledger_id, entry_id = request.ledger_id, request.entry_id
    is_fencing = bool(request.flags & Flag.FENCE)

    def tell_entry(reply: Reply, entry: LedgerEntry | None) -> None:
        tell(reply, -1, encoded(ledger_id, entry))

    def tell_lac(reply: Reply, lac: int, entry: LedgerEntry | None) -> None:
        tell(reply, lac, encoded(ledger_id, entry))

    def tell_runs(reply: Reply, runs: Sequence[tuple[int, int]]) -> None:
        tell(reply, -1, msgpack.packb(list(runs)))

    match request.op:
        case BookieOp.ADD:
            entry = decode_entry(body)
            copy = Copy(entry.last_add_confirmed, entry.length, bytes(entry.payload))
            bookie.add(ledger_id, entry_id, copy, bool(request.flags & Flag.RECOVERY), tell)
        case BookieOp.WRITE_LAC:
            tell(bookie.write_lac(ledger_id, entry_id))
        case BookieOp.READ:
            bookie.read_entry(ledger_id, entry_id, is_fencing, tell_entry)
        case BookieOp.READ_BATCH:
            reply, found = bookie.read_batch(ledger_id, entry_id, request.last_entry_id)
            tell(reply, -1, encode_batch([encoded(ledger_id, entry) for entry in found]))
        case BookieOp.READ_LAC:
            bookie.read_lac(ledger_id, is_fencing, tell_lac)
        case BookieOp.LIST_ENTRIES:
            bookie.list_entries(ledger_id, tell_runs)
        case _:
            raise AssertionError(f"no driver sends {request.op}")


def encoded(ledger_id: int, entry: LedgerEntry | None) -> bytes:
    """Return the bytes of an entry, no bytes for None."""
    if entry is None:
        return b""
    return encode_entry(ledger_id, entry.entry_id, entry.last_add_confirmed, entry.length, entry.payload)
