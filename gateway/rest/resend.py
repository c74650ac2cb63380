"""Sending stored messages again: selected messages to a topic, or dead letters back to their topics.

A message is published first and acknowledged after that. So a call that breaks off may have sent some messages, the
last ones perhaps without an acknowledgement, and its repetition goes on; none is lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import BaseModel, Field
from starlette.requests import Request

from heliograph.base.errors import (
    BadRequestError,
    HeliographError,
    InvalidMessageIdError,
    NotFoundError,
    RequestTimeoutError,
)
from heliograph.client.aio.consumer.letters import DEAD_SUFFIX, DELAY_TIME, REAL_TOPIC, RECONSUME_TIMES, RETRY_SUFFIX
from heliograph.gateway.errors import MethodNotAllowedError, body_of
from heliograph.gateway.http.metrics import REST
from heliograph.gateway.ports import ConsumerPort, MessagePort
from heliograph.gateway.rest.browse import is_null
from heliograph.gateway.services import Services, ServicesDep
from heliograph.gateway.sessions.producers import ProducerKind
from heliograph.gateway.shapes.bodies import ErrorBody, body_schema, parsed, read_body
from heliograph.gateway.shapes.topics import PERSISTENT, TopicInUrl
from heliograph.metrics.broker import RETRYING
from heliograph.protocol.message_id import MessageId
from heliograph.protocol.topic_name import TopicName

IDS_MAX = 100  # messages named in one request  # I15
LETTERS_MAX = 1_000  # sent by one request  # I15
SECONDS_MAX = 30.0  # of one request  # I15
READ_SECONDS = 10.0  # for one message that is named
SEND_SECONDS = 10.0  # for one message to be stored; then it failed, and the next one is sent
IDLE_SECONDS = 2.0  # without a dead letter, after which all were sent
TOGETHER = 100  # dead letters that are published before they are acknowledged
FAILURES_SHOWN_MAX = 20
PASS_CHARACTERS_MAX = 256 << 10  # of what a pass goes on from: an id for each partition

router = APIRouter(tags=["produce"], responses={404: {"model": ErrorBody, "description": "No such topic or message"}})
MessageIdText = Annotated[str, Field(max_length=256)]


class ResendRequest(BaseModel):
    """Which messages are sent again, and to which topic."""

    ids: Annotated[list[MessageIdText], Field(min_length=1, max_length=IDS_MAX, description="As `browse` shows them")]
    to: Annotated[str, Field(min_length=1, max_length=1024, description="Name of a topic that exists")]


class RetryRequest(BaseModel):
    """Which dead letters are sent back."""

    ids: Annotated[
        list[MessageIdText], Field(max_length=IDS_MAX, description="Empty: all that were not sent back yet")
    ] = []
    to: Annotated[
        str, Field(max_length=1024, description="A topic; empty: where each message came from, if the name fits")
    ] = ""
    limit: Annotated[int, Field(ge=1, le=LETTERS_MAX, description="Letters, after which the call returns")] = (
        LETTERS_MAX
    )
    after: Annotated[
        str, Field(max_length=PASS_CHARACTERS_MAX, description="`next` of the answer before; empty: a pass begins")
    ] = ""


class Sent(BaseModel):
    """The outcome for the messages."""

    sent: int
    failures: int = Field(description="Messages that could not be sent. A later pass tries dead letters again")
    failed: list[dict[str, Any]] = Field(description="`messageId` with an error, the first 20 of them")
    done: bool = Field(description="Whether none is left that was not tried; else call again, with `next` or `left`")
    next: str = Field("", description="`after` of the next call, which passes over the letters that failed")
    left: list[str] = Field([], description="Those of `ids` that were not tried")


@router.post(
    "/topics/{domain}/{tenant}/{namespace}/{topic}/resend",
    summary="Send messages again",
    openapi_extra=body_schema(ResendRequest),
)
async def resend(request: Request, services: ServicesDep, topic: TopicInUrl) -> Sent:
    """Publish copies of messages, with their keys, properties and event times, to a topic.

    The caller needs the right to consume here, and to produce there. One call takes 30 s at most.
    """
    _require_stored(topic)
    body = parsed(ResendRequest, await read_body(request, services.config.request_bytes_max))
    ids = [_id_of(text) for text in body.ids]
    return await _named(_Sending(services, topic, str(TopicName.parse(body.to))), ids, None)


@router.post(
    "/topics/{domain}/{tenant}/{namespace}/{topic}/retry",
    summary="Send dead letters back",
    openapi_extra=body_schema(RetryRequest),
)
async def retry(request: Request, services: ServicesDep, topic: TopicInUrl) -> Sent:
    """Publish dead letters to the topic that they came from, and acknowledge them on the subscription `console-retry`.

    A letter names that topic in the property REAL_TOPIC, which any producer can write. So it is believed only if the
    name of this topic begins with that name, as `orders-billing-DLQ` does with `orders`; else `to` says where. One
    call sends at most `limit` letters in 30 s; `done` is false if there may be more. It can be repeated. The
    subscription is made by the first call, and keeps the letters that were not sent back until it is deleted.
    """
    _require_stored(topic)
    body = parsed(RetryRequest, await read_body(request, services.config.request_bytes_max))
    ids = [_id_of(text) for text in body.ids]
    sending = _Sending(services, topic, str(TopicName.parse(body.to)) if body.to else "", body.after)
    async with _subscribed(services, topic, 1 if ids else TOGETHER) as consumer:
        return await (_named(sending, ids, consumer) if ids else _all(sending, consumer, body.limit))


@contextlib.asynccontextmanager
async def _subscribed(services: Services, topic: TopicName, queue: int) -> AsyncIterator[ConsumerPort]:
    consumer = await services.client.consumer(
        str(topic), RETRYING, type="shared", initial_position="earliest", receiver_queue=queue
    )
    try:
        yield consumer
    finally:
        with contextlib.suppress(HeliographError):
            await consumer.close()


async def _named(sending: _Sending, ids: Sequence[MessageId], consumer: ConsumerPort | None) -> Sent:
    """Send the messages of these ids. The first one has to exist; a later one that does not has failed.

    Args:
        consumer: where each is acknowledged; None: nowhere.
    """
    tried = 0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(SECONDS_MAX):
            for id_ in ids:
                try:
                    message = await sending.message(id_)
                except HeliographError as error:
                    if not tried:
                        raise
                    sending.note_failure(id_, error)
                else:
                    if await sending.one(message) and consumer is not None:
                        await consumer.ack_many([message.message_id])
                tried += 1
    left = ids[tried:]
    return sending.outcome(done=not left, left=[str(id_) for id_ in left])


async def _all(sending: _Sending, consumer: ConsumerPort, limit: int) -> Sent:
    """Send letters until there is none, or a bound is reached. Letters that fail are skipped in this pass."""
    deadline, taken = time.monotonic() + SECONDS_MAX, 0
    while taken < limit and (seconds := deadline - time.monotonic()) > 0:
        letters = await consumer.receive_many(min(TOGETHER, limit - taken), min(IDLE_SECONDS, seconds))
        if not letters:
            return sending.outcome(done=seconds >= IDLE_SECONDS)
        sent: list[MessagePort] = []
        with contextlib.suppress(TimeoutError):  # the letter under way is not acknowledged, and is sent again
            async with asyncio.timeout(deadline - time.monotonic()):
                for letter in letters:
                    if sending.is_passed(letter):
                        continue
                    if await sending.one(letter):
                        sent.append(letter)
                    taken += 1
        if sent:
            await consumer.ack_many(sent)
    return sending.outcome(done=False)


class _Sending:
    """The messages of one request on their way.

    Args:
        to: the topic; empty for that of each dead letter.
        after: where earlier calls of the pass came to; empty: there was none.
    """

    def __init__(self, services: Services, topic: TopicName, to: str, after: str = "") -> None:
        self._services = services
        self._topic = topic
        self._to = to
        self._sent = 0
        self._failures = 0
        self._failed: list[dict[str, Any]] = []  # the first FAILURES_SHOWN_MAX of them
        ids = (_id_of(text, "after") for text in after.split(",") if text)
        self._passed = {id_.partition: id_ for id_ in ids}  # by partition: the last letter of the calls before
        self._reached = dict(self._passed)  # and of this one

    def is_passed(self, letter: MessagePort) -> bool:
        """Return whether an earlier call of this pass came to a letter, which has failed then."""
        id_ = letter.message_id
        return id_.partition in self._passed and id_ <= self._passed[id_.partition]

    async def message(self, id_: MessageId) -> MessagePort:
        """Return a stored message, or raise what ``_message`` does."""
        return await _message(self._services, self._topic, id_)

    async def one(self, message: MessagePort) -> bool:
        """Publish a copy of a message; return False if that failed, which is noted."""
        try:
            try:
                async with asyncio.timeout(SEND_SECONDS):
                    await self._publish(message, self._to or _origin_of(self._topic, message))
            except TimeoutError as error:
                raise RequestTimeoutError(f"it was not stored within {SEND_SECONDS:.0f} s") from error
        except HeliographError as error:
            self.note_failure(message.message_id, error)
            return False
        self._reach(message.message_id)
        self._sent += 1
        self._services.metrics.produced(REST, 1, len(message.data))
        return True

    def note_failure(self, id_: MessageId, error: HeliographError) -> None:
        self._reach(id_)
        self._failures += 1
        if len(self._failed) < FAILURES_SHOWN_MAX:
            self._failed.append({"messageId": str(id_), **body_of(error)})
        self._services.metrics.failed(REST)

    def outcome(self, *, done: bool, left: Sequence[str] = ()) -> Sent:
        reached = "" if done or left else ",".join(map(str, self._reached.values()))
        return Sent(
            sent=self._sent, failures=self._failures, failed=self._failed, done=done, next=reached, left=list(left)
        )

    def _reach(self, id_: MessageId) -> None:
        self._reached[id_.partition] = max(id_, self._reached.get(id_.partition, id_))

    async def _publish(self, message: MessagePort, topic: str) -> None:
        properties = {
            name: value for name, value in message.properties.items() if name not in (RECONSUME_TIMES, DELAY_TIME)
        }
        async with self._services.producers.lease(self._services.caller, topic, ProducerKind()) as producer:
            stored = await producer.enqueue(
                None if is_null(message) else message.data,
                key=message.key,
                properties=properties,
                event_time_ms=message.event_time_ms or None,
            )
            await stored


def _origin_of(topic: TopicName, letter: MessagePort) -> str:
    """Return the topic that a dead letter came from.

    Raises:
        BadRequestError: it does not say so, or names a topic whose dead letters have another name.
    """
    named = letter.properties.get(REAL_TOPIC, "")
    with contextlib.suppress(HeliographError):
        origin = TopicName.parse(TopicName.parse(named).partitioned_name) if named else None
        own = TopicName.parse(topic.partitioned_name).local_name
        fits = own.endswith((DEAD_SUFFIX, RETRY_SUFFIX))
        if origin and fits and origin.namespace == topic.namespace and own.startswith(f"{origin.local_name}-"):
            return str(origin)
    raise BadRequestError(
        f"it says that it came from {named[:200]!r}, whose dead letters have another name than {topic}: name a topic",
        field="to",
    )


async def _message(services: Services, topic: TopicName, id_: MessageId) -> MessagePort:
    """Return one stored message, as the caller may consume it.

    Raises:
        NotFoundError: there is none of that id.
    """
    name = topic.of_partition(id_.partition) if id_.partition >= 0 and topic.partition < 0 else topic
    before = MessageId(id_.begin.ledger_id, id_.begin.entry_id - 1, id_.partition)
    reader = await services.client.reader(str(name), start=before, receiver_queue=1)
    try:
        deadline = time.monotonic() + READ_SECONDS
        while time.monotonic() < deadline:
            for message in await reader.receive_many(1, IDLE_SECONDS):
                found = message.message_id
                if (found.ledger_id, found.entry_id) > (id_.ledger_id, id_.entry_id):
                    raise NotFoundError(f"there is no message {id_}", field="ids")
                is_it = (found.ledger_id, found.entry_id) == (id_.ledger_id, id_.entry_id)
                if is_it and (id_.batch_index < 0 or found.batch_index in (-1, id_.batch_index)):
                    return message
        raise RequestTimeoutError(f"message {id_} was not read within {READ_SECONDS:.0f} s", field="ids")
    finally:
        with contextlib.suppress(HeliographError):
            await reader.close()


def _id_of(text: str, field: str = "ids") -> MessageId:
    try:
        found = MessageId.parse(text)
    except InvalidMessageIdError as error:
        raise InvalidMessageIdError(str(error), field=field) from error
    if found in (MessageId.EARLIEST, MessageId.LATEST):
        raise InvalidMessageIdError("name a message by its id", field=field)
    return found


def _require_stored(topic: TopicName) -> None:
    if topic.domain != PERSISTENT:
        raise MethodNotAllowedError("a non-persistent topic keeps no messages", field="domain")
