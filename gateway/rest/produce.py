"""REST produce as in Pulsar: several messages in one request, one result for each."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query
from starlette.requests import Request
from starlette.responses import Response

from heliograph.base.errors import (
    Advice,
    AlreadyClosedError,
    BadRequestError,
    ConflictError,
    HeliographError,
    MessageTooLargeError,
    NotFoundError,
    UnsupportedError,
)
from heliograph.gateway.errors import body_of, reason_of, row_of
from heliograph.gateway.http.metrics import REST
from heliograph.gateway.ports import ProducerPort
from heliograph.gateway.services import Services, ServicesDep
from heliograph.gateway.sessions.producers import ProducerKind
from heliograph.gateway.shapes.bodies import (
    SMALL_BODY_BYTES,
    ErrorBody,
    ProduceAnswer,
    ProduceMessage,
    ProduceRequest,
    body_schema,
    check_values,
    parsed,
    read_body,
)
from heliograph.gateway.shapes.json_forms import due_ms, from_base64, id_text
from heliograph.gateway.shapes.topics import TopicInUrl, partition_of
from heliograph.gateway.shapes.value_schema import ValueSchema, value_schema
from heliograph.protocol.message_id import MessageId

STORED, TRY_AGAIN, REFUSED = 0, 1, 2  # PublishResult.errorCode
MESSAGES_IN_TURN = 256  # passed to the producer before other requests have a turn
_PRODUCER_CLOSED = (AlreadyClosedError, ConflictError, NotFoundError)

CompressionType = Annotated[
    Literal["NONE", "LZ4", "ZLIB", "ZSTD", "SNAPPY"], Query(description="How the entries are compressed when stored")
]

router = APIRouter(tags=["produce"])
_answers: dict[int | str, dict[str, Any]] = {
    200: {"model": ProduceAnswer},
    400: {"model": ErrorBody, "description": "Malformed JSON or base64"},
    404: {"model": ErrorBody, "description": "The topic does not exist; publishing does not create it"},
    413: {"model": ErrorBody, "description": "A message or the whole body is too large"},
    422: {"model": ErrorBody, "description": "A field is not acceptable"},
    503: {"model": ErrorBody, "description": "None of the messages could be stored now"},
}


@router.post(
    "/topics/{domain}/{tenant}/{namespace}/{topic}",
    summary="Publish messages",
    responses=_answers,
    openapi_extra=body_schema(ProduceRequest),
)
async def publish(
    request: Request, services: ServicesDep, topic: TopicInUrl, compressionType: CompressionType = "NONE"
) -> Response:
    """Publish one or several messages to an existing topic.

    Messages with the same key are stored in the order of the request. `errorCode` 0 means that the message is durable
    on the ack quorum, 1 that the outcome is unknown and the message may be sent again, 2 that it was refused.
    The status is 200 when at least one message was stored, otherwise the status of the first failure.
    """
    return await _publish(request, services, str(topic), compressionType)


@router.post(
    "/topics/{domain}/{tenant}/{namespace}/{topic}/partitions/{partition}",
    summary="Publish messages to one partition",
    responses=_answers,
    openapi_extra=body_schema(ProduceRequest),
)
async def publish_to_partition(
    request: Request,
    services: ServicesDep,
    topic: TopicInUrl,
    partition: Annotated[int, Path(ge=0, description="Number of the partition, from 0")],
    compressionType: CompressionType = "NONE",
) -> Response:
    """Publish messages to one partition of a partitioned topic. Keys do not change the partition."""
    return await _publish(request, services, str(partition_of(topic, partition)), compressionType)


async def _publish(request: Request, services: Services, topic: str, codec: CompressionType) -> Response:
    raw = await read_body(request, services.config.request_bytes_max)
    limit = services.config.max_message_bytes
    if len(raw) <= SMALL_BODY_BYTES:
        body, schema, payloads = _unpacked(raw, limit)
    else:
        await check_values(raw)
        body, schema, payloads = await asyncio.to_thread(_unpacked, raw, limit)
    del raw
    how = ProducerKind(body.producerName, codec.lower(), schema)
    async with services.producers.lease(services.caller, topic, how) as producer:
        outcomes = await _send(producer, body.messages, payloads)
    if any(isinstance(item, _PRODUCER_CLOSED) for item in outcomes):
        await services.producers.drop(topic)  # the next request opens another, or fails with the reason
    if len(outcomes) <= MESSAGES_IN_TURN:
        return _answer(services, payloads, outcomes)
    return await asyncio.to_thread(_answer, services, payloads, outcomes)


def _unpacked(raw: bytes, limit: int) -> tuple[ProduceRequest, ValueSchema | None, list[bytes]]:
    body = parsed(ProduceRequest, raw)
    if body.keySchema:
        raise UnsupportedError("key schemas are not supported: send without keySchema", field="keySchema")
    schema = value_schema(body.valueSchema)
    payloads = [_payload(message, f"messages.{index}", limit) for index, message in enumerate(body.messages)]
    if schema is not None:
        payloads = [schema.payload_of(payload, f"messages.{index}.payload") for index, payload in enumerate(payloads)]
    return body, schema, payloads


async def _send(
    producer: ProducerPort, messages: list[ProduceMessage], payloads: list[bytes]
) -> list[MessageId | BaseException]:
    """Pass all messages to the producer in order, then wait for all outcomes."""
    sending: list[asyncio.Future[MessageId]] = []
    for number, (message, payload) in enumerate(zip(messages, payloads, strict=True), 1):
        if number % MESSAGES_IN_TURN == 0:
            await asyncio.sleep(0)
        try:
            future = await producer.enqueue(
                payload,
                key=message.key,
                properties=message.properties or None,
                event_time_ms=message.eventTime,
                deliver_at=due_ms(message.deliverAt, message.deliverAfterMs),
            )
        except HeliographError as error:
            future = asyncio.get_running_loop().create_future()
            future.set_exception(error)
        sending.append(future)
    return await asyncio.gather(*sending, return_exceptions=True)


def _payload(message: ProduceMessage, where: str, limit: int) -> bytes:
    """Return the payload's bytes. Every field that is not supported is refused before anything is stored."""
    if message.deliverAt is not None and message.deliverAfterMs is not None:
        raise BadRequestError(f"{where} has deliverAt and deliverAfterMs", field=f"{where}.deliverAt")
    if message.replicationClusters:
        raise UnsupportedError(
            "replicationClusters is not supported: there is one cluster only", field=f"{where}.replicationClusters"
        )
    if (message.payload is None) == (message.payloadBase64 is None):
        raise BadRequestError(f"{where} needs payload or payloadBase64, and not both", field=f"{where}.payload")
    if message.payload is not None:
        payload = message.payload.encode()
    else:
        payload = from_base64(message.payloadBase64, f"{where}.payloadBase64")
    if len(payload) > limit:
        raise MessageTooLargeError(
            f"{where}.payload has {len(payload)} bytes, the limit is {limit}: no message of this request was stored",
            field=f"{where}.payload",
            limit=f"{limit} bytes",
        )
    return payload


def _answer(services: Services, payloads: list[bytes], outcomes: list[MessageId | BaseException]) -> Response:
    stored = [len(payload) for payload, item in zip(payloads, outcomes, strict=True) if isinstance(item, MessageId)]
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
