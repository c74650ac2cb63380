"""The table of the protocol's error codes and this program's error classes, read in both directions."""

from __future__ import annotations

from heliograph.base.errors import (
    STORAGE_FULL,
    THE_LIMIT,
    TOO_FEW_BOOKIES,
    TOO_LARGE,
    Advice,
    AlreadyClosedError,
    AuthenticationError,
    BadRequestError,
    ChecksumError,
    ConflictError,
    ConnectionLostError,
    ConsumerAssignError,
    ConsumerBusyError,
    HeliographError,
    IncompatibleSchemaError,
    InvalidTopicNameError,
    MessageTooLargeError,
    NamespaceNotFoundError,
    NotFoundError,
    NotPermittedError,
    PersistenceError,
    ProducerBusyError,
    ProducerFencedError,
    ProducerHeldError,
    ProtocolError,
    QuotaExceededError,
    RequestTimeoutError,
    ServiceNotReadyError,
    StorageFullError,
    SubscriptionExistsError,
    SubscriptionNotFoundError,
    TooFewBookiesError,
    TooManyConnectionsError,
    TopicBusyError,
    TopicNotFoundError,
    TopicTerminatedError,
    UnfinishedFrameError,
    UnsupportedError,
)
from heliograph.protocol import pulsar_pb2 as pb

# A client raises the first class of a code. A broker sends that code for all its classes.
_TABLE: tuple[tuple[pb.ServerError, tuple[type[HeliographError], ...]], ...] = (
    (pb.UNKNOWN_ERROR, (HeliographError,)),
    (pb.METADATA_ERROR, (ConflictError, TopicBusyError, SubscriptionExistsError)),
    (pb.PERSISTENCE_ERROR, (PersistenceError, StorageFullError, TooFewBookiesError)),
    (pb.AUTHENTICATION_ERROR, (AuthenticationError,)),
    (pb.AUTHORIZATION_ERROR, (NotPermittedError,)),
    (pb.CONSUMER_BUSY, (ConsumerBusyError,)),
    (pb.SERVICE_NOT_READY, (ServiceNotReadyError, ConnectionLostError, RequestTimeoutError)),
    (pb.PRODUCER_BLOCKED_QUOTA_EXCEEDED_ERROR, (ProducerHeldError,)),
    (pb.PRODUCER_BLOCKED_QUOTA_EXCEEDED_EXCEPTION, (QuotaExceededError,)),
    (pb.CHECKSUM_ERROR, (ChecksumError,)),
    (pb.UNSUPPORTED_VERSION_ERROR, (UnsupportedError,)),
    (pb.TOPIC_NOT_FOUND, (TopicNotFoundError, NamespaceNotFoundError)),
    (pb.SUBSCRIPTION_NOT_FOUND, (SubscriptionNotFoundError,)),
    (pb.CONSUMER_NOT_FOUND, (NotFoundError,)),
    (pb.TOO_MANY_REQUESTS, (QuotaExceededError, TooManyConnectionsError, UnfinishedFrameError)),
    (pb.TOPIC_TERMINATED_ERROR, (TopicTerminatedError,)),
    (pb.PRODUCER_BUSY, (ProducerBusyError,)),
    (pb.INVALID_TOPIC_NAME, (InvalidTopicNameError,)),
    (pb.INCOMPATIBLE_SCHEMA, (IncompatibleSchemaError,)),
    (pb.CONSUMER_ASSIGN_ERROR, (ConsumerAssignError,)),
    (pb.TRANSACTION_COORDINATOR_NOT_FOUND, (UnsupportedError,)),
    (pb.INVALID_TXN_STATUS, (UnsupportedError,)),
    (pb.NOT_ALLOWED_ERROR, (UnsupportedError, BadRequestError, AlreadyClosedError)),
    (pb.TRANSACTION_CONFLICT, (UnsupportedError,)),
    (pb.TRANSACTION_NOT_FOUND, (UnsupportedError,)),
    (pb.PRODUCER_FENCED, (ProducerFencedError,)),
)

_CLASS_OF_CODE: dict[int, type[HeliographError]] = {code: classes[0] for code, classes in _TABLE}
_CODE_OF_CLASS: dict[type[BaseException], pb.ServerError] = {}
for _code, _classes in _TABLE:
    for _class in _classes:
        _CODE_OF_CLASS.setdefault(_class, _code)
# The codes that a broker sends for classes that several codes have.
_CODE_OF_CLASS[UnsupportedError] = pb.NOT_ALLOWED_ERROR
_CODE_OF_CLASS[ProtocolError] = pb.UNSUPPORTED_VERSION_ERROR
_CODE_OF_CLASS[QuotaExceededError] = pb.PRODUCER_BLOCKED_QUOTA_EXCEEDED_EXCEPTION


def code_of(error: BaseException) -> pb.ServerError:
    """Return the code that a broker sends for an error: that of its class or of the nearest base class with one.

    Other errors (metadata, ledgers, bookies) are sent by what a client should do: retry and refresh become
    SERVICE_NOT_READY, so that the client looks the topic up again; the rest becomes UNKNOWN_ERROR.
    """
    for kind in type(error).__mro__:
        code = _CODE_OF_CLASS.get(kind)
        if code is not None and kind is not HeliographError:
            return code
    if isinstance(error, HeliographError) and error.advice is not Advice.STOP:
        return pb.SERVICE_NOT_READY
    return pb.UNKNOWN_ERROR


def exception_of(code: int, message: str) -> HeliographError:
    """Return the exception that a client raises for an error of a broker.

    Pulsar has no code of its own for bookies that are missing or full, nor for an entry that is too large, so these
    errors are known by the beginnings of their texts.
    """
    if code == pb.NOT_ALLOWED_ERROR and message.startswith(TOO_LARGE):
        limit = message.rpartition(THE_LIMIT)[2]
        return MessageTooLargeError(message.removeprefix(TOO_LARGE), field="payload", limit=limit)
    if code == pb.PERSISTENCE_ERROR and message.startswith(STORAGE_FULL):
        return StorageFullError(message)
    if code == pb.PERSISTENCE_ERROR and message.startswith(TOO_FEW_BOOKIES):
        return TooFewBookiesError(message)
    return _CLASS_OF_CODE.get(code, HeliographError)(message)
