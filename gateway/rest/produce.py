"""REST produce: Pulsar's request and answer, and raw bodies, NDJSON and CloudEvents with the same answer."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from starlette.requests import Request
from starlette.responses import Response

from heliograph.base.errors import Advice, AlreadyClosedError, ConflictError, HeliographError, NotFoundError
from heliograph.gateway.errors import body_of, reason_of, row_of
from heliograph.gateway.http.metrics import REST
from heliograph.gateway.ports import OutboundMessage, ProducerPort
from heliograph.gateway.rest.request import EVENT_STREAM, reply_to
from heliograph.gateway.services import Services, ServicesDep
from heliograph.gateway.sessions.producers import ProducerKind
from heliograph.gateway.shapes.bodies import (
    SMALL_BODY_BYTES,
    ErrorBody,
    ProduceAnswer,
    ReplyAnswer,
    check_values,
    read_body,
)
from heliograph.gateway.shapes.json_forms import id_text
from heliograph.gateway.shapes.publish_bodies import (
    BYTES,
    MEDIA_TYPES,
    TEXT,
    PublishQuery,
    bodies_schema,
    form_of,
    unpacked,
)
from heliograph.gateway.shapes.topics import TopicInUrl, partition_of
from heliograph.protocol.message_id import MessageId

STORED, TRY_AGAIN, REFUSED = 0, 1, 2  # PublishResult.errorCode
MESSAGES_IN_TURN = 256  # passed to the producer before other requests have a turn
_PRODUCER_CLOSED = (AlreadyClosedError, ConflictError, NotFoundError)

router = APIRouter(tags=["produce"])
_answers: dict[int | str, dict[str, Any]] = {
    200: {
        "model": ProduceAnswer | ReplyAnswer,
        "content": {EVENT_STREAM: {"schema": {"type": "string"}}},
        "description": "The outcome of each message; with `reply=wait` the reply, with `reply=stream` an event a part",
    },
    400: {"model": ErrorBody, "description": "Malformed JSON or base64"},
    404: {"model": ErrorBody, "description": "The topic does not exist; publishing does not create it"},
    413: {"model": ErrorBody, "description": "A message or the whole body is too large"},
    422: {"model": ErrorBody, "description": "A field is not acceptable"},
    502: {"model": ErrorBody, "description": "The responder failed, or a broker answered what is not understood"},
    503: {"model": ErrorBody, "description": "None of the messages could be stored now"},
}


@router.post(
    "/topics/{domain}/{tenant}/{namespace}/{topic}",
    summary="Publish messages",
    responses=_answers,
    openapi_extra=bodies_schema(),
)
async def publish(
    request: Request, services: ServicesDep, topic: TopicInUrl, query: Annotated[PublishQuery, Query()]
) -> Response:
    """Publish one or several messages to an existing topic.

    A body may also be one raw message (`application/octet-stream`, `text/plain`), one message for each line
    (`application/x-ndjson`), or CloudEvents 1.0 in structured, batched or binary mode.

    Messages with the same key are stored in the order of the request. `errorCode` 0 means that the message is durable
    on the ack quorum, 1 that the outcome is unknown and the message may be sent again, 2 that it was refused.
    The status is 200 when at least one message was stored, otherwise the status of the first failure.

    With `reply` the one message is a request, and the answer is what a responder makes of it. Status 502 says that the
    responder failed, 504 that there was no reply in time; the request may be carried out nevertheless. The events of a
    stream have the JSON of one part each; `event: end` follows the last, `event: error` says why there is none.
    """
    return await _publish(request, services, str(topic), query)


@router.post(
    "/topics/{domain}/{tenant}/{namespace}/{topic}/partitions/{partition}",
    summary="Publish messages to one partition",
    responses=_answers,
    openapi_extra=bodies_schema(),
)
async def publish_to_partition(
    request: Request,
    services: ServicesDep,
    topic: TopicInUrl,
    partition: Annotated[int, Path(ge=0, description="Number of the partition, from 0")],
    query: Annotated[PublishQuery, Query()],
) -> Response:
    """Publish messages to one partition of a partitioned topic. Keys do not change the partition."""
    return await _publish(request, services, str(partition_of(topic, partition)), query)


async def _publish(request: Request, services: Services, topic: str, query: PublishQuery) -> Response:
    headers = request.headers
    form = form_of(headers)
    raw = await read_body(request, services.config.request_bytes_max, () if form is None else MEDIA_TYPES)
    has_schema = query.valueSchema or b"Schema" in raw or b"\\u" in raw  # the name may be written with escapes
    if len(raw) <= SMALL_BODY_BYTES and not has_schema:
        given = unpacked(form, headers, query, raw)
    else:
        if form not in (None, BYTES, TEXT):
            await check_values(raw)
        given = await asyncio.to_thread(unpacked, form, headers, query, raw)
    del raw
    if query.reply is not None:
        return reply_to(services, topic, given, query.replyTimeoutMs, takes_stream=query.reply == "stream")
    kind = ProducerKind(given.producer_name, query.compressionType.lower(), given.schema)
    async with services.producers.lease(services.caller, topic, kind) as producer:
        outcomes = await _send(producer, given.messages)
    if any(isinstance(item, _PRODUCER_CLOSED) for item in outcomes):
        await services.producers.drop(topic)  # the next request opens another, or fails with the reason
    if len(outcomes) <= MESSAGES_IN_TURN:
        return _answer(services, given.messages, outcomes)
    return await asyncio.to_thread(_answer, services, given.messages, outcomes)


async def _send(producer: ProducerPort, messages: list[OutboundMessage]) -> list[MessageId | BaseException]:
    """Pass all messages to the producer in order, then wait for all outcomes."""
    sending: list[asyncio.Future[MessageId]] = []
    for number, message in enumerate(messages, 1):
        if number % MESSAGES_IN_TURN == 0:
            await asyncio.sleep(0)
        try:
            future = await producer.enqueue(
                message.payload,
                key=message.key,
                properties=message.properties,
                event_time_ms=message.event_time_ms,
                deliver_at=message.deliver_at,
            )
        except HeliographError as error:
            future = asyncio.get_running_loop().create_future()
            future.set_exception(error)
        sending.append(future)
    return await asyncio.gather(*sending, return_exceptions=True)


def _answer(services: Services, messages: list[OutboundMessage], outcomes: list[MessageId | BaseException]) -> Response:
    stored = [
        len(sent.payload or b"") for sent, item in zip(messages, outcomes, strict=True) if isinstance(item, MessageId)
    ]
    services.metrics.produced(REST, len(stored), sum(stored))
    services.metrics.failed(REST, len(outcomes) - len(stored))
    answer: dict[str, Any] = {"messagePublishResults": [_result(item) for item in outcomes], "schemaVersion": 0}
    status = 200
    first = next((item for item in outcomes if isinstance(item, BaseException)), None)
    if first is not None and not stored:
        status = row_of(first).http
        answer = {**body_of(first), **answer}
    return Response(json.dumps(answer), status_code=status, media_type="application/json")


def _result(outcome: MessageId | BaseException) -> dict[str, Any]:
    if isinstance(outcome, MessageId):
        return {
            "messageId": f"{outcome.ledger_id}:{outcome.entry_id}:{outcome.partition}",
            "messageIdBase64": id_text(outcome),
            "errorCode": STORED,
            "schemaVersion": 0,
        }
    if not isinstance(outcome, HeliographError):
        raise outcome  # a fault of the gateway: answer 500 and log it
    code = REFUSED if outcome.advice is Advice.STOP else TRY_AGAIN
    return {"errorCode": code, "errorMsg": reason_of(outcome), "schemaVersion": 0}
