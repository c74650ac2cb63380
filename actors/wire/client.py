"""The connection to one bookie, with pipelined requests.

Every request is answered exactly once, by a call of its callback: with the bookie's answer, or with an error when the
connection ends or no answer comes in time. After an error the outcome is unknown. The requests of one loop iteration
are sent in one write, and its adds in one frame if the bookie knows that (``ranges.py``). A ``BookieGroup`` sends what
several bookies get. There is no timer for each request: the owner calls ``expire`` regularly.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from heliograph.actors.errors import BookieError, BookieUnavailableError, BookieVersionError, FrameError
from heliograph.actors.wire.frame import decode_answer, encode_head, encode_request
from heliograph.actors.wire.grant import ReadGrant
from heliograph.actors.wire.greeting import ClientGreeting, check_answer, hello, revision_in
from heliograph.actors.wire.in_process import reads_at
from heliograph.actors.wire.lacs import encode_lacs
from heliograph.actors.wire.messages import TLS_SCHEME, Answer, BookieOp, BookieRequest, Flag, Status
from heliograph.actors.wire.ranges import (
    AddListener,
    OpenRange,
    OutgoingEntry,
    PendingAdds,
    SentRange,
    decode_run,
    is_run,
)
from heliograph.actors.wire.receiving import BookieLink
from heliograph.base.guard import local_socket
from heliograph.base.processes import end_process
from heliograph.base.tls.contexts import ClientTls
from heliograph.metrics.metric import Histogram

CONNECT_TIMEOUT_MS = 2_000
CONNECT_PAUSE_MS = 200  # time after a failed attempt in which requests fail at once
PENDING_REQUESTS_MAX = 200_000  # per connection; owners bound what they send far below
WRITE_PARTS_MAX = 1_024
ANSWERS_A_SAMPLE = 8  # answers to adds, of which one is timed: to ask the clock for each is not worth it
JOINED_BYTES_MAX = 64 << 10  # a copy of at most this size costs less than a write in parts

Body = bytes | memoryview
OnAnswer = Callable[[Any, Answer | BookieError, memoryview], None]  # tag of the request, answer or error, body

_NO_BODY = memoryview(b"")
_ADD, _OK = int(BookieOp.ADD), int(Status.OK)
_ANSWER_FIELDS = len(Answer._fields)


_Pending = tuple[OnAnswer, Any, int]  # callback, tag, deadline in ms


class BookieConnection:
    """The connection to one bookie at one address. It connects at the first use, and again after a loss."""

    def __init__(
        self,
        bookie_id: str,
        address: str,
        now: Callable[[], int],
        *,
        secret: str | ReadGrant | None = None,
        on_broken: Callable[[BaseException], None] = end_process,
        tls: ClientTls | None = None,
        timeout_ms: int = 0,
    ) -> None:
        """Args:
        address: ``host:port`` or ``tls://host:port``.
        now: the clock of the deadlines, in milliseconds.
        secret: the cluster's, or a grant. With one, a bookie that does not know it gets no requests.
        on_broken: called with an error that a callback raised; by default the process ends.
        tls: contexts for connections. With it, a bookie without TLS gets no requests.
        timeout_ms: from an add to its deadline.
        """
        self._tls = tls
        self._timeout_ms = timeout_ms
        self.bookie_id = bookie_id
        self.address = address
        self._now = now
        self._secret = secret
        self._greeting: ClientGreeting | None = None  # until the bookie has proved that it knows the secret
        self._greeting_timer: asyncio.TimerHandle | None = None
        self._on_broken = on_broken
        self._loop = asyncio.get_running_loop()
        self._link: BookieLink | None = None
        self.transport: asyncio.WriteTransport | None = None  # of requests: once the bookie has greeted
        self._connecting: asyncio.Task[None] | None = None
        self._is_closed = False
        self._retry_after_ms = 0
        self._pending: dict[int, _Pending] = {}
        self.adds = PendingAdds()
        self.burst = 0  # adds since none waited for an answer
        self.awaited = b""  # the answer that the last add that travelled alone gets if all is well
        self.awaited_id = 0  # and its request id
        self._range = OpenRange()
        self._takes_ranges = False  # whether the bookie has said that it knows ADDS
        self._takes_lacs = False  # the same of LACS
        self._takes_heads = False  # and of HEADS
        self.add_latency = Histogram()  # of every ``ANSWERS_A_SAMPLE``th answer to adds
        self._answers = 0  # to adds
        self._lacs: dict[int, int] = {}  # by ledger, that this loop iteration tells
        self._next_id = 1
        self._parts: list[Body] = []
        self.is_flush_due = False  # whether ``flush`` will be called in this turn

    @property
    def is_open(self) -> bool:
        """Whether requests are sent at once."""
        return self.transport is not None

    @property
    def pending_requests(self) -> int:
        return len(self._pending) + len(self.adds) + self.adds.in_ranges

    @property
    def has_room(self) -> bool:
        """Whether one more request may wait for its answer (I15)."""
        return len(self._pending) + len(self.adds) + self.adds.in_ranges < PENDING_REQUESTS_MAX

    def request(self, request: BookieRequest, body: Body, on_answer: OnAnswer, tag: Any, timeout_ms: int) -> None:
        """Send a request and call ``on_answer(tag, answer, body)`` with its answer.

        The ``request_id`` is given here. The callback never runs during this call. Requests that are sent before the
        connection is open go out when it opens. A bookie that is not known to take HEADS is asked for whole entries.
        A batch is read past the socket if the bookie is on this event loop.
        """
        if request.op is BookieOp.READ_BATCH and not self._is_closed and self.has_room:
            read = reads_at(self.address, self._secret)
            if read is not None:
                request_id = self._next_id
                self._next_id = request_id + 1
                self._pending[request_id] = (on_answer, tag, self._now() + timeout_ms)
                read(request, partial(self._on_batch_here, request_id))
                return
        self.send(
            int(request.op),
            request.ledger_id,
            request.entry_id,
            int(request.flags if self._takes_heads else request.flags & ~Flag.HEADS),
            request.limit,
            request.last_entry_id,
            body,
            on_answer,
            tag,
            self._now() + timeout_ms,
        )

    def send(
        self,
        op: int,
        ledger_id: int,
        entry_id: int,
        flags: int,
        limit: int,
        last_entry_id: int,
        body: Body,
        on_answer: OnAnswer,
        tag: Any,
        deadline_ms: int,
        rest: Body = b"",
    ) -> None:
        """Send a request as ``request`` does, without its objects: the path that every entry takes.

        Args:
            rest: the end of the body. It is not copied if it is large.
        """
        if not self._may_send():
            self._loop.call_soon(self._tell, on_answer, tag, self._unavailable())
            return
        request_id = self._next_id
        self._next_id = request_id + 1
        self._pending[request_id] = (on_answer, tag, deadline_ms)
        self._write([op, request_id, ledger_id, entry_id, flags, limit, last_entry_id], body, rest)

    def add(self, entry: OutgoingEntry, listener: AddListener, tag: Any, deadline_ms: int) -> None:
        """Send an add with the others of this turn. The answer comes in a call of ``listener``, never during this call.

        ``BookieGroup`` sends what is the same for several bookies. The payload is not copied if it is large.
        """
        if not self._may_send():
            self._loop.call_soon(self._tell_add, listener, tag, self._unavailable())
            return
        self.burst += 1
        request_id = self._next_id
        self._next_id = request_id + 1
        self.adds[request_id] = (listener, tag, deadline_ms)
        packed = entry.in_range() if self._takes_ranges else None
        if packed is None:
            self._write([_ADD, request_id, entry.ledger_id, entry.entry_id, 0, 0, -1], entry.head, entry.payload)
            return
        if not self._range.put(request_id, packed):
            self._range.take(self._parts.append)
            self._range.put(request_id, packed)
        self._flush_soon()

    def put_range(self, sent: SentRange, frame: bytes) -> bool:
        """Have ``flush`` write a frame ADDS. Return False, and do nothing, if this bookie cannot get it now."""
        adds, count = self.adds, sent.count
        if not self._takes_ranges or len(self._pending) + len(adds) + adds.in_ranges + count > PENDING_REQUESTS_MAX:
            return False  # I15
        adds.put_range(sent)
        self.burst += count
        if self._range.entries:
            self._range.take(self._parts.append)
        self._parts.append(frame)
        return True

    def put_lacs(self, frames: list[bytes]) -> bool:
        """Have ``flush`` write frames LACS. Return False, and do nothing, if this bookie cannot get them now."""
        if self.transport is None or not self._takes_lacs:
            return False
        self.put_parts(frames)
        return True

    def put_parts(self, parts: Iterable[Body]) -> None:
        """Have ``flush`` write a frame after what waits to be written."""
        self._range.take(self._parts.append)
        self._parts += parts

    def tell_lac(self, ledger_id: int, last_add_confirmed: int, timeout_ms: int) -> None:
        """Tell the bookie the LAC of a ledger, with others of this turn. Whether it was stored is not reported."""
        if self.transport is None or not self._takes_lacs:
            request = BookieRequest(BookieOp.WRITE_LAC, 0, ledger_id, last_add_confirmed)
            self.request(request, b"", _ignore, None, timeout_ms)
            return
        self._lacs[ledger_id] = last_add_confirmed
        self._flush_soon()

    def expire(self, now: int) -> None:
        """Answer the requests whose deadline has passed with an error. Their late answers are ignored."""
        late = [request_id for request_id, (_, _, deadline_ms) in self._pending.items() if deadline_ms <= now]
        text = f"bookie {self.bookie_id} gave no answer in time"
        for on_answer, tag, _ in [self._pending.pop(request_id) for request_id in late]:
            self._tell(on_answer, tag, BookieUnavailableError(text))
        for listener, tag in self.adds.take_expired(now):
            self._tell_add(listener, tag, BookieUnavailableError(text))

    def retry_now(self) -> None:
        """Connect at the next request, even right after an attempt that failed."""
        self._retry_after_ms = 0

    def close(self) -> None:
        """End the connection for good. Waiting requests are answered with an error."""
        self._is_closed = True
        if self._connecting is not None:
            self._connecting.cancel()
        self._lose(f"the connection to bookie {self.bookie_id} was closed")

    # -- events of the socket

    def on_link(self, link: BookieLink) -> None:
        """Greet the bookie over a new socket, then send what waits."""
        assert link.transport is not None, "a link has its transport before it reports"
        if self._is_closed:
            link.transport.abort()
            return
        self._link = link
        if self._secret is None:
            self.transport = link.transport
            self.transport.write(encode_request(hello()))
            self.flush()
            return
        self._greeting = ClientGreeting(self._secret)  # requests wait until both ends have proved themselves
        self._greeting_timer = self._loop.call_later(
            CONNECT_TIMEOUT_MS / 1000, self._lose, f"bookie {self.bookie_id} did not finish its greeting in time"
        )
        link.transport.write(encode_request(hello(), self._greeting.hello))

    def _on_batch_here(self, request_id: int, answer: Answer | BookieError, body: memoryview) -> None:
        """Take a batch that came past the socket, unless it comes too late."""
        waiting = self._pending.pop(request_id, None)
        if waiting is not None:
            try:
                waiting[0](waiting[1], answer, body)
            except Exception as error:  # of a callback; the loop would only log it
                self._on_broken(error)

    def on_awaited(self, link: BookieLink) -> None:
        """Take the answer ``awaited``, unless it came before or too late."""
        add = self.adds.pop(self.awaited_id, None) if link is self._link else None
        if add is not None:
            self._answers += 1
            if not self._answers % ANSWERS_A_SAMPLE:
                self._note_latency(add[2])
            try:
                add[0].on_stored(self.bookie_id, (add[1],))
            except Exception as error:  # of a callback; the loop would only log it
                self._on_broken(error)

    def on_data(self, link: BookieLink, count: int) -> None:
        """Pass answers to the callbacks of their requests."""
        if link is not self._link:
            return
        try:
            for header, body in link.received(count):
                if len(header) == _ANSWER_FIELDS and type(request_id := header[0]) is int and header[1] == _OK:
                    add = self.adds.pop(request_id, None)
                    if add is not None:
                        self._answers += 1
                        if not self._answers % ANSWERS_A_SAMPLE:
                            self._note_latency(add[2])
                        add[0].on_stored(self.bookie_id, (add[1],))
                        continue
                if is_run(header):
                    first, last = decode_run(header)
                    self._answers += 1
                    if not self._answers % ANSWERS_A_SAMPLE and (deadline_ms := self.adds.deadline_of(first)):
                        self._note_latency(deadline_ms)
                    for listener, tags in self.adds.take_run(first, last):
                        listener.on_stored(self.bookie_id, tags)
                else:
                    self._on_answer(link, decode_answer(header), body)
        except BookieVersionError as error:
            self._retry_after_ms = self._now() + CONNECT_PAUSE_MS
            self._lose(str(error), BookieVersionError)
        except FrameError as error:
            self._lose(f"bookie {self.bookie_id} broke the wire format: {error}")
        except Exception as error:  # of a callback; the loop would only log it
            self._on_broken(error)

    def on_link_lost(self, link: BookieLink, error: Exception | None) -> None:
        """Answer waiting requests with an error: the socket was closed."""
        if link is self._link:
            self._lose(f"the connection to bookie {self.bookie_id} was lost: {error or 'closed by the bookie'}")

    # -- internals

    def _note_latency(self, deadline_ms: int) -> None:
        """Note how long an add waited for its answer: all adds of a client have the same time until their deadline."""
        self.add_latency.observe((self._now() - deadline_ms + self._timeout_ms) / 1000)

    def _may_send(self) -> bool:
        return self.has_room and (self.transport is not None or self._may_connect())

    def _flush_soon(self) -> None:
        if not self.is_flush_due:
            self.is_flush_due = True
            self._loop.call_soon(self.flush)

    def _unavailable(self) -> BookieUnavailableError:
        return BookieUnavailableError(f"no connection to bookie {self.bookie_id} at {self.address}")

    def _write(self, header: list[Any], body: Body, rest: Body) -> None:
        """Send a frame after what this loop iteration has sent before."""
        self._range.take(self._parts.append)
        size = len(body) + len(rest)
        head = encode_head(header, size)
        if size <= JOINED_BYTES_MAX:
            self._parts.append(b"".join((head, body, rest)))
        else:
            self._parts += (head, body, rest)
        if self.transport is not None:
            self._flush_soon()

    def _on_answer(self, link: BookieLink, answer: Answer, body: memoryview) -> None:
        request_id = answer.request_id
        if request_id == 0:
            self._on_hello(link, answer, bytes(body))
        elif (add := self.adds.take(request_id)) is not None:
            add[0].on_add_answer(self.bookie_id, add[1], answer)
        elif (waiting := self._pending.pop(request_id, None)) is not None:
            waiting[0](waiting[1], answer, body)

    def _on_hello(self, link: BookieLink, answer: Answer, body: bytes) -> None:
        assert link.transport is not None, "an answer came over it"
        check_answer(answer, self.bookie_id, self.address)
        if answer.status is Status.OK:
            revision = revision_in(body)
            self._takes_ranges, self._takes_lacs, self._takes_heads = revision >= 1, revision >= 2, revision >= 3
        if self._greeting is None:
            return
        if answer.status is Status.CHALLENGE:
            proof = self._greeting.prove(body, self.bookie_id)
            link.transport.write(encode_request(hello(), proof))
            return
        self._greeting.check_welcome()
        self._end_greeting()
        self.transport = link.transport
        self.flush()

    def _end_greeting(self) -> None:
        self._greeting = None
        if self._greeting_timer is not None:
            self._greeting_timer.cancel()
            self._greeting_timer = None

    def _may_connect(self) -> bool:
        if self._is_closed:
            return False
        if self._connecting is None and self._greeting is None:
            if self._now() < self._retry_after_ms:
                return False
            self._connecting = self._loop.create_task(self._connect())
        return True

    async def _connect(self) -> None:
        host, _, port = self.address.removeprefix(TLS_SCHEME).rpartition(":")
        try:
            context = self._context()
            async with asyncio.timeout(CONNECT_TIMEOUT_MS / 1000):
                await local_socket.open_connection(lambda: BookieLink(self), host, int(port), context)
        except (OSError, TimeoutError, ValueError) as error:
            self._retry_after_ms = self._now() + CONNECT_PAUSE_MS
            self._lose(f"cannot connect to bookie {self.bookie_id} at {self.address}: {error}")
        finally:
            self._connecting = None
        if self._parts and self._link is None:  # lost before this task went on, and more was sent since
            self._connecting = self._loop.create_task(self._connect())

    def _context(self) -> ssl.SSLContext | None:
        is_encrypted = self.address.startswith(TLS_SCHEME)
        if is_encrypted is not (self._tls is not None):
            raise OSError("it speaks TLS, and this client has no certificates" if is_encrypted else "it has no TLS")
        return None if self._tls is None else self._tls.context

    def _end_lacs(self) -> None:
        lacs, self._lacs = self._lacs, {}
        frames = encode_lacs(self._next_id, lacs)
        self._next_id += len(frames)
        self._parts += frames

    def flush(self) -> None:
        """Write what waits to be written."""
        self.is_flush_due = False
        if self._range.entries:
            self._range.take(self._parts.append)
        if self._lacs:
            self._end_lacs()
        parts = self._parts
        if not parts or self.transport is None:
            return
        self._parts = []
        if len(parts) == 1:
            self.transport.write(parts[0])
            return
        if sum(map(len, parts)) <= JOINED_BYTES_MAX:
            self.transport.write(b"".join(parts))
            return
        if len(parts) <= WRITE_PARTS_MAX:
            self.transport.writelines(parts)
            return
        for start in range(0, len(parts), WRITE_PARTS_MAX):
            self.transport.writelines(parts[start : start + WRITE_PARTS_MAX])

    def _lose(self, why: str, kind: type[BookieUnavailableError] = BookieUnavailableError) -> None:
        link, self.transport, self._link = self._link, None, None
        if self._greeting is not None:  # it failed: wait before the next attempt
            self._end_greeting()
            self._retry_after_ms = self._now() + CONNECT_PAUSE_MS
        transport = link.transport if link is not None else None
        self._parts = []
        self._range.clear()
        self._lacs.clear()
        self._takes_ranges = self._takes_lacs = self._takes_heads = False
        if transport is not None:
            transport.abort()
        waiting, self._pending = list(self._pending.values()), {}
        adds = self.adds.take_all()
        for on_answer, tag, _ in waiting:
            self._tell(on_answer, tag, kind(why))
        for listener, tag in adds:
            self._tell_add(listener, tag, kind(why))

    def _tell_add(self, listener: AddListener, tag: Any, error: BookieError) -> None:
        try:
            listener.on_add_answer(self.bookie_id, tag, error)
        except Exception as broken:
            self._on_broken(broken)

    def _tell(self, on_answer: OnAnswer, tag: Any, error: BookieError) -> None:
        try:
            on_answer(tag, error, _NO_BODY)
        except Exception as broken:
            self._on_broken(broken)


def _ignore(tag: Any, answer: Answer | BookieError, body: memoryview) -> None:
    """Take an answer that nobody waits for."""
