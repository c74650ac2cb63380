"""Errors of gRPC and etcd -> the errors of this project. No I/O."""

from __future__ import annotations

import grpc

from heliograph.base.errors import HeliographError, NotPermittedError, ResourceError
from heliograph.metadata.backends.etcd.wire.limits import OPERATIONS_MAX
from heliograph.metadata.errors import (
    ConnectionLossError,
    MetadataProtocolError,
    SessionExpiredError,
    ValueTooLargeError,
)

_Code = grpc.StatusCode
_LOST = {_Code.UNAVAILABLE, _Code.DEADLINE_EXCEEDED, _Code.CANCELLED, _Code.UNKNOWN, _Code.INTERNAL, _Code.ABORTED}
_STALE = ("invalid auth token", "revision of auth store is old")
_REFUSED = ("authentication failed", "user name is empty", "user name not found", "role not found")


class CompactedError(HeliographError):
    """The requested revision is compacted. Caught inside this package."""


class StaleTokenError(HeliographError):
    """The user's token is no longer valid. Caught inside this package."""


def translated(error: grpc.RpcError, endpoint: str) -> HeliographError:
    """Return our error for a failed call. ConnectionLossError: the outcome is unknown."""
    code, details = _code_and_details(error)
    said = f"etcd at {endpoint}: {details or code.name.lower()}"
    if code is _Code.UNAUTHENTICATED or any(words in details for words in _STALE):
        return StaleTokenError(said)
    if code is _Code.PERMISSION_DENIED or any(words in details for words in _REFUSED):
        return NotPermittedError(f"{said} (user and password of the etcd URL, or the user's role)", field="url")
    if code in _LOST:
        return ConnectionLossError(said)
    if code is _Code.OUT_OF_RANGE and "compacted" in details:
        return CompactedError(said)
    if code is _Code.NOT_FOUND and "lease" in details:
        return SessionExpiredError(said)
    if "space exceeded" in details:
        return ResourceError(f"{said}: compact and defragment it, then disarm its alarm")
    if "too many operations" in details:
        return ValueTooLargeError(
            f"{said}: raise its --max-txn-ops, or do less at once",
            field="operations",
            limit=f"{OPERATIONS_MAX} keys by etcd's default",
        )
    if "too large" in details or "larger than max" in details:
        return ValueTooLargeError(
            f"{said}: raise its --max-request-bytes, or do less at once", field="value", limit="etcd's request size"
        )
    if code is _Code.RESOURCE_EXHAUSTED:
        return ConnectionLossError(said)  # "too many requests": it was not even tried
    return MetadataProtocolError(said)


def has_no_users(error: grpc.RpcError) -> bool:
    """Return whether etcd says that its authentication is off."""
    return "authentication is not enabled" in _code_and_details(error)[1]


def _code_and_details(error: grpc.RpcError) -> tuple[grpc.StatusCode, str]:
    code = error.code() if isinstance(error, grpc.Call) else _Code.UNKNOWN
    details = error.details() if isinstance(error, grpc.Call) else str(error)
    return code or _Code.UNKNOWN, details or ""
