"""Bodies of requests and answers as pydantic models; they never leave this package.

Unknown fields are ignored, as Pulsar does. Field names are Pulsar's, in camel case.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, Field, ValidationError
from starlette.requests import Request

from gateway.errors import MalformedJsonError, UnacceptableFieldError
from heliograph.errors import MessageTooLargeError

ADMIN_BODY_BYTES_MAX = 64 * 1024

M = TypeVar("M", bound=BaseModel)


class ProduceMessage(BaseModel):
    """One message to publish: exactly one of ``payload`` (text) and ``payloadBase64`` (any bytes)."""

    payload: str | None = Field(default=None, description="The payload as text; stored as UTF-8")
    payloadBase64: str | None = Field(default=None, description="The payload as base64, for bytes that are no text")
    key: str | None = Field(default=None, description="Routing and ordering key")
    properties: dict[str, str] | None = Field(default=None, description="The user's properties")
    eventTime: int | None = Field(
        default=None, description="When it happened, milliseconds since the epoch; a number or a number in text"
    )
    sequenceId: int | None = Field(default=None, description="Accepted and ignored")
    replicationClusters: list[str] | None = Field(default=None, description="Must be empty: one cluster only")
    disableReplication: bool | None = Field(default=None, description="Accepted: there is one cluster only")
    deliverAt: int | None = Field(
        default=None, ge=0, lt=1 << 63, description="Not before, on shared subscriptions; milliseconds since the epoch"
    )
    deliverAfterMs: int | None = Field(
        default=None, ge=0, lt=1 << 53, description="The same, from now on in milliseconds; not together with deliverAt"
    )


class ProduceRequest(BaseModel):
    """Messages to publish, in this order."""

    messages: list[ProduceMessage] = Field(description="At least one message", min_length=1)
    producerName: str | None = Field(default=None, description="Name of the producer; one is chosen when absent")
    keySchema: str | None = Field(default=None, description="Not supported yet")
    valueSchema: str | None = Field(default=None, description="JSON of a SchemaInfo; STRING, JSON and BYTES only")
    schemaVersion: int | None = Field(default=None, description="Accepted and ignored")


class PublishResult(BaseModel):
    """The fate of one message. ``errorCode``: 0 stored, 1 try again, 2 refused."""

    messageId: str | None = Field(default=None, description="ledger:entry:partition")
    messageIdBase64: str | None = Field(default=None, description="The id as WebSocket and REST consume know it")
    errorCode: int = 0
    errorMsg: str | None = None
    schemaVersion: int = 0


class ProduceAnswer(BaseModel):
    """One result for each message, in the request's order."""

    messagePublishResults: list[PublishResult]
    schemaVersion: int = 0


class ConsumedMessage(BaseModel):
    """One message handed out over REST."""

    messageId: str = Field(description="base64; give it back to acknowledge")
    payload: str | None = Field(description="The payload as text; null when it is not UTF-8")
    payloadBase64: str = Field(description="The payload as base64, always")
    key: str | None = None
    properties: dict[str, str]
    publishTime: str = Field(description="ISO-8601, UTC")
    eventTime: str | None = Field(default=None, description="ISO-8601, UTC")
    redeliveryCount: int
    topic: str


class ConsumeAnswer(BaseModel):
    """Messages handed out; none when none arrived in time."""

    messages: list[ConsumedMessage]


class AckRequest(BaseModel):
    """Message ids to acknowledge or to have delivered again."""

    messageIds: Annotated[list[str], Field(min_length=1, max_length=10_000, description="base64 message ids")]
    cumulative: bool = Field(
        default=False, description="Acknowledge everything up to and with the one id (not on shared subscriptions)"
    )


class AckAnswer(BaseModel):
    """How many ids were acknowledged, durably."""

    acknowledged: int


class NackAnswer(BaseModel):
    """How many messages will be delivered again."""

    redelivered: int


class ErrorBody(BaseModel):
    """Every error's body."""

    reason: str
    advice: str = Field(description="retry, refresh or stop")
    field: str | None = None
    limit: str | None = None


async def read_body(request: Request, limit_bytes: int) -> bytes:
    """The request's body, never holding more than the limit.

    Raises:
        MessageTooLargeError: the body is larger; it was not read to its end.
    """
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and int(announced) > limit_bytes:
        raise _too_large(limit_bytes)
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit_bytes:
            raise _too_large(limit_bytes)
        chunks.append(chunk)
    return b"".join(chunks)


def parsed(model: type[M], body: bytes) -> M:
    """A body as a model.

    Raises:
        MalformedJsonError: not JSON.
        UnacceptableFieldError: JSON that does not fit; names the first field that is off.
    """
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_context=False)[0]
        if problem["type"] == "json_invalid":
            raise MalformedJsonError(f"the body is not JSON: {problem['msg']}", field="body") from error
        field = ".".join(str(part) for part in problem["loc"]) or "body"
        raise UnacceptableFieldError(f"{field}: {problem['msg']}", field=field) from error


def body_schema(model: type[BaseModel]) -> dict[str, Any]:
    """The ``openapi_extra`` of a route that parses this body by itself; nested models are written in place."""
    schema = model.model_json_schema()
    definitions = schema.pop("$defs", {})
    return {
        "requestBody": {"required": True, "content": {"application/json": {"schema": _inline(schema, definitions)}}}
    }


def _inline(node: Any, definitions: dict[str, Any]) -> Any:
    if isinstance(node, list):
        return [_inline(item, definitions) for item in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        return _inline(definitions[node["$ref"].rsplit("/", 1)[1]], definitions)
    return {name: _inline(value, definitions) for name, value in node.items()}


def _too_large(limit_bytes: int) -> MessageTooLargeError:
    return MessageTooLargeError(
        f"the request's body is above {limit_bytes} bytes: send fewer messages at once",
        field="body",
        limit=f"{limit_bytes} bytes",
    )


async def json_body(request: Request, limit_bytes: int = ADMIN_BODY_BYTES_MAX) -> Any:
    """The body as JSON, None when it is empty.

    Raises:
        MessageTooLargeError: the body is larger; it was not read to its end.
        MalformedJsonError: not JSON, or nested too deeply to be read.
    """
    body = await read_body(request, limit_bytes)
    if not body.strip():
        return None
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise MalformedJsonError(f"the body is not JSON: {error}", field="body") from error
