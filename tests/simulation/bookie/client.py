"""The clients of the bookie: they add, fence, read, list and tell LACs, and remember what they were told."""

from __future__ import annotations

import struct
from collections.abc import Callable, Coroutine
from typing import Any

import crc32c
import msgpack

from heliograph.actors.bookie.journal.format import Kind
from heliograph.actors.bookie.store.data_directory import LENGTH_BYTES
from heliograph.actors.errors import BookieStorageError, BookieUnavailableError
from heliograph.actors.wire.entry import encode_entry
from heliograph.actors.wire.messages import BookieOp, BookieRequest, Flag, Status
from tests.simulation.bookie.disk import is_for_room
from tests.simulation.bookie.host import BookieHost
from tests.simulation.bookie.model import NEGATIVES, LedgerModel, Model
from tests.simulation.world import World

LEDGERS_MAX = 24  # of a run
OPEN_MAX = 5
LARGE_BYTES = (500, 1_500, 6_000)
BULK_BYTES = 30_000
READ_BYTES = 4_000
_REST = struct.Struct(">IQQIB3x")  # of a journal record, behind its checksum


class Waiter:
    """Waits for one add, as the connection of a client does."""

    def __init__(self, clients: Clients, model: LedgerModel, entry_id: int, last_add_confirmed: int) -> None:
        self._clients = clients
        self._model = model
        self._entry_id = entry_id
        self._lac = last_add_confirmed
        self._incarnation = clients.host.incarnation

    def on_durable(self, tokens: list[Any], error: BookieStorageError | None) -> None:
        """Take the outcome, unless the power went meanwhile."""
        clients = self._clients
        if not clients.may_hear(self._incarnation):
            return
        if error is not None:
            clients.world.count("add refused by its journal")
            clients.host.storage.write_cache.note_refusal()
            return
        clients.confirmed += 1
        self._model.stored.add(self._entry_id)
        self._model.lac_stored = max(self._model.lac_stored, self._lac)
        clients.world.note("bookie stored", f"{self._model.ledger_id}:{self._entry_id}")


class Clients:
    """All clients of the bookie."""

    def __init__(self, world: World, host: BookieHost, model: Model, every_ms_max: int, messages_max: int) -> None:
        self.world = world
        self.host = host
        self.model = model
        self.confirmed = 0
        self.sent = 0
        self.random = world.stream("clients")
        self._every_ms_max = every_ms_max
        self._messages_max = messages_max
        self._last_ledger_id = 0
        self.is_over = False
        self.payload: Callable[[int, int], bytes] = self._payload

    def begin(self) -> None:
        """Start to send requests."""
        self.world.after(self.random.randrange(self._every_ms_max) + 1, self._turn)

    def may_hear(self, incarnation: int) -> bool:
        """Whether an answer of the bookie still comes through."""
        host = self.host
        return host.is_up and host.incarnation == incarnation and host.disk.after_cut is None

    def _turn(self) -> None:
        if self.is_over:
            return
        host, random = self.host, self.random
        if host.is_up and host.disk.after_cut is None:
            with host.loop.running():
                self._act(random.random())
        self.world.after(random.randrange(self._every_ms_max) + 1, self._turn)

    def _act(self, chance: float) -> None:
        if chance < 0.55:
            self.add_some()
            return
        model = self._any_ledger()
        if model is None:
            return
        if chance < 0.60:
            self._start(self._fence(model))
        elif chance < 0.66:
            self._start(self._write_lac(model))
        elif chance < 0.70:
            self._take_lacs()
        elif chance < 0.86:
            self._start(self._read(model))
        elif chance < 0.93:
            self._start(self._read_batch(model))
        elif chance < 0.97:
            self._start(self._list(model))
        elif chance < 0.985:
            self.remove(model)
        else:
            self._start(self.host.gc.collect())

    # -- requests

    def add_some(self) -> None:
        """Send some entries in one turn, as one read of a socket brings them."""
        random = self.random
        pending: dict[Any, tuple[list[Any], int]] = {}
        for _ in range(random.choice((1, 1, 2, 5, 12))):
            if self.sent < self._messages_max:
                self._add(self._open_ledger(), pending)
        for journal, (items, size) in pending.items():
            journal.append(items, size)

    def _add(self, model: LedgerModel, pending: dict[Any, tuple[list[Any], int]]) -> None:
        random, storage, ledger_id = self.random, self.host.storage, model.ledger_id
        is_recovery = random.random() < 0.15
        entry_id = model.next_entry_id
        if is_recovery and model.tried and random.random() < 0.7:
            entry_id = random.choice(sorted(model.tried))
        last_add_confirmed = random.randrange(-1, entry_id) if entry_id else -1
        if (ledger_id, entry_id) not in self.model.payloads:
            self.model.payloads[ledger_id, entry_id] = self.payload(ledger_id, entry_id)
        data = self.model.data(ledger_id, entry_id, last_add_confirmed)
        self.sent += 1
        status = storage.add(ledger_id, entry_id, last_add_confirmed, data, is_recovery=is_recovery)
        self.model.check_added(model, status, is_recovery=is_recovery)
        if status is not Status.OK:
            self.world.count(f"add refused: {status.name}")
            return
        model.tried.add(entry_id)
        model.next_entry_id = max(model.next_entry_id, entry_id + 1)
        model.lac_tried = max(model.lac_tried, last_add_confirmed)
        journal = storage.journal_of(ledger_id)
        items, size = pending.get(journal) or ([], 0)
        items.append((int(Kind.ENTRY), data, Waiter(self, model, entry_id, last_add_confirmed), None))
        pending[journal] = (items, size + len(data))

    async def _fence(self, model: LedgerModel) -> None:
        incarnation = self.host.incarnation
        model.fence_tried = True
        await self.host.storage.fence(model.ledger_id)
        if self.may_hear(incarnation):
            model.is_fenced = True
            self.world.count("fence answered")
            self.world.note("bookie fenced ledger", model.ledger_id)

    async def _write_lac(self, model: LedgerModel) -> None:
        incarnation, lac = self.host.incarnation, model.next_entry_id - 1
        if lac < 0:
            return
        model.lac_tried = max(model.lac_tried, lac)
        if await self.host.storage.write_lac(model.ledger_id, lac) is Status.OK and self.may_hear(incarnation):
            model.lac_stored = max(model.lac_stored, lac)

    def _take_lacs(self) -> None:
        lacs = []
        for model in self.model.ledgers.values():
            if model.next_entry_id and not model.is_removed:
                model.lac_tried = max(model.lac_tried, model.next_entry_id - 1)
                lacs.append((model.ledger_id, model.next_entry_id - 1))
        self.host.storage.take_lacs(lacs)

    async def _read(self, model: LedgerModel) -> None:
        entry_id = self.random.randrange(model.next_entry_id + 2)
        was_stored, incarnation = entry_id in model.stored, self.host.incarnation
        flags = Flag.FENCE if self.random.random() < 0.1 else Flag.NONE
        model.fence_tried |= bool(flags)
        request = BookieRequest(BookieOp.READ, 1, model.ledger_id, entry_id, flags)
        try:
            answer, body = await self.host.reads.read(request)
        except BookieStorageError as error:
            self._cannot_read(model, entry_id, error, was_stored=was_stored)
            return
        if not self.may_hear(incarnation):
            return
        model.is_fenced |= bool(flags)
        if answer.status is Status.OK:
            self.model.check_found(model, entry_id, b"".join(body.pieces))
        elif answer.status in NEGATIVES:
            self.model.check_missing(model, entry_id, f"denied: {answer.status.name}", was_stored=was_stored)

    async def _read_batch(self, model: LedgerModel) -> None:
        first = self.random.randrange(model.next_entry_id + 1)
        was_stored, incarnation = first in model.stored, self.host.incarnation
        limit = self.random.choice((READ_BYTES, 10 * READ_BYTES))
        request = BookieRequest(BookieOp.READ_BATCH, 1, model.ledger_id, first, Flag.NONE, limit, first + 50)
        try:
            answer, body = await self.host.reads.read_batch(request)
        except (BookieStorageError, BookieUnavailableError) as error:
            self._cannot_read(model, first, error, was_stored=was_stored)
            return
        data = b"".join(body.pieces)
        body.release()
        if not self.may_hear(incarnation):
            return
        if answer.status in NEGATIVES:
            self.model.check_missing(model, first, f"denied: {answer.status.name}", was_stored=was_stored)
        entry_id = first
        while data:
            size = int.from_bytes(data[:LENGTH_BYTES], "big")
            self.model.check_found(model, entry_id, data[LENGTH_BYTES : LENGTH_BYTES + size])
            data, entry_id = data[LENGTH_BYTES + size :], entry_id + 1

    async def _list(self, model: LedgerModel) -> None:
        incarnation = self.host.incarnation
        request = BookieRequest(BookieOp.LIST_ENTRIES, 1, model.ledger_id, -1)
        try:
            answer, body = await self.host.reads.list_entries(request)
        except BookieStorageError as error:
            self._cannot_read(model, -1, error, was_stored=False)
            return
        if answer.status is not Status.OK or not self.may_hear(incarnation):
            return
        spans = msgpack.unpackb(b"".join(body.pieces))
        listed = {entry_id for first, last in spans for entry_id in range(first, last + 1)}
        for entry_id in sorted(listed - model.tried):
            self.world.alarms.append(("I19", f"{model.ledger_id}:{entry_id} is listed, and nobody sent it"))
        if not model.is_removed:
            model.stored |= listed  # a repair relies on it from now on # I10

    def remove(self, model: LedgerModel) -> None:
        """Delete a ledger from metadata."""
        model.is_removed = True
        self.host.listed.discard(model.ledger_id)
        self.world.count("ledger removed from metadata")

    # -- internals

    def _cannot_read(self, model: LedgerModel, entry_id: int, error: Exception, *, was_stored: bool) -> None:
        """Note a read that failed, which damage excuses, and a disk that has failed."""
        host = self.host
        is_excused = isinstance(error, BookieUnavailableError) or is_for_room(error)
        may = host.is_damaged or host.disk.is_poisoned or model.is_removed or is_excused
        if not may and host.disk.after_cut is None:
            self.world.alarms.append(("I1", f"{model.ledger_id}:{entry_id} cannot be read: {error}"))
        self.world.count("read failed")

    def _start(self, coroutine: Coroutine[Any, Any, None]) -> None:
        self.host.loop.create_task(coroutine)

    def _any_ledger(self) -> LedgerModel | None:
        found = [model for model in self.model.ledgers.values() if not model.is_removed]
        return self.random.choice(found) if found else None

    def _open_ledger(self) -> LedgerModel:
        is_stubborn = self.random.random() < 0.1  # and goes on with a ledger that is fenced or deleted
        models = [m for m in self.model.ledgers.values() if is_stubborn or not (m.is_removed or m.fence_tried)]
        is_new = not models or (len(models) < OPEN_MAX and self.random.random() < 0.3)
        if len(models) >= OPEN_MAX and self.random.random() < 0.03:
            is_new = True
        if is_new and self._last_ledger_id < LEDGERS_MAX:
            self._last_ledger_id += self.random.choice((1, 1, 3))
            model = self.model.ledgers[self._last_ledger_id] = LedgerModel(self._last_ledger_id)
            self.host.listed.add(self._last_ledger_id)
            return model
        return self.random.choice(models or list(self.model.ledgers.values()))

    def _payload(self, ledger_id: int, entry_id: int) -> bytes:
        size = self.random.choice((20, 20, 100, *LARGE_BYTES))
        chance = self.random.random()
        if chance < 0.01:
            size = BULK_BYTES
        elif chance < 0.2:
            return self._hostile(max(size, 6_000))
        return (b"%d:%d " % (ledger_id, entry_id) * (size // 4 + 1))[:size]

    def _hostile(self, size: int) -> bytes:
        """Return sound journal records of batches to come, under numbers of files that a client can guess (I19).

        They lie so that one begins where a block does, if the entry is the first of its batch.
        """
        random = self.random
        file_id = random.choice(self.host.storage.journals).position.file_id + random.choice((0, 1, 1, 2, 3, 5))
        rest = _REST.pack(0, file_id, 1 << 20, 1_000, int(Kind.LAC))
        record = crc32c.crc32c(rest).to_bytes(4, "big") + rest
        shift = len(encode_entry(1, 1, 0, 0, b"")) % len(record) if random.random() < 0.8 else random.randrange(32)
        return (record * (size // len(record) + 2))[shift : shift + size]
