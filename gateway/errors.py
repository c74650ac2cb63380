"""The table that maps each error class of our tree to an HTTP status and a WebSocket close code.

A class that is not in the table has the row of its nearest ancestor; the root's row depends on the advice.
Every HTTP error body has one form::

    {"reason": "...", "advice": "retry" | "refresh" | "stop", "field": "..."?, "limit": "..."?}

Pulsar's tools show ``reason``. ``field`` names the offending input, ``limit`` the limit that was broken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from heliograph.base import errors as tree
from heliograph.base.errors import Advice, HeliographError

CHALLENGE = 'Bearer realm="heliograph"'


class TooManySessionsError(HeliographError):
    """The gateway has reached its limit of sessions of this kind; nothing was done."""

    advice = Advice.RETRY


class MethodNotAllowedError(HeliographError):
    """The operation does not exist for this kind of topic."""


class PreconditionError(tree.BadRequestError):
    """The request is well-formed and contradicts the present state."""


class UnacceptableFieldError(tree.BadRequestError):
    """The JSON or query is well-formed, and a value is not acceptable for its field."""


class TooManyRequestsError(HeliographError):
    """The caller has reached the limit of one caller; nothing was done."""

    advice = Advice.RETRY
    retry_after_seconds = 1


class TooMuchHeldError(HeliographError):
    """The gateway holds as many unfinished bodies as it may; nothing was done."""

    advice = Advice.RETRY


class MediaTypeError(tree.BadRequestError):
    """The body is not called JSON by its media type."""


class WrongHostError(tree.BadRequestError):
    """The request names a host that is not this gateway."""


class ForeignOriginError(tree.NotPermittedError):
    """The request is of a web page of another origin."""


@dataclass(frozen=True, slots=True)
class ErrorRow:
    """The statuses of one error class.

    Args:
        http: the status of a plain HTTP answer.
        upgrade: the status that refuses a WebSocket upgrade, as Pulsar's proxy does.
        close: the close code that ends a running WebSocket session.
    """

    http: int
    upgrade: int
    close: int


# Close codes of RFC 6455: 1008 policy violation (the peer's error), 1011 internal error, 1013 try again later.
_ROWS: dict[type[HeliographError], ErrorRow] = {
    tree.BadRequestError: ErrorRow(400, 400, 1008),
    tree.InvalidTopicNameError: ErrorRow(412, 400, 1008),
    tree.InvalidQuorumError: ErrorRow(412, 400, 1008),
    tree.MessageTooLargeError: ErrorRow(413, 413, 1009),
    UnacceptableFieldError: ErrorRow(422, 400, 1008),
    PreconditionError: ErrorRow(412, 412, 1008),
    MediaTypeError: ErrorRow(415, 415, 1008),
    WrongHostError: ErrorRow(421, 421, 1008),
    MethodNotAllowedError: ErrorRow(405, 405, 1008),
    tree.NotFoundError: ErrorRow(404, 404, 1008),
    tree.ClusterNotFoundError: ErrorRow(503, 503, 1013),
    tree.ConflictError: ErrorRow(409, 409, 1008),
    tree.TopicBusyError: ErrorRow(412, 409, 1008),
    tree.TopicTerminatedError: ErrorRow(409, 503, 1008),
    tree.NotPermittedError: ErrorRow(403, 403, 1008),
    tree.AuthenticationError: ErrorRow(401, 401, 1008),
    tree.ProtocolError: ErrorRow(502, 502, 1011),
    tree.RequestFailedError: ErrorRow(502, 502, 1011),
    tree.QuotaExceededError: ErrorRow(503, 503, 1013),
    tree.UnsupportedError: ErrorRow(501, 501, 1008),
    tree.PolicyLimitError: ErrorRow(412, 412, 1008),
    tree.ServiceNotReadyError: ErrorRow(503, 503, 1013),
    tree.ConnectionLostError: ErrorRow(503, 503, 1013),
    tree.PersistenceError: ErrorRow(503, 503, 1013),
    tree.TooFewBookiesError: ErrorRow(503, 503, 1013),
    tree.StorageFullError: ErrorRow(507, 503, 1013),
    tree.ChecksumError: ErrorRow(503, 503, 1013),
    tree.RequestTimeoutError: ErrorRow(504, 504, 1013),
    tree.AlreadyClosedError: ErrorRow(503, 503, 1013),
    TooManySessionsError: ErrorRow(429, 429, 1013),
    TooManyRequestsError: ErrorRow(429, 429, 1013),
    TooMuchHeldError: ErrorRow(503, 503, 1013),
}
_RETRYABLE = ErrorRow(503, 503, 1013)
_INTERNAL = ErrorRow(500, 500, 1011)


def row_of(error: BaseException) -> ErrorRow:
    """Return the row of an error; 500 and 1011 for any error outside our tree."""
    for kind in type(error).__mro__:
        row = _ROWS.get(kind)
        if row is not None:
            return row
    if isinstance(error, HeliographError) and error.advice is not Advice.STOP:
        return _RETRYABLE
    return _INTERNAL


def headers_of(error: BaseException) -> dict[str, str]:
    """Return the headers of an error's answer: when to try again, or by what to say who one is."""
    status = row_of(error).http
    if status == 429 or isinstance(error, TooMuchHeldError):
        return {"Retry-After": str(getattr(error, "retry_after_seconds", 1))}
    if status == 401:
        return {"WWW-Authenticate": CHALLENGE}
    return {}


async def refuse_early(error: HeliographError, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a request or an upgrade, which no route has seen, with the status and the body of an error."""
    row = row_of(error)
    if scope["type"] == "websocket":
        answer = JSONResponse(body_of(error), status_code=row.upgrade, headers=headers_of(error))
        await WebSocket(scope, receive, send).send_denial_response(answer)
    else:
        await JSONResponse(body_of(error), status_code=row.http, headers=headers_of(error))(scope, receive, send)


def body_of(error: BaseException) -> dict[str, Any]:
    """Return the JSON body of an error. The body of an error outside our tree shows no internals."""
    if not isinstance(error, HeliographError):
        return {"reason": "internal error, see the gateway's log", "advice": Advice.STOP.value}
    body: dict[str, Any] = {"reason": reason_of(error), "advice": error.advice.value}
    if error.field is not None:
        body["field"] = error.field
    if error.limit is not None:
        body["limit"] = error.limit
    return body


def reason_of(error: BaseException) -> str:
    return str(error) or type(error).__name__


def validation_body(problems: Sequence[Any]) -> tuple[int, dict[str, Any]]:
    """Return status and body for the problems that the framework found in a request's parameters.

    Args:
        problems: from ``RequestValidationError.errors()``, each with ``loc``, ``msg`` and ``type``.
    """
    first = problems[0]
    field = ".".join(str(part) for part in first["loc"][1:]) or str(first["loc"][0])
    reason = f"{field}: {first['msg']}"
    return 422, {"reason": reason, "advice": Advice.STOP.value, "field": field}
