"""Looking for messages in a topic: bounded in number, bytes and time, with progress on the way, stopped by hanging up.

It reads by the readers that WebSocket sessions use, over the caller's own connection, so brokers check the right to
consume. Nothing is acknowledged, and no subscription stays.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from typing_extensions import override

from heliograph.base.clock import iso_time, wall_ms
from heliograph.base.errors import (
    BadRequestError,
    HeliographError,
    PolicyLimitError,
    TopicTerminatedError,
    UnsupportedError,
)
from heliograph.gateway.errors import MethodNotAllowedError, body_of
from heliograph.gateway.http.metrics import EVENTS
from heliograph.gateway.ports import MessagePort, ReaderPort
from heliograph.gateway.services import Services, ServicesDep
from heliograph.gateway.shapes.bodies import ErrorBody, aside, until_left
from heliograph.gateway.shapes.event_ids import PARTITIONS_MAX, event_id, positions_of
from heliograph.gateway.shapes.json_forms import message_json, text_of, to_base64
from heliograph.gateway.shapes.message_filter import MessageFilter, path_of
from heliograph.gateway.shapes.topics import PERSISTENT, TopicInUrl
from heliograph.gateway.shapes.value_schema import ValueSchema, readable_schema
from heliograph.operations.cursors import MASKED
from heliograph.protocol.message_id import MessageId
from heliograph.protocol.topic_name import TopicName

FOUND_MAX = 1_000  # messages of one answer  # I15
LOOKED_MAX = 1_000_000  # messages looked at for one answer  # I15
BYTES_MAX = 256 << 20  # of payloads looked at for one answer  # I15
SECONDS_MAX = 60.0  # of one search  # I15
FOLLOW_SECONDS_MAX = 3_600.0  # of one live tail  # I15
SHOWN_BYTES = 64 << 10  # of one payload in the answer  # I15
RATE_MAX = 200  # messages each second that a live tail shows  # I15
PROGRESS_SECONDS = 0.5  # between two lines of progress
IDLE_SECONDS = 2.0  # without a message, after which a search ends, wherever it is
TOGETHER = 100  # messages taken from one partition before others have a turn
WRITE_SECONDS_MAX = 30.0  # in which a caller has to read what was sent
DECODED = ("AVRO",)  # types of schemas whose payloads are no text; those of the others are shown as they are

router = APIRouter(tags=["consume"])


@dataclass(frozen=True, slots=True)
class Bounds:
    """How far one search goes. A live tail ends by time alone, and shows at most ``rate`` messages each second."""

    found: int
    looked: int
    size: int
    seconds: float
    follows: bool = False
    rate: int = RATE_MAX
    with_raw: bool = False


@router.get(
    "/topics/{domain}/{tenant}/{namespace}/{topic}/browse",
    summary="Search the messages of a topic, or follow them",
    response_class=Response,
    responses={
        200: {"content": {"application/x-ndjson": {"schema": {"type": "string"}}}, "description": "One line a message"},
        404: {"model": ErrorBody, "description": "The topic does not exist"},
        429: {"model": ErrorBody, "description": "Too many sessions are open"},
    },
)
async def browse(
    services: ServicesDep,
    topic: TopicInUrl,
    start: Annotated[
        str,
        Query(
            alias="from",
            max_length=4096,
            description="`earliest`, `latest`, the id of the message after which to begin, or the `next` of an answer",
        ),
    ] = "earliest",
    at_ms: Annotated[
        int | None,
        Query(alias="time", ge=0, lt=1 << 63, description="Begin at this publish time, in ms; before `from`"),
    ] = None,
    last: Annotated[
        int | None, Query(ge=1, le=FOUND_MAX, description="Begin so many entries before the end; before `from`")
    ] = None,
    key: Annotated[str | None, Query(max_length=4096, description="The whole key")] = None,
    property_: Annotated[str, Query(alias="property", max_length=4096, description="`name` or `name=value`")] = "",
    text: Annotated[str, Query(max_length=4096, description="Somewhere in the payload; case does not count")] = "",
    path: Annotated[str, Query(max_length=4096, description="Of a value in JSON, such as `order.lines[*].sku`")] = "",
    value: Annotated[str | None, Query(max_length=4096, description="The value at the path")] = None,
    limit: Annotated[int, Query(ge=1, le=FOUND_MAX, description="Messages found, after which it ends")] = 100,
    looked: Annotated[int, Query(ge=1, le=LOOKED_MAX, description="Messages looked at, the same")] = 10_000,
    size: Annotated[int, Query(alias="bytes", ge=1, le=BYTES_MAX, description="Of payloads looked at, the same")] = 16
    << 20,
    seconds: Annotated[
        float, Query(gt=0, le=FOLLOW_SECONDS_MAX, description="The same; a search takes at most 60")
    ] = 10,
    follow: Annotated[bool, Query(description="Go on with new messages, and leave out those above `rate`")] = False,
    rate: Annotated[int, Query(ge=1, le=RATE_MAX, description="Messages shown each second while following")] = 20,
    raw: Annotated[bool, Query(description="Add `payloadBase64`, the payload as it is stored")] = False,
) -> Response:
    """Return lines of JSON, each with a `type`.

    `message` has a message with its `payload` as text, decoded by the topic's schema and cut after 64 KiB; null where
    it is no text; `payloadBase64` is cut alike, and `rawIsCut` then. `progress` comes twice a second with `looked`,
    `found`, `bytes` and `leftOut`. `end` says `why` (`found`, `looked`, `bytes`, `seconds`, `idle`: no message came
    for 2 s, and `end`: all that there was has been looked at), and `next`, which as `from` goes on there. `error` is an
    error after the begin. Hanging up stops the search.

    Where the policy `payloads_masked` holds and the caller is no superuser, messages are `isMasked`: their `payload`
    and the values of their properties are replaced, and conditions on these are refused.
    """
    if topic.domain != PERSISTENT:
        raise MethodNotAllowedError("a non-persistent topic keeps no messages: use a WebSocket", field="domain")
    if not follow and seconds > SECONDS_MAX:
        raise BadRequestError(f"a search of {seconds:g} s", field="seconds", limit=f"{SECONDS_MAX:.0f} s")
    if value is not None and not path:
        raise BadRequestError("a value needs the path at which it is; $ is the whole payload", field="value")
    name, _, wanted = property_.partition("=")
    condition = MessageFilter(key, name, wanted if "=" in property_ else None, text, path_of(path), value)
    bounds = Bounds(limit, looked, size, seconds, follow, rate, raw)
    browsing = Browsing(services, topic, condition, bounds)
    await browsing.locate("latest" if follow and at_ms is None and last is None else start, at_ms, last)
    return _Lines(services, browsing)


class Browsing:
    """One search: its position, and its findings."""

    def __init__(self, services: Services, topic: TopicName, condition: MessageFilter, bounds: Bounds) -> None:
        self._services = services
        self._topic = topic
        self._filter = condition
        self._bounds = bounds
        self._read: dict[int, MessageId] = {}  # by partition: how far it was looked at
        self._ends: dict[int, MessageId] = {}  # by partition: its last message when the search began
        self._names: dict[int, str] = {}
        self._schema: ValueSchema | None = None
        self._is_masked = False
        self._looked = self._found = self._bytes = self._left_out = 0
        self._second, self._shown = 0.0, 0  # of a live tail: the second, and what was shown in it
        self._publish_ms = self._since_ms = 0

    async def locate(self, start: str, at_ms: int | None, last: int | None) -> None:
        """Find the begin, the end and the schema, as the caller may know them.

        Raises:
            TopicNotFoundError, NotPermittedError: the caller needs the right to consume.
            InvalidMessageIdError: ``start`` is no position of the topic.
            UnsupportedError: the topic has too many partitions.
            PolicyLimitError: the search is for content that the caller may not see.
        """
        admin = self._services.admin
        names = self._topic.partitions(await admin.partitions(str(self._topic)))
        if len(names) > PARTITIONS_MAX:
            reason = f"{self._topic} has {len(names)} partitions: search one of them by its name"
            raise UnsupportedError(reason, field="topic", limit=f"{PARTITIONS_MAX} partitions")
        self._names = {name.partition: str(name) for name in names}
        found = await asyncio.gather(*(admin.cursors.last_message_id(name) for name in self._names.values()))
        ends = zip(self._names, map(MessageId.parse, found), strict=True)
        self._ends = {number: _of_partition(end, number) for number, end in ends}
        if at_ms is not None:
            self._since_ms = at_ms
            at = await asyncio.gather(*(admin.cursors.message_id_at(name, at_ms) for name in self._names.values()))
            self._read = {n: _before(MessageId.parse(id_), n) for n, id_ in zip(self._names, at, strict=True)}
        elif last is not None:
            before = await asyncio.gather(*(self._entries_before(number, last) for number in self._names))
            self._read = dict(zip(self._names, before, strict=True))
        elif start == "latest":
            self._read = dict(self._ends)
        elif start == "earliest":
            self._read = {number: _of_partition(MessageId.EARLIEST, number) for number in self._names}
        else:
            self._read = positions_of(start, list(self._names), "from")
        self._is_masked = await self._services.masks(str(self._topic))
        if self._is_masked and (looked_for := self._filter.hidden):
            reason = f"payloads of {self._topic} are masked by policy: it cannot be searched by {looked_for}"
            raise PolicyLimitError(reason, field="payloads_masked")
        self._schema = None if self._is_masked else await self._schema_of_topic()

    async def lines(self) -> AsyncGenerator[dict[str, Any], None]:
        """Yield findings and progress. The last line is ``end`` or ``error``."""
        began = time.monotonic()
        deadline, told = began + self._bounds.seconds, began
        try:
            async with self._readers() as readers:
                waiting = {asyncio.ensure_future(_received(reader)): n for n, reader in readers.items()}
                heard = time.monotonic()  # it took a while to open them
                try:
                    while not (why := self._why(readers, heard, deadline)):
                        pause = min(PROGRESS_SECONDS, max(0.0, deadline - time.monotonic()))
                        done, _ = await asyncio.wait(waiting, timeout=pause, return_when=asyncio.FIRST_COMPLETED)
                        for task in done:
                            number = waiting.pop(task)
                            if messages := task.result():
                                heard = time.monotonic()
                            for message in messages:
                                if self._is_over(number) or self._is_full:
                                    break
                                async for line in self._look(number, message):
                                    yield line
                            waiting[asyncio.ensure_future(_received(readers[number]))] = number
                        if time.monotonic() - told >= PROGRESS_SECONDS:
                            told = time.monotonic()
                            yield {"type": "progress", **self._counts(began)}
                finally:
                    for task in waiting:
                        task.cancel()
                    await asyncio.gather(*waiting, return_exceptions=True)
            yield {"type": "end", "why": why, **self._counts(began)}
        except HeliographError as error:
            yield {"type": "error", **body_of(error), **self._counts(began)}

    @property
    def _is_full(self) -> bool:
        bounds = self._bounds
        return not bounds.follows and (
            self._found >= bounds.found or self._looked >= bounds.looked or self._bytes >= bounds.size
        )

    def _why(self, readers: Mapping[int, ReaderPort], heard: float, deadline: float) -> str:
        """Return why the search ends now; empty if it goes on."""
        bounds, now = self._bounds, time.monotonic()
        if now >= deadline:
            return "seconds"
        if bounds.follows:
            return "end" if all(reader.has_reached_end for reader in readers.values()) else ""
        if self._is_full:
            counts = {"found": self._found >= bounds.found, "looked": self._looked >= bounds.looked, "bytes": True}
            return next(why for why, is_so in counts.items() if is_so)
        if all(self._is_over(number) for number in self._names):
            return "end"
        return "idle" if now - heard > IDLE_SECONDS else ""

    def _is_over(self, number: int) -> bool:
        """Return whether a partition was looked at up to the message that was its last."""
        read, end = self._read[number], self._ends[number]
        if self._bounds.follows:
            return False
        if end.entry_id < 0:
            return True
        here, there = (read.ledger_id, read.entry_id), (end.ledger_id, end.entry_id)
        if here != there:
            return here > there
        return read.batch_index < 0 or end.batch_index < 0 or read.batch_index >= end.batch_index

    async def _look(self, number: int, message: MessagePort) -> AsyncIterator[dict[str, Any]]:
        self._read[number] = _of_partition(message.message_id, number)
        self._looked += 1
        self._bytes += len(message.data)
        self._publish_ms = message.publish_time_ms
        condition = self._filter
        if message.publish_time_ms < self._since_ms:  # the last one, where none is as late
            return
        if condition.needs_payload:
            is_wanted = await aside(len(message.data), lambda: self._fits(message))
        else:
            is_wanted = condition.matches(message.key, message.properties, None)
        if not is_wanted:
            return
        if self._bounds.follows and not self._may_show():
            self._left_out += 1
            return
        self._found += 1
        line = await aside(len(message.data), lambda: self._line(number, message))
        self._services.metrics.delivered(EVENTS, 1, len(message.data))
        yield line

    def _fits(self, message: MessagePort) -> bool:
        shown, _ = shown_payload(message)
        return self._filter.matches(message.key, message.properties, shown)

    def _may_show(self) -> bool:
        second = float(int(time.monotonic()))
        if second != self._second:
            self._second, self._shown = second, 0
        self._shown += 1
        return self._shown <= self._bounds.rate

    def _line(self, number: int, message: MessagePort) -> dict[str, Any]:
        position = str(self._read[number])
        line: dict[str, Any] = {"type": "message", "topic": self._names[number], **message_json(message, position)}
        line |= {"size": len(message.data), "isNull": is_null(message)}
        if self._is_masked:
            return line | {"payload": MASKED, "properties": dict.fromkeys(line["properties"], MASKED), "isMasked": True}
        shown, why = shown_payload(message)
        line["payload"] = shown
        if shown is not None and len(shown) > SHOWN_BYTES:
            line |= {"payload": shown[:SHOWN_BYTES], "isCut": True}
        if why:
            line["notDecoded"] = why
        if self._bounds.with_raw:
            line["payloadBase64"] = to_base64(message.data[:SHOWN_BYTES])
            if len(message.data) > SHOWN_BYTES:
                line["rawIsCut"] = True
        return line

    def _counts(self, began: float) -> dict[str, Any]:
        return {
            "looked": self._looked,
            "found": self._found,
            "bytes": self._bytes,
            "leftOut": self._left_out,
            "seconds": round(time.monotonic() - began, 3),
            "reached": iso_time(self._publish_ms) if self._publish_ms else "",
            "next": event_id(self._read),
        }

    @contextlib.asynccontextmanager
    async def _readers(self) -> AsyncIterator[dict[int, ReaderPort]]:
        """Open a reader of each partition in which there is something to look at."""
        open_for = [number for number in self._names if not self._is_over(number)]
        async with contextlib.AsyncExitStack() as stack:
            bytes_max = stack.enter_context(self._services.receivers.taken())
            readers: dict[int, ReaderPort] = {}
            for number in open_for:
                read = self._read[number]
                options: dict[str, Any] = {"schema": self._schema} if self._schema is not None else {}
                reader = await self._services.client.reader(
                    self._names[number],
                    start=MessageId.EARLIEST if read.ledger_id < 0 else read,
                    receiver_bytes_max=max(1, bytes_max // len(open_for)),
                    receiver_queue=TOGETHER,
                    **options,
                )
                stack.push_async_callback(_closed, reader)
                readers[number] = reader
            yield readers

    async def _entries_before(self, number: int, count: int) -> MessageId:
        """Return the position after which a partition has so many entries, or its begin."""
        end = self._ends[number]
        stats = await self._services.admin.topic_internal_stats(self._names[number])
        left = count
        for row in reversed(list(stats.get("ledgers", ()))):
            ledger_id, entries = int(row["ledgerId"]), int(row["entries"])
            if ledger_id > end.ledger_id:
                continue
            entries = end.entry_id + 1 if ledger_id == end.ledger_id else entries
            if entries >= left:
                return MessageId(ledger_id, entries - left - 1, number)
            left -= entries
        return _of_partition(MessageId.EARLIEST, number)

    async def _schema_of_topic(self) -> ValueSchema | None:
        """Return the schema that turns payloads into text; None if they are text, or stay bytes."""
        try:
            found = await self._services.admin.schemas.get(str(self._topic))
            if found is None or str(found.get("type", "")).upper() not in DECODED:
                return None
            definition = found.get("schema") or found.get("data") or ""
            data = definition if isinstance(definition, bytes) else str(definition).encode()
            return readable_schema(json.dumps({"type": "AVRO", "schema": to_base64(data)}))
        except HeliographError:
            return None  # each payload is shown as it is stored


class _Lines(Response):
    """The answer, line by line, until the search or its caller ends."""

    def __init__(self, services: Services, browsing: Browsing) -> None:
        self.status_code = 200
        self.background = None
        self._services = services
        self._browsing = browsing

    @override
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._services.session("browse"):
            headers = [(b"content-type", b"application/x-ndjson; charset=utf-8"), (b"cache-control", b"no-store")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            principal = self._services.caller.principal
            sending = asyncio.ensure_future(self._send(send))
            ends: list[asyncio.Future[Any]] = [asyncio.ensure_future(until_left(receive))]
            ends.append(asyncio.ensure_future(self._services.authenticator.until_revoked(principal)))
            ends.append(asyncio.ensure_future(self._services.ends.wait()))
            left = None if principal.expires_ms is None else max(0.0, (principal.expires_ms - wall_ms()) / 1000)
            try:
                await asyncio.wait((sending, *ends), timeout=left, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in (sending, *ends):
                    task.cancel()
                await asyncio.gather(sending, *ends, return_exceptions=True)
            error = None if sending.cancelled() else sending.exception()
            if isinstance(error, TimeoutError):
                return  # the caller does not read
            if error is not None:
                raise error
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(WRITE_SECONDS_MAX):
                    await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send(self, send: Send) -> None:
        async with contextlib.aclosing(self._browsing.lines()) as lines:
            async for line in lines:
                async with asyncio.timeout(WRITE_SECONDS_MAX):  # a caller that does not read is cut off
                    body = json.dumps(line).encode() + b"\n"
                    await send({"type": "http.response.body", "body": body, "more_body": True})


def shown_payload(message: MessagePort) -> tuple[str | None, str]:
    """Return the payload as text, decoded by the reader's schema, and why it is not decoded."""
    try:
        value = message.value
    except HeliographError as error:  # it does not fit the schema
        return text_of(message.data), str(error)
    if value is None:
        return None, ""
    return text_of(value if isinstance(value, bytes) else message.data), ""


def is_null(message: MessagePort) -> bool:
    with contextlib.suppress(HeliographError):
        return message.value is None
    return False


async def _received(reader: ReaderPort) -> Sequence[MessagePort]:
    """Return the next messages; none after a while if no further message will come."""
    try:
        return await reader.receive_many(TOGETHER, None)
    except TopicTerminatedError:
        await asyncio.sleep(IDLE_SECONDS)
        return ()


async def _closed(reader: ReaderPort) -> None:
    with contextlib.suppress(HeliographError):
        await reader.close()


def _of_partition(found: MessageId, partition: int) -> MessageId:
    return MessageId(found.ledger_id, found.entry_id, partition, found.batch_index)


def _before(found: MessageId, partition: int) -> MessageId:
    """Return the position before an entry, after which a reader begins with it."""
    if found.ledger_id < 0:
        return _of_partition(MessageId.EARLIEST, partition)
    return MessageId(found.ledger_id, max(found.entry_id, 0) - 1, partition)
