"""One client's connection: frames in, answers out, and bounds on the memory that a client can use.

Adds take a short path: check, cache, journal queue. They are answered when their batch is durable, with one write for
all answers of a batch. The socket is not read while the client has too many unanswered requests or does not take its
answers, or while the write cache is nearly full (I15).
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, cast

from heliograph.actors.bookie.config import (
    CONNECTION_ADDS_BYTES_MAX,
    CONNECTION_BODIES_MAX,
    CONNECTION_REQUESTS_MAX,
    ENTRY_BYTES_MAX,
    GREETING_BYTES_MAX,
    GREETING_SECONDS_MAX,
    JOURNAL_QUEUE_BYTES_MAX,
    SLOW_CLIENT_SECONDS_MAX,
)
from heliograph.actors.bookie.journal.format import Kind
from heliograph.actors.bookie.journal.journal import Journal, JournalItem
from heliograph.actors.bookie.server.reads import range_fault
from heliograph.actors.bookie.server.receiving import FrameReceiver
from heliograph.actors.bookie.server.response_writer import ResponseWriter
from heliograph.actors.bookie.store.payloads import NO_BODY, PART_BYTES, EntryPayload
from heliograph.actors.errors import BookieStorageError, EntryDamagedError, FrameError
from heliograph.actors.wire.entry import check_entry
from heliograph.actors.wire.frame import (
    FRAME_BYTES_MAX,
    decode_request,
    encode_answer_head,
    encode_head,
    request_fault,
)
from heliograph.actors.wire.grant import ReadGrant
from heliograph.actors.wire.greeting import Greeting, hello_fault, revision_of
from heliograph.actors.wire.lacs import decode_lacs
from heliograph.actors.wire.messages import (
    LEDGER_ENTRIES_MAX,
    NUMBER_MAX,
    Answer,
    BookieOp,
    BookieRequest,
    Flag,
    Status,
)
from heliograph.actors.wire.ranges import decode_adds, encode_stored
from heliograph.base.clock import wall_ms
from heliograph.base.guard.framed_connection import ConnectionState, FramedConnection
from heliograph.base.guard.quiet_log import QuietLog
from heliograph.base.version import own_release

if TYPE_CHECKING:
    from heliograph.actors.bookie.server.server import BookieServer

quiet = QuietLog(logging.getLogger(__name__))
_ADD, _ADDS, _LACS, _OK = int(BookieOp.ADD), int(BookieOp.ADDS), int(BookieOp.LACS), int(Status.OK)
_STORED = Status.OK
_CONNECTED = ConnectionState.CONNECTED  # read for each request
_RECOVERY = int(Flag.RECOVERY)
_HIGH_PRIORITY = int(Flag.HIGH_PRIORITY)
_URGENT = int(Flag.HIGH_PRIORITY | Flag.FENCE)
_ENTRY = int(Kind.ENTRY)
_ADD_FIELDS = len(BookieRequest._fields)
_NO_FLAGS = Flag.NONE
_FLAGS = range(2 * max(Flag))
_WITH_BODY = {BookieOp.READ, BookieOp.READ_BATCH, BookieOp.READ_LAC, BookieOp.LIST_ENTRIES}

Pending = dict[Journal, tuple[list[JournalItem], int]]  # the records of one read of a socket, with their bytes


class BookieClientConnection(FramedConnection, asyncio.BufferedProtocol):
    """The bookie's side of one connection, and the journal's waiter for the adds of that connection."""

    def __init__(self, server: BookieServer) -> None:
        # Without a secret, a client sends requests at once after its HELLO.
        self._receiver = FrameReceiver(
            server.receive_memory,
            FRAME_BYTES_MAX if server.cluster_secret is None else GREETING_BYTES_MAX,
            GREETING_BYTES_MAX,
        )
        super().__init__(server.guard, self._receiver)
        self.get_buffer = self._receiver.get_buffer  # type: ignore[method-assign]  # one call less for each read
        self._server = server
        self._storage = server.storage
        self._may_add = False  # greeted, and not by a grant, which is for reading
        self._grant: ReadGrant | None = None
        self._greeting: Greeting | None = None if server.cluster_secret is None else Greeting(server.cluster_secret)
        self._greeting_timer: asyncio.TimerHandle | None = None
        self._greeting_bytes = 0
        self._brings_copies = False  # its latest add was a copy of repair, and not of a client or a recovery
        self._add_bytes = 0
        self._adds_answered: asyncio.Future[None] | None = None  # resolves when none waits; only while it drains
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_draining = False
        self._writable = asyncio.Event()
        self._writable.set()
        self._bodies = asyncio.Semaphore(CONNECTION_BODIES_MAX)
        self._writer = ResponseWriter()
        self._sending = asyncio.Lock()  # held while a frame is sent in parts
        self._held: list[bytes] | None = None  # frames that wait until that frame is sent
        self._slow_timer: asyncio.TimerHandle | None = None  # runs while the client does not take its answers

    # -- called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        assert self._transport is not None, "the socket is open"
        if not self._server.admit(self):
            self.abort()
        else:  # a client that has not said who it is gets little time
            self._greeting_timer = asyncio.get_running_loop().call_later(GREETING_SECONDS_MAX, self.abort)
            self._server.unsent.join(self._transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.unsent.leave(self._transport)
        super().connection_lost(exc)
        self._writer.close()
        self._server.leave(self)
        if self._slow_timer is not None:
            self._slow_timer.cancel()
        if self._greeting_timer is not None:
            self._greeting_timer.cancel()
        for task in self._tasks:
            task.cancel()

    def pause_writing(self) -> None:
        self._writable.clear()
        loop = asyncio.get_running_loop()
        self._slow_timer = loop.call_later(SLOW_CLIENT_SECONDS_MAX, self.abort)
        self._server.unsent.note(self._transport, is_full=True)
        self.adjust_reading()

    def resume_writing(self) -> None:
        self._writable.set()
        if self._slow_timer is not None:
            self._slow_timer.cancel()
            self._slow_timer = None
        self._server.unsent.note(self._transport, is_full=False)
        self.adjust_reading()

    def buffer_updated(self, nbytes: int) -> None:
        if self._greeting is not None:
            self._greeting_bytes += nbytes
            if self._greeting_bytes > GREETING_BYTES_MAX:
                self.abort()
                return
        pending: Pending = {}
        is_new = False
        receiver = self._receiver
        try:
            for header, body in receiver.received(nbytes):
                is_new = True
                op = header[0] if self._may_add and header else None
                if op == _ADD:
                    self._add(header, body, pending)
                elif op == _ADDS:
                    self._add_range(decode_request(header), body, pending)
                elif op == _LACS:
                    self._storage.take_lacs(decode_lacs(decode_request(header), body))
                else:
                    self._request(decode_request(header), body)
        except FrameError as error:
            quiet.warning("frame", "%s closed the connection from %s: %s", self._server.bookie_id, self.peer, error)
            self.abort()
        except Exception as error:  # a bug of ours, not the client's; the event loop would only log it
            self._server.fail(error)
            self.abort()
            return
        for journal, (items, size) in pending.items():
            journal.append(items, size)
        if receiver.unfinished is not None or self._frame.held:
            self._note_frame(is_new=is_new, arrived=receiver.arrived)
        self.adjust_reading()

    # -- called by the server and the journal

    def on_durable(self, tokens: list[Any], error: BookieStorageError | None) -> None:
        """Answer adds whose records are durable (I1) or could not be written."""
        for _, size, _ in tokens:
            self._add_bytes -= size
        if self._add_bytes == 0 and (answered := self._adds_answered) is not None and not answered.done():
            answered.set_result(None)
        if error is not None:
            self._storage.write_cache.note_refusal()
        if self._transport is None:
            return
        if error is None:
            request_id, _, is_ranged = tokens[0]
            is_lone = len(tokens) == 1 and not is_ranged
            self._write(encode_head([request_id, _OK, -1, ""], 0) if is_lone else _answers_to(tokens))
        else:
            for request_id, _, _ in tokens:
                self._send(Answer(request_id, Status.STORAGE_ERROR, text=str(error)))
        if self.is_held_back:  # an answer can only raise what is below its bound
            self.adjust_reading()

    def adjust_reading(self) -> None:
        """Start or stop reading from the socket, as the bounds require."""
        cache = self._storage.write_cache
        if (
            self._slow_timer is None
            and not self._is_draining
            and self._add_bytes <= CONNECTION_ADDS_BYTES_MAX
            and len(self._tasks) <= CONNECTION_REQUESTS_MAX
            and (cache.room_bytes >= cache.calm_room_bytes or not self._must_wait_for_flush())
        ):
            if self.is_held_back:
                self.let_go()
        else:
            self.hold_back()

    def _must_wait_for_flush(self) -> bool:
        return self._server.is_crowded or (self._brings_copies and self._server.delays_copies)

    async def drain(self) -> None:
        """Stop reading, answer the running requests, then close."""
        self._is_draining = True
        self.adjust_reading()
        if self._tasks:
            await asyncio.wait(self._tasks)
        if self._add_bytes > 0:
            self._adds_answered = asyncio.get_running_loop().create_future()
            await self._adds_answered
        self._close()

    def _close(self) -> None:
        """Send the pending bytes, then close the socket."""
        self._begin_closing()
        if self._transport is not None:
            self._transport.close()

    # -- requests

    def _add(self, header: list[Any], body: memoryview, pending: Pending) -> None:
        # Every field is an integer before anything is stored: 2.0 == 2 would pass the comparisons below.
        if len(header) != _ADD_FIELDS:
            raise FrameError(request_fault(header))
        op, request_id, ledger_id, entry_id, flags, limit, last = header
        if (
            not type(op) is type(request_id) is type(ledger_id) is type(entry_id) is type(flags) is int
            or not type(limit) is type(last) is int
            or not 0 <= request_id <= NUMBER_MAX
            or flags not in _FLAGS
        ):
            raise FrameError(request_fault(header))
        self._store(request_id, (ledger_id, entry_id), flags, body, pending, is_ranged=False)

    def _add_range(self, request: BookieRequest, body: memoryview, pending: Pending) -> None:
        """Take the entries of a frame ADDS, each as if it came alone: a refused one changes nothing for the others."""
        for request_id, entry in enumerate(decode_adds(request, body), request.request_id):
            self._store(request_id, None, 0, entry, pending, is_ranged=True)

    def _store(
        self,
        request_id: int,
        ids: tuple[int, int] | None,
        flags: int,
        body: memoryview,
        pending: Pending,
        *,
        is_ranged: bool,
    ) -> None:
        """Store an entry and queue its record, or refuse it. ``ids`` are those that its frame names, if any."""
        try:
            # The checksum is verified before anything is stored.
            ledger_id, entry_id, last_add_confirmed = check_entry(body)
        except EntryDamagedError as error:
            self._refuse(request_id, Status.DAMAGED, str(error))
            return
        if ids is not None and ids != (ledger_id, entry_id):
            self._refuse(request_id, Status.BAD_REQUEST, f"entry {ledger_id}:{entry_id} under other ids")
            return
        if (
            ledger_id < 0 or not -1 <= last_add_confirmed < entry_id < LEDGER_ENTRIES_MAX
        ):  # I2: a LAC is below its entry
            text = (
                f"entry {ledger_id}:{entry_id} with LAC {last_add_confirmed}: -1 <= LAC < entry id < 2**48 is required"
            )
            self._refuse(request_id, Status.BAD_REQUEST, text)
            return
        size = len(body)
        if size > ENTRY_BYTES_MAX:
            self._refuse(request_id, Status.BAD_REQUEST, f"an entry of {size} bytes; the limit is {ENTRY_BYTES_MAX}")
            return
        is_recovery = bool(flags & _RECOVERY)
        self._brings_copies = is_recovery and not flags & _HIGH_PRIORITY
        space = self._server.space
        if space.is_read_only and space.refuses(is_recovery=is_recovery):
            self._refuse(request_id, Status.READ_ONLY)
            return
        storage = self._storage
        journal = storage.journal_of(ledger_id)
        if journal.queued_bytes > JOURNAL_QUEUE_BYTES_MAX:  # I15
            self._refuse(request_id, Status.TOO_MANY_REQUESTS)
            return
        data = self._receiver.held(body)
        status = storage.add(ledger_id, entry_id, last_add_confirmed, data, is_recovery=is_recovery)
        if status is not _STORED:
            self._refuse(request_id, status)
            return
        self._add_bytes += size
        items, total = pending.get(journal) or ([], 0)
        items.append((_ENTRY, data, self, (request_id, size, is_ranged)))
        pending[journal] = (items, total + size)

    def _refuse(self, request_id: int, status: Status, text: str = "") -> None:
        self._server.adds_refused += 1
        self._send(Answer(request_id, status, text=text))

    def _request(self, request: BookieRequest, body: memoryview) -> None:
        if self.state is not _CONNECTED:
            self._greet(request, bytes(body))
            return
        fault = range_fault(request)
        if fault:
            self._send(Answer(request.request_id, Status.BAD_REQUEST, text=fault))
            return
        if self._grant is not None and (fault := self._grant.fault(request, wall_ms())):
            self._send(Answer(request.request_id, Status.UNAUTHORIZED, text=fault))
            return
        if request.op is BookieOp.READ and self._may_answer_at_once():
            flags = 0 if request.flags is _NO_FLAGS else int(request.flags)
            data = self._server.reads.read_cached(request.ledger_id, request.entry_id, flags)
            if data is not None:
                lac = self._storage.last_add_confirmed(request.ledger_id)
                self._send(Answer(request.request_id, Status.OK, lac), EntryPayload((data,)))
                return
        task = asyncio.get_running_loop().create_task(self._serve(request))
        self._tasks.add(task)
        task.add_done_callback(self._task_done)

    def _may_answer_at_once(self) -> bool:
        """Return whether an entry may be sent before earlier answers are (I15)."""
        return self._held is None and self._transport is not None and self._writable.is_set()

    def _greet(self, request: BookieRequest, body: bytes) -> None:
        if self.is_closing:
            return  # the client was refused; frames after its HELLO are ignored
        if request.op is not BookieOp.HELLO:
            raise FrameError("the first frame is not a HELLO")
        if text := hello_fault(request, self._server.bookie_id):
            quiet.warning("version", "%s refused %s: %s", self._server.bookie_id, self.peer, text)
            self._send(Answer(request.request_id, Status.BAD_VERSION, text=text))
            self._close()
            return
        status, answer_body = (
            (Status.OK, b"") if self._greeting is None else self._greeting.answer(body, self._server.bookie_id)
        )
        if status is Status.OK and self._lacks_certificate():
            status = Status.UNAUTHORIZED
        if status is Status.OK and (revision := revision_of(request)):
            answer_body = bytes([revision])
        answer = Answer(request.request_id, status, own_release().number, self._server.bookie_id)
        self._send(answer, EntryPayload((answer_body,)))
        if status is Status.UNAUTHORIZED:
            self._server.clients_refused += 1
            text = "%s refused the connection from %s: it does not know the cluster's secret, or has no certificate"
            quiet.warning("secret", text, self._server.bookie_id, self.peer)
            self._close()
        elif status is Status.OK:
            self._grant = None if self._greeting is None else self._greeting.grant
            self._greeting, self._may_add = None, self._grant is None
            self._move(_CONNECTED)
            self._receiver.frame_bytes_max = FRAME_BYTES_MAX
            if self._greeting_timer is not None:
                self._greeting_timer.cancel()

    def _lacks_certificate(self) -> bool:
        """Return whether the client has shown no certificate and must. A reader with a grant needs none."""
        if self._server.tls is None or (self._greeting is not None and self._greeting.grant is not None):
            return False
        return self._transport is None or not self._transport.get_extra_info("peercert")

    async def _serve(self, request: BookieRequest) -> None:
        if request.op not in _WITH_BODY:
            self._send(*await self._server.answer(request))
            return
        async with self._bodies:  # I15: payloads that a client does not take stay on the disk
            await self._writable.wait()
            # No client is waited for. A takeover waits for no reader: what it asks for is one entry.
            is_urgent = request.op is BookieOp.READ_LAC or (
                request.flags is not _NO_FLAGS and bool(request.flags & _URGENT)
            )
            async with nullcontext() if is_urgent else self._server.bodies:
                answer, body = await self._server.answer(request)
                try:
                    await self._send_in_parts(answer, body)
                finally:
                    body.release()

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self.adjust_reading()
        if not task.cancelled() and task.exception() is not None:
            self._server.fail(cast(BaseException, task.exception()))

    def _send(self, answer: Answer, body: EntryPayload = NO_BODY) -> None:
        self._write(b"".join([encode_answer_head(answer, body.size), *body.pieces]))

    async def _send_in_parts(self, answer: Answer, body: EntryPayload) -> None:
        """Send a frame in parts, between which the event loop runs other work."""
        if body.size <= PART_BYTES:
            self._send(answer, body)
            return
        async with self._sending:
            if self._transport is None:
                return
            self._held = []
            try:
                frame = EntryPayload((encode_answer_head(answer, body.size), *body.pieces))
                for part in frame.parts(await self._send_at_once(frame, body)):
                    if self._transport is None:
                        return
                    self._transport.write(part)
                    await asyncio.sleep(0)
            finally:
                held, self._held = self._held, None
                self._write(b"".join(held))
                if self._slow_timer is not None:
                    # A frame that was begun before is sent to its end.
                    self._server.unsent.note(self._transport, is_full=True)

    async def _send_at_once(self, frame: EntryPayload, lender: EntryPayload) -> int:
        """Write as much of the frame as the kernel takes, on a thread; return the number of bytes."""
        assert self._transport is not None, "the caller has checked"
        writing = self._writer.write(self._transport, self._server.send_thread, frame.pieces)
        if writing is None:
            return 0
        try:
            return await asyncio.shield(writing)
        except asyncio.CancelledError:
            lender.release_after(writing)  # the thread may still read the memory
            raise

    def _write(self, frames: bytes) -> None:
        """Write whole frames, after a frame that is being sent in parts."""
        if self._held is not None:
            self._held.append(frames)
        elif self._transport is not None and frames:
            self._transport.write(frames)


def _answers_to(tokens: list[Any]) -> bytes:
    """Return the answers to durable adds: by runs if they came in ranges, else one by one."""
    alone = [encode_head([request_id, _OK, -1, ""], 0) for request_id, _, is_ranged in tokens if not is_ranged]
    return b"".join(alone) + encode_stored([request_id for request_id, _, is_ranged in tokens if is_ranged])
