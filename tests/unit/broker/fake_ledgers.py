"""Ledgers in memory with the interface of ``records/ledgers.py``: the broker's tests run on them without bookies.

Adds are confirmed on the next turn of the loop, or, while ``held`` is set, when the test calls ``release``. A crash of
the broker is modelled by a new owner on the same ``FakeLedgers``: unconfirmed adds of an open ledger are kept or lost
as ``recovery_keeps`` says.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from heliograph.actors.errors import LedgerClosedError, LedgerFencedError, NoSuchEntryError, NoSuchLedgerError
from heliograph.base.errors import HeliographError, TooFewBookiesError
from heliograph.metadata.model import BookieRegistration, LedgerMetadata, LedgerState, Segment, Versioned
from heliograph.metrics.metric import Histogram

BOOKIES = tuple(f"b{n}" for n in range(1, 10))


@dataclass(frozen=True)
class FakeEntry:
    entry_id: int
    payload: bytes


@dataclass
class FakeLedger:
    metadata: LedgerMetadata
    entries: list[bytes] = field(default_factory=list)
    confirmed: int = -1
    fenced: bool = False


class FakeWriter:
    def __init__(self, world: FakeLedgers, ledger: FakeLedger) -> None:
        self._world = world
        self._ledger = ledger
        self._waiting: list[tuple[int, asyncio.Future[int]]] = []
        self.length = 0
        self.is_over = False  # closed, failed or aborted: no client keeps it

    @property
    def ledger_id(self) -> int:
        return self._ledger.metadata.ledger_id

    @property
    def metadata(self) -> LedgerMetadata:
        return self._ledger.metadata

    @property
    def last_add_confirmed(self) -> int:
        return self._ledger.confirmed

    async def probe(self, on_fenced: Callable[[HeliographError], None]) -> bool:
        if self._ledger.metadata.is_closed or self._ledger.fenced:
            on_fenced(LedgerFencedError("fenced"))
            return False
        return self._world.fail_adds is None

    def add(self, payload: bytes | memoryview) -> asyncio.Future[int]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[int] = loop.create_future()
        if self._world.fail_adds is not None:
            future.set_exception(self._world.fail_adds)
        elif self._ledger.metadata.is_closed or self._ledger.fenced:
            future.set_exception(LedgerFencedError("fenced"))
        else:
            self._ledger.entries.append(bytes(payload))
            self.length += len(payload)
            self._waiting.append((len(self._ledger.entries) - 1, future))
            if not self._world.held:
                loop.call_soon(self.release)
        return future

    def add_then(
        self,
        payload: bytes | memoryview,
        on_added: Callable[[Any, int, HeliographError | None], None],
        context: Any = None,
        observer: Any = None,
    ) -> None:
        def done(added: asyncio.Future[int]) -> None:
            error = added.exception()
            assert error is None or isinstance(error, HeliographError)
            on_added(context, -1 if error else added.result(), error)

        self.add(payload).add_done_callback(done)

    def release(self, count: int | None = None) -> None:
        ready, self._waiting = self._waiting[:count], self._waiting[len(self._waiting[:count]) :]
        for entry_id, future in ready:
            if future.cancelled():
                self._ledger.confirmed = entry_id
            elif self._ledger.fenced:
                future.set_exception(LedgerFencedError("fenced"))
            else:
                self._ledger.confirmed = entry_id
                future.set_result(entry_id)

    def abort(self, error: HeliographError) -> None:
        self.fail(error)

    def fail(self, error: Exception) -> None:
        self.is_over = True
        waiting, self._waiting = self._waiting, []
        for _, future in waiting:
            future.set_exception(error)
            future.exception()

    async def close(self) -> LedgerMetadata:
        await asyncio.gather(*(future for _, future in self._waiting))
        self.is_over = True
        if self._ledger.fenced:
            raise LedgerFencedError("fenced")
        return self._world.decide(self._ledger, self._ledger.confirmed)


class FakeReader:
    def __init__(self, ledger: FakeLedger) -> None:
        self._ledger = ledger
        self.last_add_confirmed = ledger.confirmed

    async def read(self, first: int, last: int, max_bytes: int = 5 << 20) -> list[FakeEntry]:
        if last > self.last_add_confirmed:
            raise NoSuchEntryError(f"{last} is beyond {self.last_add_confirmed}")
        found: list[FakeEntry] = []
        size = 0
        for entry_id in range(first, last + 1):
            payload = self._ledger.entries[entry_id]
            size += len(payload)
            if found and size > max_bytes:
                break
            found.append(FakeEntry(entry_id, payload))
        return found

    async def read_last_add_confirmed(self) -> int:
        self.last_add_confirmed = self._ledger.confirmed
        return self.last_add_confirmed

    async def close(self) -> None:
        return None


class FakeLedgers:
    placements = ("rack", "random")

    def __init__(self) -> None:
        self.ledgers: dict[int, FakeLedger] = {}
        self.writers: dict[int, FakeWriter] = {}
        self.deleted: list[int] = []
        self.held = False
        self.recovery_keeps = 0  # unconfirmed adds that a recovery finds
        self.fail_adds: Exception | None = None
        self.fail_create: Exception | None = None
        self.shortage_error: TooFewBookiesError | None = None
        self.fail_recover: HeliographError | None = None
        self._ids = itertools.count(10)

    @property
    def kept_writers(self) -> list[str]:
        """Return the uses of the writers that were neither closed nor aborted, in the order of their creation."""
        kept = [writer for writer in self.writers.values() if not writer.is_over]
        return [writer.metadata.properties.get("use", "") for writer in kept]

    @property
    def add_latencies(self) -> dict[str, Histogram]:
        return {}

    @property
    def bookies(self) -> dict[str, BookieRegistration]:
        return {one: BookieRegistration(one, f"{one}:3181", rack="r") for one in BOOKIES}

    async def shortage(self, copies: int) -> TooFewBookiesError | None:
        return self.shortage_error

    async def create(
        self,
        *,
        ensemble_size: int,
        write_quorum: int,
        ack_quorum: int,
        properties: Mapping[str, str] | None = None,
        minimum_copies: int = 0,
    ) -> FakeWriter:
        if self.fail_create is not None:
            raise self.fail_create
        ledger_id = next(self._ids)
        metadata = LedgerMetadata(
            ledger_id,
            ensemble_size,
            write_quorum,
            ack_quorum,
            (Segment(0, BOOKIES[:ensemble_size]),),
            properties=dict(properties or {}),
        )
        ledger = self.ledgers[ledger_id] = FakeLedger(metadata)
        writer = self.writers[ledger_id] = FakeWriter(self, ledger)
        return writer

    async def recover(self, ledger_id: int) -> LedgerMetadata:
        if self.fail_recover is not None:
            raise self.fail_recover
        ledger = self._ledger(ledger_id)
        ledger.fenced = True
        if not ledger.metadata.is_closed:
            keep = min(ledger.confirmed + self.recovery_keeps, len(ledger.entries) - 1)
            self.decide(ledger, keep)
            self.writers[ledger_id].fail(LedgerFencedError("fenced by recovery"))
        return ledger.metadata

    async def open(self, ledger_id: int, known: LedgerMetadata | None = None) -> FakeReader:
        return FakeReader(self._ledger(ledger_id))

    async def delete(self, ledger_id: int) -> None:
        self.ledgers.pop(ledger_id, None)
        self.deleted.append(ledger_id)

    async def metadata(self, ledger_id: int) -> Versioned[LedgerMetadata]:
        return Versioned(self._ledger(ledger_id).metadata, 0)

    async def copies(self, ledger_id: int, entry_id: int) -> dict[str, str]:
        return dict.fromkeys(self._ledger(ledger_id).metadata.segment_of(entry_id).bookies, "present")

    async def close(self) -> None:
        return None

    def decide(self, ledger: FakeLedger, last: int) -> LedgerMetadata:
        """Close the ledger at ``last``."""
        if ledger.metadata.is_closed and ledger.metadata.last_entry_id != last:
            raise LedgerClosedError("closed elsewhere")
        del ledger.entries[last + 1 :]
        ledger.confirmed = last
        length = sum(map(len, ledger.entries))
        ledger.metadata = replace(ledger.metadata, state=LedgerState.CLOSED, last_entry_id=last, length=length)
        return ledger.metadata

    def _ledger(self, ledger_id: int) -> FakeLedger:
        try:
            return self.ledgers[ledger_id]
        except KeyError:
            raise NoSuchLedgerError(f"ledger {ledger_id}") from None
