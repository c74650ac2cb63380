"""The numbers of ZooKeeper's client protocol: operations, errors, special request ids, events, permissions."""

from __future__ import annotations

import enum

from heliograph.base.errors import BadRequestError, HeliographError, UnsupportedError
from heliograph.metadata.errors import (
    BadVersionError,
    InvalidPathError,
    MetadataError,
    MetadataProtocolError,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    SessionExpiredError,
    ValueTooLargeError,
)
from heliograph.metadata.store import EventType


class OpCode(enum.IntEnum):
    """The operation of a request."""

    ERROR = -1  # in answers to multi: the operation failed
    CLOSE_SESSION = -11
    CREATE = 1
    DELETE = 2
    EXISTS = 3
    GET_DATA = 4
    SET_DATA = 5
    GET_ACL = 6
    SET_ACL = 7
    GET_CHILDREN = 8
    SYNC = 9
    PING = 11
    GET_CHILDREN2 = 12
    CHECK = 13
    MULTI = 14
    CREATE2 = 15
    RECONFIG = 16
    CHECK_WATCHES = 17
    REMOVE_WATCHES = 18
    CREATE_CONTAINER = 19
    DELETE_CONTAINER = 20
    CREATE_TTL = 21
    MULTI_READ = 22
    AUTH = 100
    SET_WATCHES = 101
    SASL = 102
    GET_EPHEMERALS = 103
    GET_ALL_CHILDREN_NUMBER = 104
    SET_WATCHES2 = 105
    ADD_WATCH = 106
    WHO_AM_I = 107


class ErrorCode(enum.IntEnum):
    """The error in the answer to a failed request."""

    OK = 0
    SYSTEM_ERROR = -1
    RUNTIME_INCONSISTENCY = -2
    CONNECTION_LOSS = -4
    MARSHALLING_ERROR = -5
    UNIMPLEMENTED = -6
    BAD_ARGUMENTS = -8
    NO_NODE = -101
    NO_AUTH = -102
    BAD_VERSION = -103
    NO_CHILDREN_FOR_EPHEMERALS = -108
    NODE_EXISTS = -110
    NOT_EMPTY = -111
    SESSION_EXPIRED = -112
    INVALID_ACL = -114
    AUTH_FAILED = -115
    NO_WATCHER = -121
    RECONFIG_DISABLED = -123
    SESSION_CLOSED_REQUIRE_AUTH = -124  # SESSIONCLOSEDREQUIRESASLAUTH, of any scheme since 3.7
    QUOTA_EXCEEDED = -125


class WireError(MetadataError):
    """An error to answer with ``code``; the message is for the log."""

    def __init__(self, message: str = "", code: ErrorCode = ErrorCode.SYSTEM_ERROR) -> None:
        super().__init__(message)
        self.code = code


_CODES: dict[type[HeliographError], ErrorCode] = {
    NoNodeError: ErrorCode.NO_NODE,
    NodeExistsError: ErrorCode.NODE_EXISTS,
    BadVersionError: ErrorCode.BAD_VERSION,
    NotEmptyError: ErrorCode.NOT_EMPTY,
    NoChildrenForEphemeralsError: ErrorCode.NO_CHILDREN_FOR_EPHEMERALS,
    InvalidPathError: ErrorCode.BAD_ARGUMENTS,
    ValueTooLargeError: ErrorCode.BAD_ARGUMENTS,
    BadRequestError: ErrorCode.BAD_ARGUMENTS,
    SessionExpiredError: ErrorCode.SESSION_EXPIRED,
    MetadataProtocolError: ErrorCode.MARSHALLING_ERROR,
    UnsupportedError: ErrorCode.UNIMPLEMENTED,
}


def code_of(error: HeliographError) -> ErrorCode:
    """Return the code that reports ``error`` to a client."""
    if isinstance(error, WireError):
        return error.code
    for kind in type(error).__mro__:
        if kind in _CODES:
            return _CODES[kind]
    return ErrorCode.SYSTEM_ERROR


XID_EVENT = -1
XID_PING = -2
XID_AUTH = -4
XID_SET_WATCHES = -8
NO_ZXID = -1  # in the header of an event

EVENT_CODES = {EventType.CREATED: 1, EventType.DELETED: 2, EventType.CHANGED: 3, EventType.CHILD: 4}
STATE_CONNECTED = 3  # of the session, in an event


class Permission(enum.IntFlag):
    """The permissions of an entry of an ACL."""

    READ = 1
    WRITE = 2
    CREATE = 4
    DELETE = 8
    ADMIN = 16
    ALL = 31


class CreateFlags(enum.IntEnum):
    """The kind of node that a create request requests."""

    PERSISTENT = 0
    EPHEMERAL = 1
    PERSISTENT_SEQUENTIAL = 2
    EPHEMERAL_SEQUENTIAL = 3
    CONTAINER = 4
    TTL = 5
    TTL_SEQUENTIAL = 6


class WatcherType(enum.IntEnum):
    """The watches that checkWatches and removeWatches concern."""

    CHILDREN = 1
    DATA = 2
    ANY = 3
    PERSISTENT = 4
    PERSISTENT_RECURSIVE = 5


class AddWatchMode(enum.IntEnum):
    """The kinds of persistent watches."""

    PERSISTENT = 0
    PERSISTENT_RECURSIVE = 1
