"""One client's connection: framing, handshake, keep-alive and back-pressure. The handlers of the commands are in
``*_commands.py``.

Bounds (I15): the socket is not read while the connection's producers publish faster than they may, while
``connection_publish_bytes_max`` published bytes (``publish_bytes_max`` over all connections) are neither confirmed nor
refused, while ``connection_requests_max`` commands are under way (those that wait to open a topic are not, as long as
all connections have ``OPENINGS_WAITING_MAX`` of them), and while more than ``connection_write_bytes_max``
bytes wait to be written, or fewer where many connections are open. In the last case consumers are sent nothing either;
``UnsentBudget`` bounds what waits for all of them. The decoder limits the size of a frame,
and the guard of the listener what is held of the unfinished frames of all connections. Until the client is connected,
it has ``CONNECT_BYTES_MAX`` for a frame, and ``connect_ms_max`` of time.
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping
from functools import partial
from typing import Any

from typing_extensions import override

from heliograph.actors.broker.authorization import HeldRight
from heliograph.actors.broker.broker_context import BrokerContext
from heliograph.actors.broker.limits.publish_budget import PublishShare
from heliograph.actors.broker.protocol.command_limits import check_command
from heliograph.actors.broker.records.entry_stamp import NONE
from heliograph.actors.broker.topic.topic import BrokerTopic
from heliograph.auth.principal import INTERNAL, Principal
from heliograph.base.errors import (
    BadRequestError,
    HeliographError,
    ProtocolError,
    TooManyConnectionsError,
    UnfinishedFrameError,
)
from heliograph.base.guard.framed_connection import ConnectionState, FramedConnection
from heliograph.base.guard.listener import ListenerGuard, UnsentBudget
from heliograph.base.guard.quiet_log import QuietLog
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.frame import (
    FRAME_SLACK_BYTES,
    PROTOCOL_VERSION,
    PulsarFrameDecoder,
    encode_command,
)
from heliograph.protocol.outbox import Outbox
from heliograph.protocol.pulsar_pb2 import BaseCommand
from heliograph.protocol.server_error import code_of
from heliograph.protocol.topic_name import TopicName

CPP_CLIENT = "Pulsar-CPP-v"  # the beginning of the client version of the C++ client and of those built on it
CONNECT_BYTES_MAX = 8 << 10  # of a frame of a client that is not connected # I15
OUTBOX_BYTES_MAX = 256 << 10  # of frames of one turn; two large entries in one write wake a client once # I15
NO_REQUEST_ID = (1 << 64) - 1  # of an error that answers no request
STALLED_TICKS_MAX = 3  # keep-alive intervals in which a client reads nothing of what waits for it
BROKER_METADATA_VERSION = 18  # the first version of the protocol with broker metadata in front of entries
OPENINGS_MAX = 64  # topics that are opened for one connection at once: clients with few come between others
OPENINGS_WAITING_MAX = 20_000  # commands of all connections that wait for that while their sockets are read # I15
PROBE_SECONDS = 2.0  # for the answer to a PING that is sent because another client asks for this client's place

Handler = Callable[[BaseCommand, memoryview | None], Coroutine[Any, Any, None] | None]
_PING = encode_command(BaseCommand(type=BaseCommand.PING, ping=pb.CommandPing()))
_PONG = encode_command(BaseCommand(type=BaseCommand.PONG, pong=pb.CommandPong()))
_CONNECTED = ConnectionState.CONNECTED  # read for each command

log = logging.getLogger(__name__)
quiet = QuietLog(log)


class SignOfLife(enum.Enum):
    """The keep-alive's view of a client. Any state may follow any other."""

    HEARD = "heard"  # since the last look
    QUIET = "quiet"  # nothing since the last look, and nothing was asked
    PINGED = "pinged"  # nothing since a PING


_HEARD = SignOfLife.HEARD


class PulsarConnection(FramedConnection, asyncio.Protocol):
    """A client's connection, and the answers that all handlers need.

    Args:
        guard: of the listener.
        unsent: of the listener.
        admit: called when the socket is open; False hangs up at once.
        on_closed: called when the socket is closed.
    """

    def __init__(
        self,
        context: BrokerContext,
        guard: ListenerGuard,
        unsent: UnsentBudget,
        admit: Callable[[PulsarConnection], bool],
        on_closed: Callable[[PulsarConnection], None],
    ) -> None:
        self._decoder = PulsarFrameDecoder(CONNECT_BYTES_MAX)
        super().__init__(guard, self._decoder)
        self.context = context
        self.client_version = ""
        self.principal: Principal = INTERNAL
        self.protocol_version = 0
        self.takes_broker_metadata = False  # whether entries are pushed with the broker's metadata in front
        self.is_writable = True
        self.has_consumers = False
        self.published = PublishShare(context.publish_budget)
        self.handlers: dict[int, Handler] = {
            BaseCommand.PING: self._ping,
            BaseCommand.PONG: self._pong,
        }
        self.refusals: dict[int, Callable[[BaseCommand, memoryview | None, BadRequestError], None]] = {}
        self.on_writable: list[Callable[[bool], None]] = []
        self.on_lost: list[Callable[[], None]] = []
        self.opened: list[Callable[[], Iterable[HeldRight]]] = []  # for a check of rights that may have been revoked
        self._admit = admit
        self._on_closed = on_closed
        self._outbox: Outbox | None = None  # only while the connection is open
        self._unsent = unsent
        self._role = ""  # that the connection is counted for; empty: none
        self._tasks: dict[asyncio.Task[None], None] = {}  # in order: the first one waits first
        self._openings = asyncio.Semaphore(OPENINGS_MAX)
        self._waiting = 0  # of the tasks, for one of the openings
        self._sign_of_life = _HEARD
        self._probed: asyncio.Future[None] | None = None  # resolves at the next sign of life
        self._stalled_ticks = 0
        self._throttled_until = 0.0
        self._throttle: asyncio.TimerHandle | None = None
        self._ticker: asyncio.TimerHandle | None = None

    @property
    def role(self) -> str:
        """The role that the connection is counted for; empty where authentication is disabled."""
        return self._role

    @property
    def is_open(self) -> bool:
        return self._outbox is not None

    # -- asyncio.Protocol

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        assert self._transport is not None, "the socket is open"
        if not self._admit(self):
            self.abort()
            return
        self._outbox = Outbox(self._transport, asyncio.get_running_loop().call_soon, OUTBOX_BYTES_MAX)
        config = self.context.config
        self._unsent.join(self._transport)
        self._schedule_tick(min(config.keep_alive_seconds, config.connect_ms_max / 1000))

    @override
    def data_received(self, data: bytes) -> None:
        if self._outbox is None:
            return
        self._sign_of_life = _HEARD
        if self._probed is not None:
            self._end_probe()
        try:
            commands = self._decoder.feed(data)
            for command, section in commands:
                if self.state is not _CONNECTED:
                    self._check_begin(command)
                handler = self.handlers.get(command.type)
                if handler is None:
                    raise ProtocolError(f"a client may not send command {command.type}")
                try:
                    check_command(command)
                except BadRequestError as error:
                    self._refuse(command, section, error)
                    continue
                work = handler(command, section)
                if work is not None:
                    self._begin(work)
                if self._outbox is None:
                    return
            if self._decoder.buffered or self._frame.held:
                self._note_frame(is_new=bool(commands))
        except ProtocolError as error:
            quiet.warning("protocol", "%s: connection closed: %s", self.peer, error)
            self.close()

    @override
    def pause_writing(self) -> None:
        self._set_writable(False)

    @override
    def resume_writing(self) -> None:
        self._set_writable(True)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._unsent.leave(self._transport)
        super().connection_lost(exc)
        self._drop_outbox()
        if self._role:
            self._guard.roles.add(self._role, -1)
        self.context.publish_budget.forget(self.resume_if_possible)
        for timer in (self._ticker, self._throttle):
            if timer is not None:
                timer.cancel()
        for task in list(self._tasks):
            task.cancel()
        for on_lost in self.on_lost:
            on_lost()
        self._end_probe()
        self._on_closed(self)

    # -- for the handlers

    @property
    def certificate(self) -> Mapping[str, Any] | None:
        """The certificate that the client presented and TLS has verified; None without one."""
        return self._transport.get_extra_info("peercert") if self._transport is not None else None

    def await_authentication(self) -> None:
        """Serve no command until ``accept`` lets the client in."""
        self._move(ConnectionState.AUTHENTICATING)

    def note_creation(self, topic: TopicName, partitions: int) -> None:
        """Note in the audit log that the client's use of a topic has created it."""
        self.context.audit.creation(self.principal, str(topic), self.peer, partitions)

    async def topic(self, name: TopicName, *, may_create: bool) -> BrokerTopic:
        """Return a topic, opened after those that this client asked for before. Raises as ``Topics.get`` does."""
        topics, openings = self.context.topics, self._openings
        get = partial(topics.get, name, may_create=may_create, on_created=self.note_creation)
        if topics.is_begun(name):  # not counted: the topic may take long, and have many of its commands
            return await get()
        waiting = int(openings.locked() and self.context.openings_waiting < OPENINGS_WAITING_MAX)
        self._wait(waiting)
        try:
            await openings.acquire()
        finally:
            self._wait(-waiting)
        if topics.is_begun(name):
            openings.release()
            return await get()
        try:
            return await get()
        finally:
            openings.release()

    def _wait(self, commands: int) -> None:
        self._waiting += commands
        self.context.openings_waiting += commands
        if commands > 0 and self.is_held_back:
            self.resume_if_possible()

    def accept(self, connect: pb.CommandConnect, principal: Principal) -> None:
        """Serve the client from here on; CONNECTED is the first that it is sent."""
        self.principal = principal
        self._decoder.frame_bytes_max = self.context.config.max_message_bytes + FRAME_SLACK_BYTES
        self.client_version = connect.client_version
        self.protocol_version = min(max(connect.protocol_version, 1), PROTOCOL_VERSION)
        self.takes_broker_metadata = (
            self.context.config.entry_metadata_exposed
            and self.context.config.entry_metadata != NONE
            and connect.feature_flags.supports_broker_entry_metadata
            and self.protocol_version >= BROKER_METADATA_VERSION
        )
        if self.state is not _CONNECTED:
            self._move(_CONNECTED)

    def count_role(self, role: str) -> None:
        """Count the connection for a role until it is closed.

        Raises:
            TooManyConnectionsError: the role has as many connections as one may have.
        """
        most, roles = self.context.config.connections_per_role_max, self._guard.roles
        if most and roles[role] >= most:
            self._guard.refuse(self.address, f"the role {role[:64]!r} has {roles[role]} connections")
            raise TooManyConnectionsError(
                f"the role has {most} connections open: close some, or raise connections_per_role_max",
                field="connections_per_role_max",
                limit=f"{most} connections",
            )
        self._role = role
        roles.add(role, 1)

    def send(self, command: BaseCommand) -> None:
        """Write a simple frame. Do nothing if the connection is not open."""
        if self._outbox is not None:
            self._outbox.put(encode_command(command))

    def send_receipt(self, receipt: BaseCommand) -> None:
        """Write the receipt of an entry that ``published`` counts: at once if it is the only one, else with others of
        this turn. Do nothing if the connection is not open.

        Where the connection has consumers, the entry itself may be sent to one of them in this turn: then both are one
        write, which wakes the client once.
        """
        if self._outbox is None:
            return
        if self.published.entries == 1 and not self.has_consumers:
            self._outbox.put_last(encode_command(receipt))
        else:
            self._outbox.put(encode_command(receipt))

    def send_payload(self, command: BaseCommand, section: bytes | memoryview, *, is_alone: bool) -> None:
        """Write a payload frame with ``section`` unchanged: at once if it is alone, else with others of this turn. Do
        nothing if the connection is not open."""
        outbox = self._outbox
        if outbox is not None:
            (outbox.put_last if is_alone else outbox.put)(encode_command(command, len(section)), section)

    def send_error(self, request_id: int, error: BaseException) -> None:
        self.send(
            BaseCommand(
                type=BaseCommand.ERROR,
                error=pb.CommandError(request_id=request_id, error=code_of(error), message=str(error) or repr(error)),
            )
        )

    def send_success(self, request_id: int) -> None:
        self.send(BaseCommand(type=BaseCommand.SUCCESS, success=pb.CommandSuccess(request_id=request_id)))

    def throttle(self, seconds: float) -> None:
        """Read nothing for a while, because the client's producers publish faster than they may."""
        if seconds <= 0 or not self.is_open:
            return
        loop = asyncio.get_running_loop()
        self._throttled_until = max(self._throttled_until, loop.time() + seconds)
        if self._throttle is None:
            self._throttle = loop.call_at(self._throttled_until, self._throttle_over)
        self.pause()

    @property
    def is_throttled(self) -> bool:
        """Whether ``throttle`` keeps the socket from being read."""
        return self._throttle is not None

    def probe(self) -> asyncio.Future[None]:
        """Find out soon whether the client is still there, because another client asks for its place.

        Returns:
            a shared future that resolves when the client has shown a sign of life, or its connection is lost.
        """
        loop = asyncio.get_running_loop()
        if self._probed is not None:
            return self._probed
        probed = self._probed = loop.create_future()
        if self._outbox is None:
            self._end_probe()
            return probed
        if self._sign_of_life is not SignOfLife.PINGED:  # otherwise a PING waits for its answer
            self._outbox.put(_PING)
        self._sign_of_life = SignOfLife.PINGED
        if self._ticker is not None:
            self._ticker.cancel()
        self._ticker = loop.call_later(PROBE_SECONDS, self._tick)
        return probed

    def close(self) -> None:
        """Write what waits to be written, then hang up. Do nothing if the connection is not open."""
        if self._outbox is None or self._transport is None:
            return
        self._begin_closing()
        self._outbox.flush()
        self._drop_outbox()
        self._transport.close()

    @override
    def drop_frame(self, error: UnfinishedFrameError) -> None:
        """Close the connection because of its unfinished frame, after the client has been told why."""
        self._guard.log_dropped(self.peer, error)
        self._decoder.clear()
        self.send_error(NO_REQUEST_ID, error)
        self.close()
        if not self.is_writable and self._transport is not None:
            self._transport.abort()  # otherwise the socket stays open until the client has read what waits for it

    # -- commands

    def _check_begin(self, command: BaseCommand) -> None:
        """Raise ProtocolError unless a client that is not connected yet may send the command."""
        if self.state is ConnectionState.AUTHENTICATING:
            raise ProtocolError("the client sent a command before CONNECT was answered")
        if command.type != BaseCommand.CONNECT:
            raise ProtocolError("the first command must be CONNECT")

    def _refuse(self, command: BaseCommand, section: memoryview | None, error: BadRequestError) -> None:
        """Answer a command that is above a limit.

        Raises:
            ProtocolError: it has no number, and nothing that could end instead of the connection. It was answered.
        """
        fields = next((value for field, value in command.ListFields() if field.number == command.type), None)
        has_number = fields is not None and "request_id" in fields.DESCRIPTOR.fields_by_name
        if fields is not None and has_number and fields.HasField("request_id"):
            self.send_error(fields.request_id, error)
        elif command.type in self.refusals:
            quiet.warning("limit", "%s: %s, and may have %s", self.peer, error, error.limit)
            self.refusals[command.type](command, section, error)
        else:
            self.send_error(NO_REQUEST_ID, error)
            raise ProtocolError(f"{error}, and may have {error.limit}")

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Let the rest of a command run by itself."""
        task = asyncio.get_running_loop().create_task(self._run(work))
        self._tasks[task] = None
        task.add_done_callback(partial(self._ended, work))
        if len(self._tasks) - self._waiting >= self.context.config.connection_requests_max:
            self.pause()

    async def _run(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except HeliographError as error:  # handlers answer their own errors, so this one has no request to answer
            quiet.warning("frame", "%s: connection closed: %s", self.peer, error)
            self.close()

    def _ended(self, work: Coroutine[Any, Any, None], task: asyncio.Task[None]) -> None:
        work.close()  # a task that was cancelled before its first turn has never awaited it
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s: connection closed: a command failed", self.peer, exc_info=error)
            self.close()
        if self.is_held_back:
            self.resume_if_possible()

    def _ping(self, command: BaseCommand, section: memoryview | None) -> None:
        if self._outbox is not None:
            self._outbox.put(_PONG)

    def _pong(self, command: BaseCommand, section: memoryview | None) -> None:
        """Do nothing: any bytes count as a sign of life."""

    # -- back-pressure

    def pause(self) -> None:
        """Stop reading until ``resume_if_possible`` finds everything below its bound."""
        if not self.is_open or self.is_held_back:
            return
        self.hold_back()
        if self.context.publish_budget.is_exhausted:
            self.context.publish_budget.call_when_room(self.resume_if_possible)

    def resume_if_possible(self) -> None:
        """Read on, if everything is below its bound."""
        if not self.is_held_back or not self.is_open:
            return
        budget = self.context.publish_budget
        if budget.is_exhausted:
            budget.call_when_room(self.resume_if_possible)
        elif self._is_below_bounds:
            self.let_go()

    @property
    def _is_below_bounds(self) -> bool:
        config = self.context.config
        return (
            not self.context.publish_budget.is_exhausted
            and self.is_writable
            and self._throttle is None
            and self.published.bytes <= config.connection_publish_bytes_max // 2
            and len(self._tasks) - self._waiting <= config.connection_requests_max // 2
        )

    def _throttle_over(self) -> None:
        self._throttle = None
        loop = asyncio.get_running_loop()
        if self._throttled_until > loop.time():
            self._throttle = loop.call_at(self._throttled_until, self._throttle_over)
        else:
            self.resume_if_possible()

    def _set_writable(self, is_writable: bool) -> None:
        self.is_writable = is_writable
        self._stalled_ticks = 0
        self._unsent.note(self._transport, is_full=not is_writable)
        for listener in self.on_writable:
            listener(is_writable)
        if is_writable:
            self.resume_if_possible()
        else:
            self.pause()

    # -- keep-alive

    def _end_probe(self) -> None:
        probed, self._probed = self._probed, None
        if probed is not None and not probed.done():
            probed.set_result(None)

    def _schedule_tick(self, seconds: float = 0.0) -> None:
        seconds = seconds or self.context.config.keep_alive_seconds
        self._ticker = asyncio.get_running_loop().call_later(seconds, self._tick)

    def _tick(self) -> None:
        if self._outbox is None:
            return
        if not self.is_writable:
            self._stalled_ticks += 1
        if self.state in (ConnectionState.HANDSHAKE, ConnectionState.AUTHENTICATING):
            self._abort("the client sent no CONNECT in time, or it was not authenticated in time")
        elif self._stalled_ticks > STALLED_TICKS_MAX:
            self._abort("the client does not read its connection")
        elif not self.is_reading:  # a socket that is not read shows no signs of life
            self._end_probe()
            self._sign_of_life = SignOfLife.QUIET
            self._outbox.put(_PONG)  # the client's PINGs are not read, and it must not give this connection up
            self._schedule_tick()
        elif self._sign_of_life is SignOfLife.PINGED:
            self._abort("the client did not answer a PING")
        else:
            if self._sign_of_life is SignOfLife.HEARD:
                self._sign_of_life = SignOfLife.QUIET
            else:
                self._sign_of_life = SignOfLife.PINGED
                self._outbox.put(_PING)
            self._schedule_tick()

    # -- the end

    def _abort(self, reason: str) -> None:
        quiet.warning(reason, "%s: connection closed: %s", self.peer, reason)
        self._drop_outbox()
        self.abort()

    def _drop_outbox(self) -> None:
        if self._outbox is not None:
            self._outbox.drop()
            self._outbox = None
