"""One TCP connection to a broker, shared by all producers and consumers of a client that need that broker."""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Callable
from typing import Any, Protocol

from heliograph.auth.principal import METHOD_TLS, Credentials
from heliograph.base.errors import (
    AuthenticationError,
    ConnectionLostError,
    HeliographError,
    ProtocolError,
    QuotaExceededError,
    RequestTimeoutError,
)
from heliograph.client.aio.transport import inherited_sockets
from heliograph.client.identity import Identity
from heliograph.client.options import ClientOptions
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.frame import (
    FRAME_SLACK_BYTES,
    MESSAGE_BYTES_MAX,
    PROTOCOL_VERSION,
    PulsarFrameDecoder,
    encode_command,
)
from heliograph.protocol.outbox import Outbox
from heliograph.protocol.server_error import exception_of
from heliograph.protocol.topic_name import TopicName

CLIENT_VERSION = "Heliograph-Python"
REQUESTS_MAX = 10_000  # unanswered requests on one connection # I15

_T = pb.BaseCommand
log = logging.getLogger(__name__)
_PING = encode_command(pb.BaseCommand(type=_T.PING, ping=pb.CommandPing()))
_PONG = encode_command(pb.BaseCommand(type=_T.PONG, pong=pb.CommandPong()))


async def present(identity: Identity, *, has_certificate: bool) -> Credentials:
    """Return what a broker is shown now; a file or a supplier is asked on a thread.

    Raises:
        AuthenticationError: there is nothing to show.
    """
    if not identity.blocks:
        return identity.present(has_certificate=has_certificate)
    return await asyncio.to_thread(identity.present, has_certificate=has_certificate)


class RequestIdSpace(enum.Enum):
    """The two kinds of requests in Pulsar's protocol; an answer is matched with requests of its own kind only."""

    LOOKUP = "lookup"
    SESSION = "session"


_ANSWERS: dict[int, tuple[RequestIdSpace, str]] = {
    _T.LOOKUP_RESPONSE: (RequestIdSpace.LOOKUP, "lookup_response"),
    _T.PARTITIONED_METADATA_RESPONSE: (RequestIdSpace.LOOKUP, "partitioned_metadata_response"),
    _T.GET_TOPICS_OF_NAMESPACE_RESPONSE: (RequestIdSpace.LOOKUP, "get_topics_of_namespace_response"),
    _T.SUCCESS: (RequestIdSpace.SESSION, "success"),
    _T.PRODUCER_SUCCESS: (RequestIdSpace.SESSION, "producer_success"),
    _T.GET_LAST_MESSAGE_ID_RESPONSE: (RequestIdSpace.SESSION, "get_last_message_id_response"),
    _T.ACK_RESPONSE: (RequestIdSpace.SESSION, "ack_response"),
    _T.CONSUMER_STATS_RESPONSE: (RequestIdSpace.SESSION, "consumer_stats_response"),
    _T.GET_SCHEMA_RESPONSE: (RequestIdSpace.SESSION, "get_schema_response"),
    _T.WATCH_TOPIC_LIST_SUCCESS: (RequestIdSpace.SESSION, "watch_topic_list_success"),
    _T.ADMIN_ANSWER: (RequestIdSpace.SESSION, "admin_answer"),
}


class ProducerSession(Protocol):
    """A producer as its connection sees it."""

    @property
    def topic(self) -> TopicName:
        """Return the topic or partition."""

    def on_receipt(self, receipt: pb.CommandSendReceipt) -> None:
        """Confirm an entry."""

    def on_send_error(self, answer: pb.CommandSendError) -> None:
        """Fail an entry that the broker could not store, or reconnect to send it again."""

    def on_closed_by_broker(self) -> None:
        """Look the topic up again: the broker closed the producer, and the connection remains open."""

    def on_connection_lost(self, error: HeliographError) -> None:
        """Look the topic up again: the connection ended."""


class ConsumerSession(Protocol):
    """A consumer as its connection sees it."""

    @property
    def topic(self) -> TopicName:
        """Return the topic or partition."""

    def on_message(self, message: pb.CommandMessage, section: memoryview) -> None:
        """Take an entry, which ``section`` holds with its checksum."""

    def on_active_change(self, is_active: bool) -> None:
        """Note whether this consumer of a Failover subscription receives the messages."""

    def on_end_of_topic(self) -> None:
        """Note that the topic was terminated and delivered to its end."""

    def on_closed_by_broker(self) -> None:
        """Look the topic up again: the broker closed the consumer, and the connection remains open."""

    def on_connection_lost(self, error: HeliographError) -> None:
        """Look the topic up again: the connection ended."""


class TopicListSession(Protocol):
    """A watcher of the topics of a namespace as its connection sees it."""

    def on_topics_changed(self, update: pb.CommandWatchTopicUpdate) -> None:
        """Note which topics came and went."""

    def on_connection_lost(self, error: HeliographError) -> None:
        """Open the watcher elsewhere: the connection ended."""


class _Request:
    __slots__ = ("future", "timer")

    def __init__(self, future: asyncio.Future[Any], timer: asyncio.TimerHandle) -> None:
        self.future = future
        self.timer = timer

    def settle(self, result: Any) -> None:
        self.timer.cancel()
        if not self.future.done():
            self.future.set_result(result)

    def fail(self, error: HeliographError) -> None:
        self.timer.cancel()
        if not self.future.done():
            self.future.set_exception(error)
            self.future.exception()  # no warning if the caller is gone


class BrokerConnection(asyncio.Protocol):
    """One connection: framing, handshake, keep-alive, and matching of answers with requests.

    Attributes:
        url: Address of the broker.
        connected: Resolves when the broker has accepted the handshake; fails with the reason if it does not.
        closed: Whether the connection ended; it never opens again.
        max_message_bytes: The broker's limit.
        takes_admin_calls: Whether the broker says that it runs operations of the administration.
        takes_messages_back: Whether the broker says that it takes permits back, and messages without counting them.
        takes_topic_watchers: Whether the broker says that it tells of topics that come and go.
        producers, consumers, topic_watchers: The sessions to which commands are passed, by id.
        on_silent: Called each time that the broker has sent nothing for ``silence_ms``.
    """

    def __init__(
        self,
        url: str,
        options: ClientOptions,
        credentials: Credentials,
        on_silent: Callable[[BrokerConnection], None] = lambda _: None,
    ) -> None:
        self.url = url
        self.closed = False
        self.max_message_bytes = MESSAGE_BYTES_MAX
        self.takes_admin_calls = False
        self.takes_messages_back = False
        self.takes_topic_watchers = False
        self.producers: dict[int, ProducerSession] = {}
        self.consumers: dict[int, ConsumerSession] = {}
        self.topic_watchers: dict[int, TopicListSession] = {}
        self._options = options
        self._credentials = credentials
        self._refreshing: asyncio.Task[None] | None = None  # the answer to a challenge
        self._loop = asyncio.get_running_loop()
        self.connected: asyncio.Future[None] = self._loop.create_future()
        self._decoder = PulsarFrameDecoder(keeps_broker_metadata=True)
        self._requests: dict[tuple[RequestIdSpace, int], _Request] = {}
        self._next_request_id = 0
        self._transport: asyncio.Transport | None = None
        self._outbox: Outbox | None = None
        self._reason: HeliographError | None = None  # why it ended, or is ending
        self._on_silent = on_silent
        self._unanswered_since: float | None = None  # when a ping was sent that no byte followed
        self._keep_alive: asyncio.TimerHandle | None = None

    # -- transport callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write"), "a stream transport"
        self._transport = transport  # type: ignore[assignment]
        self._outbox = Outbox(transport, self._loop.call_soon)  # type: ignore[arg-type]
        inherited_sockets.watch(self, transport)
        connect = pb.CommandConnect(client_version=CLIENT_VERSION, protocol_version=PROTOCOL_VERSION)
        connect.feature_flags.supports_broker_entry_metadata = True
        connect.feature_flags.supports_auth_refresh = True
        connect.auth_method_name = self._credentials.method
        connect.auth_data = self._credentials.data
        if self._options.original_principal is not None:
            connect.original_principal = self._options.original_principal
        self.send(pb.BaseCommand(type=_T.CONNECT, connect=connect))
        self._keep_alive = self._loop.call_later(self._ping_seconds, self._tick)

    def data_received(self, data: bytes) -> None:
        self._unanswered_since = None
        try:
            for command, section in self._decoder.feed(data):
                self._dispatch(command, section)
        except ProtocolError as error:
            self.abort(error)

    def connection_lost(self, exc: Exception | None) -> None:
        inherited_sockets.forget(self)
        error = self._reason or ConnectionLostError(
            f"the connection to {self.url} ended: {exc or 'closed by the peer'}"
        )
        self._end(error)

    # -- called by sessions

    def write(self, frame: bytes) -> None:
        """Send a whole frame. A closed connection drops it; ``on_connection_lost`` has told its sessions."""
        if not self.closed and self._outbox is not None:
            self._outbox.put(frame)

    def write_last(self, frame: bytes) -> None:
        """Send a whole frame as ``write`` does, but at once: no other is expected in this turn."""
        if not self.closed and self._outbox is not None:
            self._outbox.put_last(frame)

    def send(self, command: pb.BaseCommand) -> None:
        self.write(encode_command(command))

    def request(
        self,
        build: Callable[[int], pb.BaseCommand],
        space: RequestIdSpace = RequestIdSpace.SESSION,
        timeout_ms: float | None = None,
    ) -> asyncio.Future[Any]:
        """Send a command that has an answer, and return a future of the answering sub-command.

        The future fails with the broker's error, RequestTimeoutError, ConnectionLostError or QuotaExceededError.

        Args:
            build: Makes the command for a request id.
            space: The kind of request.
            timeout_ms: Default is the client's operation timeout.
        """
        future: asyncio.Future[Any] = self._loop.create_future()
        if self.closed:
            future.set_exception(self._reason or ConnectionLostError(f"the connection to {self.url} is closed"))
            return future
        if len(self._requests) >= REQUESTS_MAX:  # I15
            limit = f"{REQUESTS_MAX} requests"
            future.set_exception(QuotaExceededError("too many requests to this broker are unanswered", limit=limit))
            return future
        request_id = self._next_request_id
        self._next_request_id += 1
        key = (space, request_id)
        timeout = self._options.operation_timeout_ms if timeout_ms is None else timeout_ms
        timer = self._loop.call_later(timeout / 1000, self._expire, key)
        self._requests[key] = _Request(future, timer)
        self.send(build(request_id))
        return future

    def close(self) -> None:
        """End the connection after everything written is sent."""
        self._shut(ConnectionLostError(f"the connection to {self.url} was closed by this client"), graceful=True)

    def abort(self, reason: HeliographError) -> None:
        """End the connection at once; its sessions and requests fail with ``reason``."""
        log.info("aborting the connection to %s: %s", self.url, reason)
        self._shut(reason, graceful=False)

    # -- ending

    def _shut(self, reason: HeliographError, *, graceful: bool) -> None:
        if self._reason is None:
            self._reason = reason
        if self._transport is not None and not self.closed:
            if graceful:
                if self._outbox is not None:
                    self._outbox.flush()
                self._transport.close()
            else:
                self._transport.abort()
        self._end(self._reason)

    def _end(self, error: HeliographError) -> None:
        """Fail the handshake, all requests and all sessions with ``error``, once."""
        if self.closed:
            return
        self.closed = True
        if self._outbox is not None:
            self._outbox.drop()
        if self._keep_alive is not None:
            self._keep_alive.cancel()
        if self._refreshing is not None and self._refreshing is not asyncio.current_task():
            self._refreshing.cancel()
        if not self.connected.done():
            self.connected.set_exception(error)
            self.connected.exception()
        requests, self._requests = self._requests, {}
        for request in requests.values():
            request.fail(error)
        sessions: list[ProducerSession | ConsumerSession | TopicListSession] = [
            *self.producers.values(),
            *self.consumers.values(),
            *self.topic_watchers.values(),
        ]
        self.producers, self.consumers, self.topic_watchers = {}, {}, {}
        for session in sessions:
            session.on_connection_lost(error)

    def _tick(self) -> None:
        now = self._loop.time()
        if self._unanswered_since is None:
            self._unanswered_since = now
        elif now - self._unanswered_since >= self._options.keep_alive_ms / 1000:
            self.abort(ConnectionLostError(f"{self.url} did not answer a ping within {self._options.keep_alive_ms} ms"))
            return
        else:
            self._on_silent(self)
        self.write(_PING)
        self._keep_alive = self._loop.call_later(self._ping_seconds, self._tick)

    @property
    def _ping_seconds(self) -> float:
        return min(self._options.silence_ms, self._options.keep_alive_ms) / 1000

    def _expire(self, key: tuple[RequestIdSpace, int]) -> None:
        request = self._requests.pop(key, None)
        if request is not None:
            request.fail(RequestTimeoutError(f"{self.url} did not answer in time"))

    # -- receiving

    def _dispatch(self, command: pb.BaseCommand, section: memoryview | None) -> None:
        kind = command.type
        if kind == _T.MESSAGE:
            consumer = self.consumers.get(command.message.consumer_id)
            if consumer is not None and section is not None:
                consumer.on_message(command.message, section)
        elif kind == _T.SEND_RECEIPT:
            producer = self.producers.get(command.send_receipt.producer_id)
            if producer is not None:
                producer.on_receipt(command.send_receipt)
        elif kind in _ANSWERS:
            self._on_answer(kind, command)
        else:
            self._on_other(command)

    def _on_answer(self, kind: int, command: pb.BaseCommand) -> None:
        space, name = _ANSWERS[kind]
        answer = getattr(command, name)
        key = (space, answer.request_id)
        if kind == _T.PRODUCER_SUCCESS and not answer.producer_ready:
            # The producer waits for exclusive access: the same request is answered again when it gets it.
            if (waiting := self._requests.get(key)) is not None:
                waiting.timer.cancel()
            return
        request = self._requests.pop(key, None)
        if request is None:
            return
        if kind == _T.ACK_RESPONSE and answer.HasField("error"):
            request.fail(exception_of(answer.error, answer.message))
        else:
            request.settle(answer)

    def _on_other(self, command: pb.BaseCommand) -> None:
        kind = command.type
        if kind == _T.PING:
            self.write(_PONG)
        elif kind == _T.ERROR:
            self._on_error(command.error)
        elif kind == _T.SEND_ERROR:
            producer = self.producers.get(command.send_error.producer_id)
            if producer is not None:
                producer.on_send_error(command.send_error)
        elif kind == _T.CLOSE_PRODUCER:
            producer = self.producers.pop(command.close_producer.producer_id, None)
            if producer is not None:
                producer.on_closed_by_broker()
        elif kind == _T.CLOSE_CONSUMER:
            consumer = self.consumers.pop(command.close_consumer.consumer_id, None)
            if consumer is not None:
                consumer.on_closed_by_broker()
        elif kind == _T.REACHED_END_OF_TOPIC:
            consumer = self.consumers.get(command.reached_end_of_topic.consumer_id)
            if consumer is not None:
                consumer.on_end_of_topic()
        elif kind == _T.ACTIVE_CONSUMER_CHANGE:
            consumer = self.consumers.get(command.active_consumer_change.consumer_id)
            if consumer is not None:
                consumer.on_active_change(command.active_consumer_change.is_active)
        elif kind == _T.WATCH_TOPIC_UPDATE:
            watcher = self.topic_watchers.get(command.watch_topic_update.watcher_id)
            if watcher is not None:
                watcher.on_topics_changed(command.watch_topic_update)
        elif kind == _T.CONNECTED:
            self._on_connected(command.connected)
        elif kind == _T.AUTH_CHALLENGE:
            self._on_auth_challenge()

    def _on_connected(self, connected: pb.CommandConnected) -> None:
        self.takes_admin_calls = connected.feature_flags.takes_admin_calls
        self.takes_messages_back = connected.feature_flags.takes_messages_back
        self.takes_topic_watchers = connected.feature_flags.supports_topic_watchers
        if connected.max_message_size > 0:
            self.max_message_bytes = connected.max_message_size
            self._decoder.frame_bytes_max = connected.max_message_size + FRAME_SLACK_BYTES
        if not self.connected.done():
            self.connected.set_result(None)

    def _on_auth_challenge(self) -> None:
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = self._loop.create_task(self._answer_challenge())

    async def _answer_challenge(self) -> None:
        try:
            has_certificate = self._credentials.method == METHOD_TLS
            shown = await present(self._options.identity, has_certificate=has_certificate)
        except AuthenticationError as error:
            self.abort(error)
            return
        data = pb.AuthData(auth_method_name=shown.method, auth_data=shown.data)
        answer = pb.CommandAuthResponse(client_version=CLIENT_VERSION, response=data, protocol_version=PROTOCOL_VERSION)
        self.send(pb.BaseCommand(type=_T.AUTH_RESPONSE, auth_response=answer))

    def _on_error(self, answer: pb.CommandError) -> None:
        error = exception_of(answer.error, answer.message)
        if not self.connected.done() or isinstance(error, AuthenticationError):
            self.abort(error)  # the handshake was refused, or credentials that were shown again
            return
        for space in RequestIdSpace:  # an error does not name its space, but request ids are unique over both
            request = self._requests.pop((space, answer.request_id), None)
            if request is not None:
                request.fail(error)
