"""The driver's connections to bookies, over the simulated network: entries travel in the bytes of the real protocol."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgpack

from actors.errors import BookieError, BookieUnavailableError
from actors.ledger.driver.world import NO_BODY
from actors.ledger.effects import LedgerEntry, Reply
from actors.wire.entry import decode_entry, encode_entry
from actors.wire.frame import encode_batch
from actors.wire.messages import Answer, Flag, Op, Request, Status
from tests.simulation.bookie import SimulatedBookie
from tests.simulation.disk import Copy
from tests.simulation.shell import Cluster
from tests.simulation.topic.loop import SimulatedLoop
from tests.simulation.world import Process

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
KINDS = {  # as faults know requests
    Op.ADD: "SendAdd",
    Op.READ: "ReadEntry",
    Op.READ_BATCH: "ReadBatch",
    Op.READ_LAC: "ReadLac",
    Op.LONG_POLL_LAC: "PollLac",
    Op.WRITE_LAC: "SendLac",
    Op.LIST_ENTRIES: "ListEntries",
}


class SimulatedBookieClient:
    """In the place of ``actors.wire.client.BookieClient``."""

    def __init__(self, cluster: Cluster, process: Process, loop: SimulatedLoop) -> None:
        self.cluster = cluster
        self.process = process
        self.loop = loop
        self._links = {name: SimulatedLink(self, bookie) for name, bookie in cluster.bookies.items()}

    def connection(self, bookie_id: str) -> SimulatedLink | None:
        """Never None: every bookie was seen."""
        return self._links[bookie_id]

    def expire(self, now: int) -> None:
        """Deadlines are events of the world."""

    def close(self) -> None:
        """Nothing is held."""


class SimulatedLink:
    """One process's way to one bookie."""

    def __init__(self, client: SimulatedBookieClient, bookie: SimulatedBookie) -> None:
        self._client = client
        self._bookie = bookie
        self._random = client.cluster.world.stream(f"{client.process.name}|{bookie.name}")

    def request(self, request: Request, body: bytes, on_answer: OnAnswer, context: Any, timeout_ms: int) -> None:
        """See BookieConnection."""
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
        """See BookieConnection. What is sent may be lost, late, repeated and out of order; one answer counts."""
        client, bookie = self._client, self._bookie
        world, network, process = client.cluster.world, client.cluster.network, client.process
        request = Request(Op(op), 0, ledger_id, entry_id, Flag(flags), limit, last_entry_id)
        kind = KINDS[request.op]
        is_answered = False

        def deliver(answer: Answer | BookieError, data: memoryview) -> None:
            nonlocal is_answered
            if not is_answered:
                is_answered = True
                with client.loop.running():
                    on_answer(context, answer, data)

        def tell(reply: Reply, lac: int = -1, data: bytes = b"") -> None:
            answer = Answer(0, STATUSES[reply], lac)
            network.send(bookie, process, lambda: deliver(answer, memoryview(data)), kind)

        def give_up() -> None:
            deliver(BookieUnavailableError(f"bookie {bookie.name} gave no answer in time"), NO_BODY)

        if not bookie.is_up and self._random.random() < 0.5:  # connection refused
            world.after(1, give_up, process)
        else:
            data = bytes(body) + bytes(rest)
            network.send(process, bookie, lambda: serve(bookie, request, data, tell), kind)
            world.after(max(0, deadline_ms - world.now - process.clock_ahead_ms), give_up, process)


def serve(bookie: SimulatedBookie, request: Request, body: bytes, tell: Tell) -> None:
    """Have a bookie do what a request asks."""
    ledger_id, entry_id = request.ledger_id, request.entry_id
    is_fencing = bool(request.flags & Flag.FENCE)

    def tell_entry(reply: Reply, entry: LedgerEntry | None) -> None:
        tell(reply, -1, encoded(ledger_id, entry))

    def tell_lac(reply: Reply, lac: int, entry: LedgerEntry | None) -> None:
        tell(reply, lac, encoded(ledger_id, entry))

    def tell_runs(reply: Reply, runs: Sequence[tuple[int, int]]) -> None:
        tell(reply, -1, msgpack.packb(list(runs)))

    match request.op:
        case Op.ADD:
            entry = decode_entry(body)
            copy = Copy(entry.last_add_confirmed, entry.length, bytes(entry.payload))
            bookie.add(ledger_id, entry_id, copy, bool(request.flags & Flag.RECOVERY), tell)
        case Op.WRITE_LAC:
            bookie.write_lac(ledger_id, entry_id)
            tell(Reply.OK)
        case Op.READ:
            bookie.read_entry(ledger_id, entry_id, is_fencing, tell_entry)
        case Op.READ_BATCH:
            reply, found = bookie.read_batch(ledger_id, entry_id, request.last_entry_id)
            tell(reply, -1, encode_batch([encoded(ledger_id, entry) for entry in found]))
        case Op.READ_LAC:
            bookie.read_lac(ledger_id, is_fencing, tell_lac)
        case Op.LONG_POLL_LAC:
            bookie.poll_lac(ledger_id, entry_id, request.limit, tell_lac)
        case Op.LIST_ENTRIES:
            bookie.list_entries(ledger_id, tell_runs)
        case _:
            raise AssertionError(f"no driver sends {request.op}")


def encoded(ledger_id: int, entry: LedgerEntry | None) -> bytes:
    """An entry's bytes, none for none."""
    if entry is None:
        return b""
    return encode_entry(ledger_id, entry.entry_id, entry.last_add_confirmed, entry.length, entry.payload)
