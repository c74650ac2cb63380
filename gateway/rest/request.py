"""Requests over HTTP: publish a message and return the responder's answer, whole or in parts."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from typing_extensions import override

from heliograph.base.errors import BadRequestError, HeliographError, MessageTooLargeError
from heliograph.gateway.errors import body_of
from heliograph.gateway.http.metrics import REST
from heliograph.gateway.ports import OutboundMessage
from heliograph.gateway.rest.lasting import HEARTBEAT, HEARTBEAT_SECONDS, failure_of
from heliograph.gateway.services import Services
from heliograph.gateway.shapes.bodies import until_left
from heliograph.gateway.shapes.json_forms import text_of, to_base64
from heliograph.gateway.shapes.publish_bodies import Publish

EVENT_STREAM = "text/event-stream"
_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]


def reply_to(services: Services, topic: str, given: Publish, timeout_ms: int, *, takes_stream: bool) -> Response:
    """Return the answer that publishes a request and waits for its reply when it is sent.

    Raises:
        BadRequestError: the body has not exactly one message, or one with a delay or an event time.
    """
    if len(given.messages) != 1:
        raise BadRequestError(f"a request is one message, not {len(given.messages)}", field="messages")
    message = given.messages[0]
    if message.deliver_at is not None or message.event_time_ms is not None or given.producer_name is not None:
        raise BadRequestError("a request has no delay, event time or producer name", field="reply")
    seconds = min(timeout_ms, services.config.reply_wait_ms_max) / 1000
    asked = _Asked(services, topic, message, given.schema, seconds)
    return _StreamResponse(asked) if takes_stream else _ReplyResponse(asked)


class _Asked:
    """A request of one caller.

    Args:
        schema: of the payload; None: bytes.
        seconds: for the whole answer.
    """

    def __init__(self, services: Services, topic: str, message: OutboundMessage, schema: Any, seconds: float) -> None:
        self.services = services
        self._topic = topic
        self._message = message
        self._options: Mapping[str, Any] = {
            "timeout": seconds,
            "key": message.key,
            "properties": message.properties,
            "schema": schema,
        }

    async def reply(self) -> bytes | None:
        """Return the reply. Raises MessageTooLargeError if an answer may not have so many bytes."""
        await self._check()
        found: bytes | None = await self.services.client.request(self._topic, self._message.payload, **self._options)
        limit = self.services.config.rest_answer_bytes_max
        if found is not None and len(found) > limit:
            raise MessageTooLargeError("the reply is too large for an answer", limit=f"{limit} bytes")
        return found

    @contextlib.asynccontextmanager
    async def parts(self, bytes_max: int) -> AsyncIterator[AsyncGenerator[bytes]]:
        """Ask for a reply in parts, of which ``bytes_max`` wait for the caller at most."""
        await self._check()
        options = {**self._options, "buffer_bytes": bytes_max}
        async with contextlib.aclosing(
            self.services.client.stream_request(self._topic, self._message.payload, **options)
        ) as parts:
            yield parts

    async def _check(self) -> None:
        await self.services.admin.partitions(self._topic)  # TopicNotFoundError: publishing would create it


class _ReplyResponse(Response):
    """One reply as JSON."""

    def __init__(self, asked: _Asked) -> None:
        self.background = None
        self._asked = asked

    @override
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        services = self._asked.services
        found: list[bytes | None] = []

        async def ask() -> None:
            found.append(await self._asked.reply())

        with services.requests.taken(services.caller):
            left = asyncio.ensure_future(until_left(receive))
            try:
                error = await failure_of(services, ask(), left)
            finally:
                left.cancel()
        if error is not None:
            services.metrics.replied("failed")
            raise error
        if found:  # otherwise the caller has left
            services.metrics.replied("answered")
            services.metrics.produced(REST, 1, 0)
            await Response(_body(found[0]), media_type="application/json")(scope, receive, send)


class _StreamResponse(Response):
    """The parts of a reply as server-sent events. Until the first part is there, a failure is a status of HTTP."""

    def __init__(self, asked: _Asked) -> None:
        self.background = None
        self._asked = asked
        self._has_begun = False
        self._has_ended = False  # the last part was sent

    @override
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        services = self._asked.services
        with services.requests.taken(services.caller), services.receivers.taken() as bytes_max:
            left = asyncio.ensure_future(until_left(receive))
            try:
                error = await failure_of(services, self._stream(send, bytes_max), left)
            finally:
                left.cancel()
        services.metrics.replied("answered" if self._has_ended else "failed")
        if error is not None and not self._has_begun:
            raise error
        if not self._has_begun:
            return  # the caller has left
        if error is not None:
            told = body_of(error) if isinstance(error, HeliographError) else {"reason": str(error), "advice": "retry"}
            await self._write(send, f"event: error\ndata: {json.dumps(told)}\n\n".encode())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1):  # a page that does not read is cut off
                await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _stream(self, send: Send, bytes_max: int) -> None:
        async with self._asked.parts(bytes_max) as parts:
            waiting = asyncio.ensure_future(anext(parts, None))
            try:
                while (part := await self._next(send, waiting)) is not None:
                    await self._begin(send)
                    await self._write(send, f"data: {_body(part)}\n\n".encode())
                    waiting = asyncio.ensure_future(anext(parts, None))
            finally:
                waiting.cancel()
                await asyncio.gather(waiting, return_exceptions=True)
        await self._begin(send)
        await self._write(send, b"event: end\ndata: {}\n\n")
        self._has_ended = True

    async def _next(self, send: Send, waiting: asyncio.Future[bytes | None]) -> bytes | None:
        while not (await asyncio.wait([waiting], timeout=HEARTBEAT_SECONDS))[0]:
            if self._has_begun:
                await self._write(send, HEARTBEAT)
        return waiting.result()

    async def _begin(self, send: Send) -> None:
        if not self._has_begun:
            self._has_begun = True
            await send({"type": "http.response.start", "status": 200, "headers": _STREAM_HEADERS})

    async def _write(self, send: Send, data: bytes) -> None:
        async with asyncio.timeout(self._asked.services.config.websocket_idle_seconds):
            await send({"type": "http.response.body", "body": data, "more_body": True})


def _body(data: bytes | None) -> str:
    """Return a reply, or a part of one, as JSON; ``payload`` is null if it has no value or is no text."""
    if data is None:
        return json.dumps({"payload": None, "payloadBase64": None})
    return json.dumps({"payload": text_of(data), "payloadBase64": to_base64(data)})
