"""The bodies of requests and answers as pydantic models, and the errors of their validation.

Unknown fields are ignored, as in Pulsar. Field names are Pulsar's, in camel case.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, Field, PlainValidator, ValidationError, ValidationInfo
from starlette.requests import Request
from starlette.types import Receive

from heliograph.base.errors import MalformedJsonError, MessageTooLargeError, UnsupportedError
from heliograph.base.guard.json_text import parse_json
from heliograph.gateway.errors import MediaTypeError, UnacceptableFieldError

JSON = "application/json"
REQUEST_MESSAGES_MAX = 10_000
SMALL_BODY_BYTES = 64 * 1024  # a body up to this is parsed at once: that takes less than a millisecond
VALUES_MAX = 400_000  # JSON values in one body: parsing so many takes some 50 ms, in which nothing else runs
_TOKENS_IN_TURN = 20_000  # counted before other requests have a turn
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[,{\[]', re.DOTALL)
_QUOTE = ord('"')
ADMIN_BODY_BYTES_MAX = 64 * 1024
ADMIN_VALUES_MAX = 20_000  # of one body; a definition of a schema is one value
_LIMITS = {  # by pydantic's type of problem
    "greater_than_equal": ">= {ge}",
    "greater_than": "> {gt}",
    "less_than_equal": "<= {le}",
    "less_than": "< {lt}",
    "too_short": "at least {min_length} items",
    "too_long": "at most {max_length} items",
    "string_too_long": "at most {max_length} characters",
}

M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")


class ProduceMessage(BaseModel):
    """One message to publish: exactly one of ``payload`` (text, or null) and ``payloadBase64`` (any bytes)."""

    payload: str | None = Field(
        default=None, description="The payload as text, stored as UTF-8; null is a null value, which deletes its key"
    )
    payloadBase64: str | None = Field(default=None, description="The payload as base64, for bytes that are not text")
    key: str | None = Field(default=None, description="Routing and ordering key")
    properties: dict[str, str] | None = Field(default=None, description="The user's properties")
    eventTime: int | None = Field(
        default=None,
        ge=0,
        lt=1 << 63,
        description="Event time in milliseconds since the epoch; a number or a number in text",
    )
    sequenceId: int | None = Field(default=None, description="Accepted and ignored")
    replicationClusters: list[str] | None = Field(default=None, description="Must be empty: one cluster only")
    disableReplication: bool | None = Field(default=None, description="Accepted: there is one cluster only")
    deliverAt: int | None = Field(
        default=None,
        ge=0,
        lt=1 << 63,
        description="Shared subscriptions do not deliver the message before this time, milliseconds since the epoch",
    )
    deliverAfterMs: int | None = Field(
        default=None, ge=0, lt=1 << 53, description="Delay of the delivery in milliseconds; not together with deliverAt"
    )


class ProduceRequest(BaseModel):
    """Messages to publish, in this order."""

    messages: list[ProduceMessage] = Field(
        description="At least one message", min_length=1, max_length=REQUEST_MESSAGES_MAX
    )
    producerName: str | None = Field(
        default=None, description="Name of the producer; the broker chooses one when absent"
    )
    keySchema: str | None = Field(default=None, description="Not supported yet")
    valueSchema: str | None = Field(
        default=None,
        description="JSON of a SchemaInfo of type STRING, JSON, AVRO or BYTES, which is registered; payloads fit it",
    )
    schemaVersion: int | None = Field(default=None, description="Accepted and ignored")


class PublishResult(BaseModel):
    """The outcome of one message. ``errorCode``: 0 stored, 1 try again, 2 refused."""

    messageId: str | None = Field(default=None, description="ledger:entry:partition")
    messageIdBase64: str | None = Field(
        default=None, description="The id as WebSocket sessions and REST consume use it"
    )
    errorCode: int = 0
    errorMsg: str | None = None
    schemaVersion: int = 0


class ProduceAnswer(BaseModel):
    """One result for each message, in the request's order."""

    messagePublishResults: list[PublishResult]
    schemaVersion: int = 0


class ReplyAnswer(BaseModel):
    """The reply to a request, or a part of one."""

    payload: str | None = Field(description="The reply as text; null when it is not UTF-8, and when there is no value")
    payloadBase64: str | None = Field(description="The reply as base64; null when there is no value")


class SubmitRequest(BaseModel):
    """A call of a task."""

    task: str = Field(min_length=1, description="Name of the task in its queue: the function's, unless it says another")
    args: list[Any] = Field(default=[], description="The positional arguments")
    kwargs: dict[str, Any] = Field(default={}, description="The named arguments")
    id: str | None = Field(
        default=None, min_length=1, max_length=256, description="The same id again is the same job; absent: a new one"
    )
    key: str | None = Field(default=None, description="Jobs with the same key run `per_key` at a time")
    delayMs: int = Field(default=0, ge=0, lt=1 << 53, description="Time before it may begin, in milliseconds")


class SubmitAnswer(BaseModel):
    """The job that was submitted."""

    id: str


class JobBody(BaseModel):
    """The state of a job; one that no worker has begun has its id and `PENDING`."""

    id: str
    state: str = Field(description="`PENDING`, `STARTED`, `RETRY`, `SUCCESS`, `FAILURE` or `REVOKED`")
    task: str | None = None
    attempt: int | None = Field(default=None, description="Number of the last attempt, from 1")
    worker: str | None = None
    at: str | None = Field(default=None, description="When the state was written; ISO-8601, UTC")
    key: str | None = None
    parent: str | None = Field(default=None, description="Id of the job that submitted it")
    progress: float | None = Field(default=None, description="Share of the work that is done, from 0 to 1")
    note: str | None = Field(default=None, description="What the function said, or of a failure the error")
    result: Any = Field(default=None, description="The result, if it is JSON")
    resultBase64: str | None = Field(default=None, description="The result, if it is not JSON")


class JobsAnswer(BaseModel):
    """How many jobs are in which state, and the newest."""

    states: dict[str, int]
    jobs: list[JobBody]


class CancelAnswer(BaseModel):
    """Whether the job is revoked now; a worker that ends it at that moment may store a result nevertheless."""

    revoked: bool


class ConsumedMessage(BaseModel):
    """One message delivered over REST."""

    messageId: str = Field(description="The id as base64; send it back to acknowledge")
    payload: str | None = Field(description="The payload as text; null when it is not UTF-8, and for a null value")
    payloadBase64: str = Field(description="The payload as base64, always; empty for a null value")
    key: str | None = None
    properties: dict[str, str]
    publishTime: str = Field(description="ISO-8601, UTC")
    eventTime: str | None = Field(default=None, description="ISO-8601, UTC")
    redeliveryCount: int
    topic: str


class ConsumeAnswer(BaseModel):
    """The delivered messages; empty when none arrived in time."""

    messages: list[ConsumedMessage]


class AckRequest(BaseModel):
    """The ids of messages to acknowledge or to deliver again."""

    messageIds: Annotated[list[str], Field(min_length=1, max_length=10_000, description="base64 message ids")]
    cumulative: bool = Field(
        default=False, description="Acknowledge everything up to and including the id (not on shared subscriptions)"
    )


class AckAnswer(BaseModel):
    """The number of ids whose acknowledgement is durable."""

    acknowledged: int


class NackAnswer(BaseModel):
    """The number of messages that will be delivered again."""

    redelivered: int


class ErrorBody(BaseModel):
    """The body of every error."""

    reason: str
    advice: str = Field(description="retry, refresh or stop")
    field: str | None = None
    limit: str | None = None


async def until_left(receive: Receive) -> None:
    """Return once the caller of a request, whose body was read, is gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def read_body(request: Request, limit_bytes: int, media_types: Sequence[str] = (JSON,)) -> bytes:
    """Return the request's body; never buffer more than the limit.

    Args:
        media_types: media types that the body may have; ``application/...+json`` is JSON. Empty: any.

    Raises:
        MediaTypeError: there is a body, and it is called something else.
        MessageTooLargeError: the body is larger; it was not read to its end.
    """
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and int(announced) > limit_bytes:
        raise _too_large(limit_bytes)
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        if chunk and not size and media_types:
            _check_media_type(request.headers, media_types)
        size += len(chunk)
        if size > limit_bytes:
            raise _too_large(limit_bytes)
        chunks.append(chunk)
    return b"".join(chunks)


def media_type_of(headers: Mapping[str, str]) -> str:
    """Return the media type of a body, without parameters; empty if it has none."""
    return headers.get("content-type", "").partition(";")[0].strip().lower()


def _check_media_type(headers: Mapping[str, str], wanted: Sequence[str]) -> None:
    """Refuse media types that a web page's form can send without a preflight, unless a route wants them."""
    media_type = media_type_of(headers)
    is_json = media_type.startswith("application/") and media_type.endswith("+json")
    if media_type not in wanted and not (is_json and JSON in wanted):
        given = headers.get("content-type", "")
        shown = f"Content-Type {given[:100]!r} is not taken" if given else "the body has no Content-Type"
        types = ", ".join(wanted)
        raise MediaTypeError(f"{shown}: send {types}", field="Content-Type", limit=types)


def too_many_messages(field: str) -> MessageTooLargeError:
    return MessageTooLargeError(
        f"the request has more than {REQUEST_MESSAGES_MAX} messages: send fewer at once",
        field=field,
        limit=f"{REQUEST_MESSAGES_MAX} messages",
    )


def parsed(model: type[M], body: bytes) -> M:
    """Return a body as a model.

    Raises:
        MalformedJsonError: the body is not JSON.
        UnacceptableFieldError: a field is not acceptable; names the first one.
    """
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_context=False, include_input=False)[0]
        if problem["type"] == "too_long" and problem["loc"] == ("messages",):
            raise too_many_messages("messages") from error
        if problem["type"] == "json_invalid":
            raise MalformedJsonError(f"the body is not JSON: {problem['msg']}", field="body") from error
        raise refusal(error) from error


async def check_values(body: bytes) -> None:
    """Check that a large body has no more values than can be parsed without keeping others waiting.

    A few bytes make a value, and parsers take them all before they look at one, without giving others a turn.

    Raises:
        MessageTooLargeError: it has more.
    """
    if body.count(b",") + body.count(b"{") + body.count(b"[") <= VALUES_MAX:  # fast, and right for most bodies
        return
    values = 0
    for number, token in enumerate(_TOKEN.finditer(body)):
        values += body[token.start()] != _QUOTE
        if values > VALUES_MAX:
            raise MessageTooLargeError(
                f"the body has more than {VALUES_MAX} JSON values: send fewer messages at once",
                field="body",
                limit=f"{VALUES_MAX} values",
            )
        if number % _TOKENS_IN_TURN == 0:
            await asyncio.sleep(0)


def refusal(error: ValidationError) -> UnacceptableFieldError:
    """Return the error of our tree that names the first field that is not acceptable, and the limit that it broke."""
    problem = error.errors(include_url=False, include_input=False)[0]
    field = ".".join(str(part) for part in problem["loc"]) or "body"
    limit = _LIMITS.get(problem["type"])
    reason = problem["msg"].removeprefix("Value error, ")
    if limit is not None:
        limit = limit.format(**problem["ctx"])
    return UnacceptableFieldError(f"{field}: {reason}", field=field, limit=limit)


def refused(why: str, *harmless: str) -> PlainValidator:
    """Return the validator of a field that would change the outcome and is not supported.

    Every value but an empty one and the harmless ones raises UnsupportedError with the field's name and the reason.
    """

    def check(value: object, info: ValidationInfo) -> None:
        if value and value not in harmless:
            raise UnsupportedError(f"{info.field_name} is not supported: {why}", field=info.field_name)

    return PlainValidator(check)


def body_schema(model: type[BaseModel]) -> dict[str, Any]:
    """Return the ``openapi_extra`` of a route that parses its body itself; nested models are written in place."""
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
        f"the request's body has more than {limit_bytes} bytes: send fewer messages at once",
        field="body",
        limit=f"{limit_bytes} bytes",
    )


async def json_body(request: Request, limit_bytes: int = ADMIN_BODY_BYTES_MAX) -> Any:
    """Return the body as JSON, None when it is empty.

    Raises:
        MessageTooLargeError: the body is larger; it was not read to its end.
        MalformedJsonError: the body is not JSON, or above a limit of ``parse_json``.
    """
    body = await read_body(request, limit_bytes)
    if not body.strip():
        return None
    return await aside(len(body), partial(parse_json, body, "the body", "body", values_max=ADMIN_VALUES_MAX))


async def aside(size: int, work: Callable[[], T]) -> T:
    """Return the result of ``work`` on ``size`` bytes; it runs on a thread if these are many."""
    return work() if size <= SMALL_BODY_BYTES else await asyncio.to_thread(work)
