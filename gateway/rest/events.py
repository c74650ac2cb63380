"""Server-sent events: a topic delivered to a page's ``EventSource``, which resumes by itself."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from typing_extensions import override

from heliograph.base.errors import HeliographError, TopicTerminatedError, UnsupportedError
from heliograph.gateway.errors import MethodNotAllowedError, reason_of
from heliograph.gateway.http.metrics import EVENTS
from heliograph.gateway.ports import MessagePort, ReaderPort
from heliograph.gateway.rest.lasting import HEARTBEAT, HEARTBEAT_SECONDS, failure_of
from heliograph.gateway.services import Services, ServicesDep
from heliograph.gateway.shapes.bodies import ErrorBody, aside, until_left
from heliograph.gateway.shapes.event_ids import PARTITIONS_MAX, event_id, lost_after, positions_of
from heliograph.gateway.shapes.json_forms import id_text
from heliograph.gateway.shapes.payload_forms import PayloadFormat, message_text
from heliograph.gateway.shapes.topics import PERSISTENT, TopicInUrl
from heliograph.protocol.message_id import MessageId
from heliograph.protocol.topic_name import TopicName

RETRY_MS = 1000  # after which a page connects again
GROWTH_SECONDS = 60.0  # between two looks for added partitions
MESSAGES_TOGETHER = 100  # taken from one partition before others have a turn
WRITE_BYTES = 64 << 10  # of events that are written together
END_SECONDS = 1.0  # for the end of an answer to be written

log = logging.getLogger(__name__)

router = APIRouter(tags=["consume"])


@router.get(
    "/topics/{domain}/{tenant}/{namespace}/{topic}/events",
    summary="Receive messages as server-sent events",
    response_class=Response,
    responses={
        200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}, "description": "One event a message"},
        404: {"model": ErrorBody, "description": "The topic does not exist"},
        429: {"model": ErrorBody, "description": "Too many sessions are open"},
    },
)
async def events(
    services: ServicesDep,
    topic: TopicInUrl,
    start: Annotated[
        str,
        Query(alias="from", max_length=4096, description="`latest`, `earliest` or the id of an event"),
    ] = "latest",
    payload_format: Annotated[
        PayloadFormat, Query(alias="payloadFormat", description="Form of `payload` in the events")
    ] = "text",
    last_event_id: Annotated[
        str,
        Header(alias="Last-Event-ID", max_length=4096, description="Id of the last event received; before `from`"),
    ] = "",
) -> Response:
    """Send every message of a topic, from a position on, to a page that uses `EventSource`.

    The data of an event is the JSON of a message as a WebSocket reader gets it. The browser repeats the last id after
    a lost connection, so no message is left out or sent twice. An event `gap` says that messages after that id were
    deleted meanwhile, `end` that the topic was terminated. The stream needs no subscription and acknowledges nothing.
    """
    if topic.domain != PERSISTENT:
        raise MethodNotAllowedError(
            "a non-persistent topic keeps nothing to go on with: use a WebSocket", field="domain"
        )
    return _EventResponse(services, topic, last_event_id or start, payload_format)


class _EventResponse(Response):
    """The answer that lasts. Everything is opened when it is sent, so that it is closed on every way out."""

    def __init__(self, services: Services, topic: TopicName, start: str, form: PayloadFormat) -> None:
        self.status_code = 200
        self.background = None
        self._services = services
        self._topic = topic
        self._start = start
        self._form = form

    @override
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events until the page leaves, its credentials end, or the topic cannot be read."""
        services = self._services
        with services.session("events"), services.receivers.taken() as bytes_max:
            left = asyncio.ensure_future(until_left(receive))
            try:
                async with _opened(services, self._topic, self._start, bytes_max) as stream:
                    error = await failure_of(services, stream.send(send, self._form), left)
                    if error is not None:  # a page that connects again learns why
                        log.info("events of %s end: %s", self._topic, reason_of(error))
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(END_SECONDS):  # a page that does not read is cut off
                            await send({"type": "http.response.body", "body": b"", "more_body": False})
            finally:
                left.cancel()


class EventStream:
    """The readers of a topic's partitions, and how far each was sent."""

    def __init__(
        self, services: Services, topic: TopicName, readers: Mapping[int, ReaderPort], read: dict[int, MessageId]
    ) -> None:
        self._services = services
        self._topic = topic
        self._readers = readers
        self._read = read
        self.gaps: list[dict[str, Any]] = []

    async def send(self, send: Send, form: PayloadFormat) -> None:
        """Send what there is and what comes. Return when partitions were added: the page connects again, and gets
        them too."""
        headers = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-store"),
            (b"x-accel-buffering", b"no"),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        # An event without data is not seen by the page, but its id is what the browser sends when it connects again.
        begin = [f"retry: {RETRY_MS}\n".encode(), self._event(None)]
        begin += [self._event(json.dumps(gap), "gap") for gap in self.gaps]
        await self._write(send, b"".join(begin))
        waiting = {asyncio.ensure_future(_received(reader)): number for number, reader in self._readers.items()}
        checked = asyncio.get_running_loop().time()
        try:
            while True:
                done, _ = await asyncio.wait(waiting, timeout=HEARTBEAT_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    number = waiting.pop(task)
                    if (messages := task.result()) is not None:
                        await self._send_messages(send, number, messages, form)
                        waiting[asyncio.ensure_future(_received(self._readers[number]))] = number
                if not waiting:
                    await self._write(send, self._event('{"endOfTopic": true}', "end"))
                    await self._rest(send)
                if not done:
                    await self._write(send, HEARTBEAT)
                if (now := asyncio.get_running_loop().time()) - checked >= GROWTH_SECONDS:
                    checked = now
                    count = await self._services.admin.partitions(str(self._topic))
                    if len(self._topic.partitions(count)) > len(self._readers):
                        return
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    async def _rest(self, send: Send) -> None:
        """Keep a stream open that has come to its end: a page would connect again for ever."""
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            await self._write(send, HEARTBEAT)

    async def _send_messages(
        self, send: Send, number: int, messages: Sequence[MessagePort], form: PayloadFormat
    ) -> None:
        parts: list[bytes] = []
        size = 0
        for message in messages:
            self._read[number] = message.message_id
            text = partial(message_text, message, id_text(message.message_id), form)
            event = self._event(await aside(len(message.data), text))
            parts.append(event)
            size += len(event)
            if size >= WRITE_BYTES:
                await self._write(send, b"".join(parts))
                parts, size = [], 0
        await self._write(send, b"".join(parts))
        self._services.metrics.delivered(EVENTS, len(messages), sum(len(message.data) for message in messages))

    def _event(self, data: str | None, name: str = "") -> bytes:
        lines = [f"event: {name}"] if name else []
        lines.append(f"id: {event_id(self._read)}")
        if data is not None:
            lines.append(f"data: {data}")
        return ("\n".join(lines) + "\n\n").encode()

    async def _write(self, send: Send, data: bytes) -> None:
        """Write, and wait while the page does not read; give it up as a WebSocket peer that answers no ping."""
        async with asyncio.timeout(self._services.config.websocket_idle_seconds):
            await send({"type": "http.response.body", "body": data, "more_body": True})


@contextlib.asynccontextmanager
async def _opened(services: Services, topic: TopicName, start: str, bytes_max: int) -> AsyncIterator[EventStream]:
    """Open a reader of each partition.

    Raises:
        TopicNotFoundError: the topic does not exist; reading does not create it.
        InvalidMessageIdError: ``start`` is no position of it.
        UnsupportedError: it has too many partitions.
    """
    admin = services.admin
    names = topic.partitions(await admin.partitions(str(topic)))
    if len(names) > PARTITIONS_MAX:
        raise UnsupportedError(
            f"{topic} has {len(names)} partitions: read some of them by name", field="topic", limit=f"{PARTITIONS_MAX}"
        )
    parts = {name.partition: str(name) for name in names}
    if start == "latest":
        # Asked for first, so that the page has a position to go on from before the first message comes.
        last = [MessageId.parse(await admin.cursors.last_message_id(name)) for name in parts.values()]
        read = {number: _position(found, number) for number, found in zip(parts, last, strict=True)}
        gaps: list[dict[str, Any]] = []
    elif start == "earliest":
        read, gaps = {number: _position(MessageId.EARLIEST, number) for number in parts}, []
    else:
        read = positions_of(start, list(parts), "Last-Event-ID")
        gaps = [gap for number in parts if (gap := await _gap(services, parts[number], read[number]))]
    async with contextlib.AsyncExitStack() as stack:
        readers: dict[int, ReaderPort] = {}
        for number, name in parts.items():
            reader = await services.client.reader(
                name,
                start=MessageId.EARLIEST if read[number].ledger_id < 0 else read[number],
                receiver_bytes_max=max(1, bytes_max // len(parts)),
                receiver_queue=MESSAGES_TOGETHER,
            )
            stack.push_async_callback(_closed, reader)
            readers[number] = reader
        stream = EventStream(services, topic, readers, read)
        stream.gaps = gaps
        yield stream


def _position(found: MessageId, partition: int) -> MessageId:
    return MessageId(found.ledger_id, found.entry_id, partition, found.batch_index)


async def _gap(services: Services, topic: str, read: MessageId) -> dict[str, Any] | None:
    """Return the notice of messages that were deleted before the page read them; None if none were."""
    page = await services.admin.topic_ledgers(topic, read.ledger_id)
    ledgers = [int(row["ledger_id"]) for row in page["ledgers"]]
    lost = lost_after(read, ledgers, {})
    if lost is None:
        access = await services.admin.read_access(topic, [])
        lost = lost_after(read, ledgers, {int(ledger_id): int(entries) for ledger_id, entries in access["trimmed"]})
    if lost == 0:
        return None
    return {"topic": topic, "after": str(read), "entries": lost}


async def _received(reader: ReaderPort) -> Sequence[MessagePort] | None:
    """Return the next messages; None if no further one will come."""
    try:
        while True:
            if messages := await reader.receive_many(MESSAGES_TOGETHER, None):
                return messages
    except TopicTerminatedError:
        return None


async def _closed(reader: ReaderPort) -> None:
    with contextlib.suppress(HeliographError):
        await reader.close()
