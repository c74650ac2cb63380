"""One client's socket: frames in, answers out, and the bounds that keep a client from filling the memory.

Adds take the short way: check, cache, queue for the journal, and one answer for each when their batch is durable, all
answers of a batch in one write. The socket is not read while the client has too much unanswered, takes no answers, or
the write cache is nearly full (I15).
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, cast

from actors.bookie.bodies import NO_BODY, PART_BYTES, Body
from actors.bookie.config import (
    CONNECTION_ADDS_BYTES_MAX,
    CONNECTION_BODIES_MAX,
    CONNECTION_OUT_BYTES_MAX,
    CONNECTION_REQUESTS_MAX,
    ENTRY_BYTES_MAX,
    GREETING_BYTES_MAX,
    GREETING_SECONDS_MAX,
    SLOW_CLIENT_SECONDS_MAX,
)
from actors.bookie.journal import Journal, JournalItem
from actors.bookie.journal_format import Kind
from actors.bookie.outlet import Outlet
from actors.bookie.receiving import FrameReceiver
from actors.errors import BookieStorageError, BookieUnavailableError, EntryDamagedError, FrameError
from actors.wire.entry import check_entry
from actors.wire.frame import FRAME_BYTES_MAX, decode_request, encode_answer_head, encode_head
from actors.wire.greeting import Greeting
from actors.wire.messages import PROTOCOL_VERSION, Answer, Flag, Op, Request, Status

if TYPE_CHECKING:
    from actors.bookie.reads import Reply
    from actors.bookie.server import BookieServer

_log = logging.getLogger(__name__)
_ADD, _READ, _OK = int(Op.ADD), int(Op.READ), int(Status.OK)
_RECOVERY = int(Flag.RECOVERY)
_ENTRY = int(Kind.ENTRY)
_ID_MAX = (1 << 63) - 1
_WITHOUT_ENTRY_ID = {Op.READ_LAC, Op.LIST_ENTRIES, Op.LONG_POLL_LAC}
_AT_ONCE_BYTES_MAX = CONNECTION_OUT_BYTES_MAX  # unsent answers, above which cached entries wait for their turn too
_WITH_BODY = {Op.READ, Op.READ_BATCH, Op.READ_LAC, Op.LIST_ENTRIES}


class BookieConnection(asyncio.BufferedProtocol):
    """Server side of one connection; also the waiter of its adds in the journal."""

    def __init__(self, server: BookieServer) -> None:
        self._server = server
        self._storage = server.storage
        self._receiver = FrameReceiver(
            server.receive_memory, FRAME_BYTES_MAX if server.cluster_secret is None else GREETING_BYTES_MAX
        )
        self._transport: asyncio.Transport | None = None
        self._is_greeted = False
        self._greeting: Greeting | None = None if server.cluster_secret is None else Greeting(server.cluster_secret)
        self._greeting_timer: asyncio.TimerHandle | None = None
        self._greeting_bytes = 0
        self._add_bytes = 0
        self._adds_answered = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_reading = True
        self._is_draining = False
        self._writable = asyncio.Event()
        self._writable.set()
        self._bodies = asyncio.Semaphore(CONNECTION_BODIES_MAX)
        self._outlet = Outlet()
        self._frame = asyncio.Lock()  # of the frame that is being sent in parts
        self._held: list[bytes] | None = None  # frames that wait for its end
        self._slow_timer: asyncio.TimerHandle | None = None

    # asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=CONNECTION_OUT_BYTES_MAX)
        if not self._server.admit(self):
            self._transport.abort()
        elif self._greeting is not None:  # strangers hold nothing for long
            self._greeting_timer = asyncio.get_running_loop().call_later(GREETING_SECONDS_MAX, self.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._outlet.close()
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
        self.regulate()

    def resume_writing(self) -> None:
        self._writable.set()
        if self._slow_timer is not None:
            self._slow_timer.cancel()
            self._slow_timer = None
        self.regulate()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._receiver.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        if self._greeting is not None:
            self._greeting_bytes += nbytes
            if self._greeting_bytes > GREETING_BYTES_MAX:
                self.abort()
                return
        pending: dict[Journal, tuple[list[JournalItem], int]] = {}
        try:
            for header, body in self._receiver.received(nbytes):
                if self._is_greeted and header and header[0] == _ADD:
                    self._add(header, body, pending)
                else:
                    self._request(decode_request(header), body)
        except FrameError as error:
            _log.warning("a client broke the wire format: %s", error)
            self.abort()
        except Exception as error:  # our own promise, not the client's: the loop would only log it
            self._server.fail(error)
            self.abort()
            return
        for journal, (items, size) in pending.items():
            journal.append(items, size)
        self.regulate()

    # For the server and the journal

    def on_durable(self, tokens: list[Any], error: BookieStorageError | None) -> None:
        """Answer adds whose records are durable (I1), or could not be written."""
        for _, size in tokens:
            self._add_bytes -= size
        if self._add_bytes == 0:
            self._adds_answered.set()
        if error is not None:
            self._storage.write_cache.note_refusal()
        if self._transport is not None:
            if error is None:
                self._write(b"".join([encode_head([request_id, _OK, -1, ""], 0) for request_id, _ in tokens]))
            else:
                for request_id, _ in tokens:
                    self._send(Answer(request_id, Status.STORAGE_ERROR, text=str(error)))
            self.regulate()

    def regulate(self) -> None:
        """Read from the socket, or do not, as the bounds say."""
        wanted = (
            self._writable.is_set()
            and not self._is_draining
            and self._add_bytes <= CONNECTION_ADDS_BYTES_MAX
            and len(self._tasks) <= CONNECTION_REQUESTS_MAX
            and not self._server.is_crowded
        )
        if wanted is self._is_reading or self._transport is None or self._transport.is_closing():
            return
        self._is_reading = wanted
        if wanted:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def abort(self) -> None:
        """Cut the connection; what is unanswered stays so."""
        if self._transport is not None:
            self._transport.abort()

    async def drain(self) -> None:
        """Stop reading, and return when everything asked so far is answered."""
        self._is_draining = True
        self.regulate()
        if self._tasks:
            await asyncio.wait(self._tasks)
        if self._add_bytes > 0:
            await self._adds_answered.wait()
        if self._transport is not None:
            self._transport.close()

    # Requests

    def _add(self, header: list[Any], body: memoryview, pending: dict[Journal, tuple[list[JournalItem], int]]) -> None:
        try:
            _, request_id, ledger_id, entry_id, flags, _, _ = header
            is_recovery = bool(flags & _RECOVERY)
        except (ValueError, TypeError) as error:
            raise FrameError(f"not an add: {header!r:.200}") from error
        try:
            named_ledger_id, named_entry_id, last_add_confirmed = check_entry(
                body
            )  # D6: the checksum is verified before anything is stored
        except EntryDamagedError as error:
            self._refuse(request_id, Status.DAMAGED, str(error))
            return
        if named_ledger_id != ledger_id or named_entry_id != entry_id or ledger_id < 0 or entry_id < 0:
            self._refuse(request_id, Status.BAD_REQUEST, f"entry {named_ledger_id}:{named_entry_id} under other ids")
            return
        size = len(body)
        if size > ENTRY_BYTES_MAX:
            self._refuse(request_id, Status.BAD_REQUEST, f"an entry of {size} bytes; the limit is {ENTRY_BYTES_MAX}")
            return
        if self._server.space.refuses(is_recovery=is_recovery):
            self._refuse(request_id, Status.READ_ONLY)
            return
        data = bytes(body)
        status = self._storage.add(ledger_id, entry_id, last_add_confirmed, data, is_recovery=is_recovery)
        if status is not Status.OK:
            self._refuse(request_id, status)
            return
        self._add_bytes += size
        self._adds_answered.clear()
        journal = self._storage.journal_of(ledger_id)
        items, total = pending.get(journal) or ([], 0)
        items.append((_ENTRY, data, self, (request_id, size)))
        pending[journal] = (items, total + size)

    def _refuse(self, request_id: object, status: Status, text: str = "") -> None:
        if type(request_id) is not int:
            raise FrameError(f"a request id that is no integer: {request_id!r:.200}")
        self._server.adds_refused += 1
        self._send(Answer(request_id, status, text=text))

    def _request(self, request: Request, body: memoryview) -> None:
        if not self._is_greeted:
            self._greet(request, bytes(body))
            return
        if not _are_ids_sane(request):
            text = f"ledger {request.ledger_id}, entry {request.entry_id}: ids are from 0 to 2**63 - 1"
            self._send(Answer(request.request_id, Status.BAD_REQUEST, text=text))
            return
        if request.op is Op.READ and self._may_answer_at_once():
            data = self._server.reads.read_cached(request.ledger_id, request.entry_id, request.flags)
            if data is not None:
                lac = self._storage.last_add_confirmed(request.ledger_id)
                self._send(Answer(request.request_id, Status.OK, lac), Body((data,)))
                return
        task = asyncio.get_running_loop().create_task(self._serve(request))
        self._tasks.add(task)
        task.add_done_callback(self._task_done)

    def _may_answer_at_once(self) -> bool:
        """Whether an entry may go out without waiting for its turn (I15)."""
        transport = self._transport
        return self._held is None and transport is not None and transport.get_write_buffer_size() < _AT_ONCE_BYTES_MAX

    def _greet(self, request: Request, body: bytes) -> None:
        if self._transport is None or self._transport.is_closing():
            return  # it was refused; what came behind its hello does not count
        if request.op is not Op.HELLO:
            raise FrameError("the first frame is not a hello")
        if request.ledger_id != PROTOCOL_VERSION:
            text = f"protocol {request.ledger_id}; this bookie speaks {PROTOCOL_VERSION}"
            self._send(Answer(request.request_id, Status.BAD_VERSION, text=text))
            self._transport.close()
            return
        status, answer_body = (
            (Status.OK, b"") if self._greeting is None else self._greeting.answer(body, self._server.bookie_id)
        )
        self._send(Answer(request.request_id, status, text=self._server.bookie_id), Body((answer_body,)))
        if status is Status.UNAUTHORIZED:
            self._server.clients_refused += 1
            _log.warning("a client does not know the cluster's secret")
            self._transport.close()
        elif status is Status.OK:
            self._is_greeted, self._greeting = True, None
            self._receiver.frame_bytes_max = FRAME_BYTES_MAX
            if self._greeting_timer is not None:
                self._greeting_timer.cancel()

    async def _serve(self, request: Request) -> None:
        if request.op not in _WITH_BODY:
            self._send(*await self._answer(request))
            return
        async with self._bodies:  # I15: what a client has asked for and not taken stays on the disk
            await self._writable.wait()
            answer, body = await self._answer(request)
            try:
                await self._send_in_parts(answer, body)
            finally:
                body.release()

    async def _answer(self, request: Request) -> Reply:
        try:
            return await self._server.serve(request)
        except BookieUnavailableError as error:
            return Answer(request.request_id, Status.TOO_MANY_REQUESTS, text=str(error)), NO_BODY
        except BookieStorageError as error:
            return Answer(request.request_id, Status.STORAGE_ERROR, text=str(error)), NO_BODY  # I6: not a negative

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self.regulate()
        if not task.cancelled() and task.exception() is not None:
            self._server.fail(cast(BaseException, task.exception()))

    def _send(self, answer: Answer, body: Body = NO_BODY) -> None:
        self._write(b"".join([encode_answer_head(answer, body.size), *body.parts()]))

    async def _send_in_parts(self, answer: Answer, body: Body) -> None:
        """Send a frame with pauses in which the event loop does other things."""
        if body.size <= PART_BYTES:
            self._send(answer, body)
            return
        async with self._frame:
            if self._transport is None:
                return
            self._held = []
            try:
                frame = Body((encode_answer_head(answer, body.size), *body.pieces))
                for part in frame.parts(await self._send_at_once(frame, body)):
                    if self._transport is None:
                        return
                    self._transport.write(part)
                    await asyncio.sleep(0)
            finally:
                held, self._held = self._held, None
                self._write(b"".join(held))

    async def _send_at_once(self, frame: Body, lender: Body) -> int:
        """Give the kernel as much of the frame as it takes, while the event loop does other things; how many bytes."""
        assert self._transport is not None, "the caller has looked"
        writing = self._outlet.write(self._transport, self._server.send_thread, frame.pieces)
        if writing is None:
            return 0
        try:
            return await asyncio.shield(writing)
        except asyncio.CancelledError:
            lender.release_after(writing)  # the thread may still read from it
            raise

    def _write(self, frames: bytes) -> None:
        """Write whole frames, behind one that is under way."""
        if self._held is not None:
            self._held.append(frames)
        elif self._transport is not None and frames:
            self._transport.write(frames)


def _are_ids_sane(request: Request) -> bool:
    if request.op is Op.STATISTICS:
        return True
    least = -1 if request.op in _WITHOUT_ENTRY_ID else 0
    return 0 <= request.ledger_id <= _ID_MAX and least <= request.entry_id <= _ID_MAX
