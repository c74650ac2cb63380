"""One client's connection: framing, handshake, keep-alive and back-pressure. The commands are handled elsewhere, by
noun; see ``*_commands.py``.

Bounds (I15): the socket is read no more while its producers publish faster than they may, while
``connection_publish_bytes_max`` of published bytes have no verdict (or ``publish_bytes_max`` over all connections),
while ``connection_requests_max`` commands are under way, or while ``connection_write_bytes_max`` wait to be written; in
the last case consumers get no more either. A frame has its own limit in the decoder.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, cast

from actors.broker.broker_context import BrokerContext
from heliograph.errors import HeliographError, ProtocolError
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.frame import (
    FRAME_SLACK_BYTES,
    PROTOCOL_VERSION,
    FrameDecoder,
    encode_command,
    encode_payload_head,
)
from heliograph.protocol.outbox import Outbox
from heliograph.protocol.pulsar_pb2 import BaseCommand
from heliograph.protocol.server_error import code_of

SERVER_VERSION = "Heliograph"
CPP_CLIENT = "Pulsar-CPP-v"  # how the client version of the C++ client, and of those built on it, begins
STALLED_TICKS_MAX = 3  # keep-alive intervals in which a client reads nothing of what waits for it
PROBE_SECONDS = 2.0  # for the answer to a ping when somebody else wants this client's place

Handler = Callable[[BaseCommand, memoryview | None], Coroutine[Any, Any, None] | None]
_PING = encode_command(BaseCommand(type=BaseCommand.PING, ping=pb.CommandPing()))
_PONG = encode_command(BaseCommand(type=BaseCommand.PONG, pong=pb.CommandPong()))

log = logging.getLogger(__name__)


class Connection(asyncio.Protocol):
    """A client's connection, and the answers that all handlers need."""

    def __init__(self, context: BrokerContext, on_closed: Callable[[Connection], None]) -> None:
        self.context = context
        self.peer = ""
        self.client_version = ""
        self.protocol_version = 0
        self.is_open = False
        self.is_writable = True
        self.handlers: dict[int, Handler] = {
            BaseCommand.CONNECT: self._connect,
            BaseCommand.PING: self._ping,
            BaseCommand.PONG: self._pong,
        }
        self.on_writable: list[Callable[[bool], None]] = []
        self.on_gone: list[Callable[[], None]] = []
        self._on_closed = on_closed
        self._transport: asyncio.Transport | None = None
        self._outbox: Outbox | None = None
        self._decoder = FrameDecoder(context.config.max_message_bytes + FRAME_SLACK_BYTES)
        self._tasks: set[asyncio.Task[None]] = set()
        self._publish_bytes = 0
        self._is_paused = False
        self._heard = True
        self._was_pinged = False
        self._probed: asyncio.Future[None] | None = None  # somebody waits for a sign of life
        self._stalled_ticks = 0
        self._is_refused = False
        self._throttled_until = 0.0
        self._throttle: asyncio.TimerHandle | None = None
        self._ticker: asyncio.TimerHandle | None = None

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is there; the client speaks first."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but its base class
        if self._is_refused:
            self._transport.abort()
            return
        self._outbox = Outbox(self._transport, asyncio.get_running_loop().call_soon)
        self.is_open = True
        self.peer = "{}:{}".format(*(transport.get_extra_info("peername") or ("?", 0))[:2])
        self._transport.set_write_buffer_limits(high=self.context.config.connection_write_bytes_max)
        self._schedule_tick()

    def data_received(self, data: bytes) -> None:
        """Handle every command that is complete."""
        self._heard = True
        if self._probed is not None:
            self._end_probe()
        try:
            for command, section in self._decoder.feed(data):
                self._handle(command, section)
                if not self.is_open:
                    return
        except ProtocolError as error:
            log.info("%s: %s", self.peer, error)
            self.close()

    def pause_writing(self) -> None:
        """Too much waits to be written: consumers get no more."""
        self._set_writable(False)

    def resume_writing(self) -> None:
        """There is room again."""
        self._set_writable(True)

    def connection_lost(self, exc: Exception | None) -> None:
        """Everything of this client ends with its connection."""
        self.is_open = False
        if self._outbox is not None:
            self._outbox.drop()
        self.context.publish_budget.forget(self._resume_if_possible)
        for timer in (self._ticker, self._throttle):
            if timer is not None:
                timer.cancel()
        for task in list(self._tasks):
            task.cancel()
        for gone in self.on_gone:
            gone()
        self._end_probe()
        self._on_closed(self)

    def refuse(self) -> None:
        """Hang up as soon as the socket is there."""
        self._is_refused = True

    # For the handlers

    def send(self, command: BaseCommand) -> None:
        """Write a simple frame, if there is still someone to read it."""
        if self._outbox is not None and self.is_open:
            self._outbox.put(encode_command(command))

    def send_payload(self, command: BaseCommand, section: bytes) -> None:
        """Write a payload frame; ``section`` goes out verbatim."""
        if self._outbox is not None and self.is_open:
            self._outbox.put(encode_payload_head(command, len(section)), section)

    def send_error(self, request_id: int, error: BaseException) -> None:
        """Answer a request with an error."""
        self.send(
            BaseCommand(
                type=BaseCommand.ERROR,
                error=pb.CommandError(request_id=request_id, error=code_of(error), message=str(error) or repr(error)),
            )
        )

    def send_success(self, request_id: int) -> None:
        """Answer a request."""
        self.send(BaseCommand(type=BaseCommand.SUCCESS, success=pb.CommandSuccess(request_id=request_id)))

    def hold_publish(self, size: int) -> None:
        """``size`` bytes were published and have no verdict yet."""
        self._publish_bytes += size
        budget = self.context.publish_budget
        budget.hold(size)
        if self._publish_bytes > self.context.config.connection_publish_bytes_max or budget.is_exhausted:
            self._pause()

    def settle_publish(self, size: int) -> None:
        """``size`` bytes have their verdict."""
        self._publish_bytes -= size
        assert self._publish_bytes >= 0, "an entry is settled once"
        self.context.publish_budget.settle(size)
        if self._is_paused:
            self._resume_if_possible()

    def throttle(self, seconds: float) -> None:
        """Read nothing for so long: its producers publish faster than they may."""
        if seconds <= 0 or not self.is_open:
            return
        loop = asyncio.get_running_loop()
        self._throttled_until = max(self._throttled_until, loop.time() + seconds)
        if self._throttle is None:
            self._throttle = loop.call_at(self._throttled_until, self._throttle_over)
        self._pause()

    @property
    def is_throttled(self) -> bool:
        """Whether nothing is read for a while."""
        return self._throttle is not None

    def probe(self) -> asyncio.Future[None]:
        """Somebody wants the place of this client: find out soon whether it is still there.

        Returns:
            a shared future that resolves when the client has shown itself, or is gone.
        """
        loop = asyncio.get_running_loop()
        if self._probed is not None:
            return self._probed
        probed = self._probed = loop.create_future()
        if self._outbox is None or not self.is_open:
            self._end_probe()
            return probed
        if self._heard or not self._was_pinged:  # otherwise there is a ping to be answered
            self._outbox.put(_PING)
        self._heard, self._was_pinged = False, True
        if self._ticker is not None:
            self._ticker.cancel()
        self._ticker = loop.call_later(PROBE_SECONDS, self._tick)
        return probed

    def close(self) -> None:
        """Write what is waiting, then hang up."""
        self.is_open = False
        if self._outbox is not None:
            self._outbox.flush()
            self._outbox.drop()
        if self._transport is not None:
            self._transport.close()

    # Inside

    def _handle(self, command: BaseCommand, section: memoryview | None) -> None:
        if not self.protocol_version and command.type != BaseCommand.CONNECT:
            raise ProtocolError("the first command must be CONNECT")
        handler = self.handlers.get(command.type)
        if handler is None:
            raise ProtocolError(f"a client may not send command {command.type}")
        work = handler(command, section)
        if work is not None:
            task = asyncio.get_running_loop().create_task(self._run(work))
            self._tasks.add(task)
            task.add_done_callback(self._ended)
            if len(self._tasks) >= self.context.config.connection_requests_max:
                self._pause()

    async def _run(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except HeliographError as error:  # handlers answer their own errors; what is left has nobody to tell
            log.warning("%s: %s", self.peer, error)
            self.close()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s: a command failed", self.peer, exc_info=error)
            self.close()
        if self._is_paused:
            self._resume_if_possible()

    def _pause(self) -> None:
        """Read no more, until ``_resume_if_possible`` finds that everything is back below its bound."""
        if self._transport is None or not self.is_open or self._is_paused:
            return
        self._is_paused = True
        self._transport.pause_reading()
        if self.context.publish_budget.is_exhausted:
            self.context.publish_budget.call_when_room(self._resume_if_possible)

    def _resume_if_possible(self) -> None:
        if self._transport is None or not self.is_open or not self._is_paused:
            return
        config, budget = self.context.config, self.context.publish_budget
        if budget.is_exhausted:
            budget.call_when_room(self._resume_if_possible)
        elif (
            self.is_writable
            and self._throttle is None
            and self._publish_bytes <= config.connection_publish_bytes_max // 2
            and len(self._tasks) <= config.connection_requests_max // 2
        ):
            self._is_paused = False
            self._transport.resume_reading()

    def _throttle_over(self) -> None:
        self._throttle = None
        loop = asyncio.get_running_loop()
        if self._throttled_until > loop.time():
            self._throttle = loop.call_at(self._throttled_until, self._throttle_over)
        else:
            self._resume_if_possible()

    def _set_writable(self, is_writable: bool) -> None:
        self.is_writable = is_writable
        self._stalled_ticks = 0
        for listener in self.on_writable:
            listener(is_writable)
        if is_writable:
            self._resume_if_possible()
        else:
            self._pause()

    def _connect(self, command: BaseCommand, section: memoryview | None) -> None:
        connect = command.connect
        self.client_version = connect.client_version
        self.protocol_version = min(max(connect.protocol_version, 1), PROTOCOL_VERSION)
        # No feature flags: a client that sees none asks for no topic watchers and no transactions.
        self.send(
            BaseCommand(
                type=BaseCommand.CONNECTED,
                connected=pb.CommandConnected(
                    server_version=SERVER_VERSION,
                    protocol_version=self.protocol_version,
                    max_message_size=self.context.config.max_message_bytes,
                ),
            )
        )

    def _ping(self, command: BaseCommand, section: memoryview | None) -> None:
        if self._outbox is not None and self.is_open:
            self._outbox.put(_PONG)

    def _pong(self, command: BaseCommand, section: memoryview | None) -> None:
        """Any traffic counts as a sign of life."""

    def _end_probe(self) -> None:
        probed, self._probed = self._probed, None
        if probed is not None and not probed.done():
            probed.set_result(None)

    def _schedule_tick(self) -> None:
        seconds = self.context.config.keep_alive_seconds
        self._ticker = asyncio.get_running_loop().call_later(seconds, self._tick)

    def _tick(self) -> None:
        if not self.is_open or self._transport is None or self._outbox is None:
            return
        if not self.protocol_version:
            log.info("%s: no CONNECT came", self.peer)
            self._transport.abort()
            return
        if not self.is_writable:
            self._stalled_ticks += 1
        if self._stalled_ticks > STALLED_TICKS_MAX:
            log.info("%s: reads nothing", self.peer)
            self._transport.abort()
            return
        # A socket that we do not read cannot show signs of life.
        if self._is_paused:
            self._was_pinged = False
            self._end_probe()
            self._outbox.put(_PONG)  # its pings lie unread, and it must not take us for dead
        elif self._heard:
            self._was_pinged = False
        elif self._was_pinged:
            log.info("%s: silent for too long", self.peer)
            self._transport.abort()
            return
        else:
            self._was_pinged = True
            self._outbox.put(_PING)
        self._heard = False
        self._schedule_tick()
