"""The root of the error tree, and the errors that clients see.

Every error with a cause outside the program is a class of this tree and carries an ``advice``: what the caller should
do next. A broken promise of our own code is an ``assert`` instead, and not part of the tree.

    HeliographError
    |- BadRequestError            STOP     the input is not acceptable: names the field and the limit
    |  |- InvalidTopicNameError
    |  |- MessageTooLargeError
    |  |- InvalidQuorumError
    |  |- InvalidConfigError
    |  |- InvalidMessageIdError
    |  `- MalformedJsonError               it is not JSON, or has more depth, values or digits than may be
    |- NotFoundError              STOP
    |  |- TopicNotFoundError
    |  |- SubscriptionNotFoundError
    |  |- NamespaceNotFoundError
    |  |- DataLostError                    entries that a reader of a table wanted were deleted
    |  |- StepDroppedError                 the values of a training step were dropped
    |  |- ValueNotFoundError               a step has no value of this key
    |  `- ClusterNotFoundError             no Ray cluster, or no Heliograph in it
    |- ConflictError              STOP     something with that name or role exists already
    |  |- TopicExistsError
    |  |- SubscriptionExistsError
    |  |- ConsumerBusyError
    |  |- ConsumerAssignError              its key ranges overlap those of other consumers
    |  |- ProducerBusyError
    |  |- TopicBusyError                   still has producers, consumers or subscriptions
    |  |- ProducerFencedError
    |  |- TopicTerminatedError             the topic takes no more messages
    |  `- IncompatibleSchemaError
    |- JobFailedError             STOP     a job has failed for good; its letter has the arguments
    |- JobRevokedError            STOP     a job was cancelled
    |- RequestFailedError         STOP     the responder's function failed; the message says how
    |- ReplyInterruptedError      RETRY    a streamed answer ended on the way, or began again
    |- MayBeTwiceError            STOP     rows of a table may be stored already, by a run that is forgotten
    |- UnsupportedError           STOP     the feature is not offered
    |  |- PolicyLimitError                 a policy of the topic or namespace does not allow it
    |  |- RunningLoopError                 a blocking call on a thread whose event loop runs
    |  |- WrongLoopError                   an async handle outside the event loop that it lives in
    |  `- VersionMismatchError             a peer's version is too far from ours: names both
    |- NotPermittedError          STOP     the caller may not do this
    |  `- AuthenticationError              credentials are missing, invalid or expired
    |- ProtocolError              STOP     the peer broke the protocol; its connection is closed
    |- QuotaExceededError         RETRY    the topic's backlog or rate is at its limit; nothing was stored
    |  |- ProducerHeldError                producers must wait until consumers have caught up
    |  |- TooManyConnectionsError          the caller, or all, have as many connections as they may
    |  `- UnfinishedFrameError             a frame did not arrive in its time, or there was no room for it
    |- ChecksumError              RETRY    the bytes were damaged in transit; nothing was stored
    |- ServiceNotReadyError       REFRESH  look the topic's owner up again, then retry
    |- ConnectionLostError        RETRY    the outcome of calls in flight is unknown
    |- RequestTimeoutError        RETRY    the outcome is unknown
    |  `- ReceiveTimeoutError              no message came in time
    |- PersistenceError           RETRY    the broker could not store it; the outcome is unknown
    |  `- TooFewBookiesError               too few bookies take entries: names them, their state and the way out
    |     `- StorageFullError              the same, because disks are full: names them and their used shares
    |- AlreadyClosedError         STOP     this handle was closed
    |- ResourceError              STOP     a port, disk path or tool of this machine cannot be used
    |- MetadataError                       branch of metadata/errors.py
    |- LedgerError                         branch of actors/errors.py
    `- BookieError                         branch of actors/errors.py
"""

from __future__ import annotations

import enum
from datetime import UTC, datetime
from typing import Any, ClassVar

from typing_extensions import override

__all__ = [
    "Advice",
    "AlreadyClosedError",
    "AuthenticationError",
    "BadRequestError",
    "ChecksumError",
    "ClusterNotFoundError",
    "CompactedLostError",
    "ConflictError",
    "ConnectionLostError",
    "ConsumerAssignError",
    "ConsumerBusyError",
    "DataLostError",
    "HeliographError",
    "IncompatibleSchemaError",
    "InvalidConfigError",
    "InvalidMessageIdError",
    "InvalidQuorumError",
    "InvalidTopicNameError",
    "JobFailedError",
    "JobRevokedError",
    "MalformedJsonError",
    "MayBeTwiceError",
    "MessageTooLargeError",
    "NamespaceNotFoundError",
    "NotFoundError",
    "NotPermittedError",
    "PersistenceError",
    "PolicyLimitError",
    "ProducerBusyError",
    "ProducerFencedError",
    "ProducerHeldError",
    "ProtocolError",
    "QuotaExceededError",
    "ReceiveTimeoutError",
    "ReplyInterruptedError",
    "RequestFailedError",
    "RequestTimeoutError",
    "ResourceError",
    "RunningLoopError",
    "ServiceNotReadyError",
    "StepDroppedError",
    "StorageFullError",
    "SubscriptionExistsError",
    "SubscriptionNotFoundError",
    "TooFewBookiesError",
    "TooManyConnectionsError",
    "TopicBusyError",
    "TopicExistsError",
    "TopicNotFoundError",
    "TopicTerminatedError",
    "UnfinishedFrameError",
    "UnsupportedError",
    "ValueNotFoundError",
    "VersionMismatchError",
    "WrongLoopError",
]


STORAGE_FULL = "storage is full"  # the beginning of the text of StorageFullError
TOO_LARGE = "too large: "  # the beginning of the text of a broker's MessageTooLargeError, which ends with ...
THE_LIMIT = ", the limit is "  # ... this and the limit
TOO_FEW_BOOKIES = "too few bookies"  # the beginning of the text of TooFewBookiesError


class Advice(enum.Enum):
    """The advice to a caller after an error."""

    RETRY = "retry"  # the same call may succeed later; its outcome may be unknown
    REFRESH = "refresh"  # re-read what the call was based on, then call again
    STOP = "stop"  # the same call can never succeed


class HeliographError(Exception):
    """The root of the tree.

    Args:
        message: A sentence for a person; it says what to do if that is known.
        field: Name of the input that is not acceptable, if there is one.
        limit: The limit that was exceeded, with its unit, if there is one.
    """

    advice: ClassVar[Advice] = Advice.STOP

    def __init__(self, message: str = "", *, field: str | None = None, limit: str | None = None) -> None:
        super().__init__(message)
        self.field = field
        self.limit = limit


class BadRequestError(HeliographError):
    """The input is not acceptable; nothing was done."""


class InvalidTopicNameError(BadRequestError):
    """The topic name does not follow ``{persistent}://tenant/namespace/topic``."""


class MessageTooLargeError(BadRequestError):
    """A message is above the cluster's size limit; nothing was stored."""


class InvalidQuorumError(BadRequestError):
    """The numbers do not satisfy E >= Qw >= Qa >= 1."""


class InvalidConfigError(BadRequestError):
    """A setting is out of range or contradicts another."""


class InvalidMessageIdError(BadRequestError):
    """The bytes or text are not a message id."""


class MalformedJsonError(BadRequestError):
    """The bytes or text are not JSON, not of the kind that is wanted, or above a limit of JSON."""


class NotFoundError(HeliographError):
    """The named thing does not exist."""


class TopicNotFoundError(NotFoundError):
    """There is no such topic."""


class SubscriptionNotFoundError(NotFoundError):
    """The topic has no such subscription."""


class NamespaceNotFoundError(NotFoundError):
    """There is no such namespace."""


class StepDroppedError(NotFoundError):
    """The values of a training step were dropped, by its number or as those of an old step."""


class ValueNotFoundError(NotFoundError):
    """A training step has no value of this key: none was put, or it was cleared."""


class ClusterNotFoundError(NotFoundError):
    """No Ray cluster can be reached, or no Heliograph runs in it."""


class MayBeTwiceError(HeliographError):
    """Rows that are to be stored once may be stored already: the topic has forgotten what their query wrote.

    Args:
        topic: the full name of the topic or partition.
        query: the name of the query.
        since_ms: everything that was written after this time is known; milliseconds since 1970.
    """

    def __init__(self, topic: str, query: str, since_ms: int) -> None:
        since = datetime.fromtimestamp(since_ms / 1000, UTC).isoformat(timespec="seconds")
        super().__init__(
            f"{topic} may have rows of this batch of the query {query!r}: it knows the rows written after {since}, and "
            "another run wrote some before. Look whether they are there; on_doubt='write' writes them, perhaps again",
            field="on_doubt",
        )
        self.topic, self.query, self.since_ms = topic, query, since_ms

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.topic, self.query, self.since_ms)


class DataLostError(NotFoundError):
    """Entries between the position that a reader wanted and the oldest one that its topic still has were deleted.

    Args:
        topic: the full name of the topic or partition.
        partition: its number, -1 for a topic without partitions.
        wanted: the position (ledger id, entry id) to start at.
        oldest: the oldest position there is, None for an empty topic.
        entries: how many entries were lost, at least.
        is_exact: whether ``entries`` is the exact number.
    """

    def __init__(
        self,
        topic: str,
        partition: int,
        wanted: tuple[int, int],
        oldest: tuple[int, int] | None,
        entries: int = 0,
        is_exact: bool = False,
    ) -> None:
        count = f"{entries} entries" if is_exact else f"at least {entries} entries" if entries else "entries"
        begins = "it is empty" if oldest is None else f"it begins at {oldest[0]}:{oldest[1]}"
        super().__init__(
            f"{count} of {topic} from {wanted[0]}:{wanted[1]} on are gone, {begins}: they were deleted, or the "
            "topic was deleted and created again; on_data_loss='skip' goes on with the rest",
            field="on_data_loss",
        )
        self.topic, self.partition, self.wanted, self.oldest = topic, partition, wanted, oldest
        self.entries, self.is_exact = entries, is_exact

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        return DataLostError, (self.topic, self.partition, self.wanted, self.oldest, self.entries, self.is_exact)


class ConflictError(HeliographError):
    """The request conflicts with something that exists already."""


class TopicExistsError(ConflictError):
    """A topic of that name exists."""


class SubscriptionExistsError(ConflictError):
    """A subscription of that name exists on the topic."""


class ConsumerBusyError(ConflictError):
    """The subscription is exclusive and has a consumer already."""


class ConsumerAssignError(ConflictError):
    """The key ranges that a consumer requests overlap those of other consumers."""


class ProducerBusyError(ConflictError):
    """A producer of that name is connected."""


class TopicBusyError(ConflictError):
    """The topic still has producers, consumers or subscriptions."""


class ProducerFencedError(ConflictError):
    """Another producer took exclusive access to the topic."""


class TopicTerminatedError(ConflictError):
    """The topic was terminated; it can be read but not written."""


class IncompatibleSchemaError(ConflictError):
    """The schema is not compatible with those of the topic."""


class NotPermittedError(HeliographError):
    """The caller may not do this; nothing was done."""


class AuthenticationError(NotPermittedError):
    """The caller's credentials are missing, invalid or expired; nothing was done."""


class ProtocolError(HeliographError):
    """The peer sent bytes that break the protocol; the connection is closed."""


class QuotaExceededError(HeliographError):
    """A backlog, rate or request limit is reached; nothing was stored."""

    advice = Advice.RETRY


class ProducerHeldError(QuotaExceededError):
    """The backlog is above its quota, and producers must wait until it is not; nothing was stored."""


class TooManyConnectionsError(QuotaExceededError):
    """The caller's address or role, or all callers together, have as many connections as they may."""


class UnfinishedFrameError(QuotaExceededError):
    """A frame did not arrive in its time, or there was no room for its bytes; its connection is closed."""


class UnsupportedError(HeliographError):
    """This feature is not offered."""


class PolicyLimitError(UnsupportedError):
    """A policy of the topic or of its namespace does not allow this; nothing was done."""


class RunningLoopError(UnsupportedError, RuntimeError):
    """A blocking call was made on a thread whose event loop runs, and would stop all of it; nothing was done.

    The message names the async counterpart.
    """


class WrongLoopError(UnsupportedError, RuntimeError):
    """An async handle was used in another event loop than that in which it was opened, or in a forked child.

    Nothing was done. Make a client in each event loop; an unpickled handle opens where it is used first.
    """


class VersionMismatchError(UnsupportedError):
    """Two parts whose versions are too far apart met; the connection is closed."""


class ChecksumError(HeliographError):
    """The bytes were damaged; nothing was stored."""

    advice = Advice.RETRY


class ServiceNotReadyError(HeliographError):
    """The broker does not own the topic, or no longer does; look the owner up again."""

    advice = Advice.REFRESH


class ConnectionLostError(HeliographError):
    """The connection ended; the outcome of calls in flight is unknown."""

    advice = Advice.RETRY


class RequestTimeoutError(HeliographError):
    """No answer in time; the outcome is unknown."""

    advice = Advice.RETRY


class ReceiveTimeoutError(RequestTimeoutError, TimeoutError):
    """No message came within the caller's timeout; nothing was lost or changed."""


class PersistenceError(HeliographError):
    """The broker could not store the change; the outcome is unknown."""

    advice = Advice.RETRY


class TooFewBookiesError(PersistenceError):
    """Fewer bookies take entries than copies are required; the text names them. Try again when they are back.

    A message that was under way when the bookies went may be stored all the same.
    """


class StorageFullError(TooFewBookiesError):
    """The disks of the bookies are full; the text names them. Nothing was stored. Try again when space is free."""


class CompactedLostError(PersistenceError):
    """The compacted form of a topic is lost, and the topic itself no longer holds all of its messages."""

    advice = Advice.STOP


class JobFailedError(HeliographError):
    """A job failed for good; the message has the last error, and its letter the arguments and the traceback."""


class JobRevokedError(HeliographError):
    """A job was cancelled and has no result."""


class RequestFailedError(HeliographError):
    """A request was answered by a failure: the responder's function raised an error."""


class ReplyInterruptedError(HeliographError):
    """A streamed answer cannot go on: its responder died on the way, or a part was lost."""

    advice = Advice.RETRY


class AlreadyClosedError(HeliographError):
    """The handle was closed."""


class ResourceError(HeliographError):
    """A port, a path or a tool of this machine cannot be used."""


def failure_text(error: BaseException) -> str:
    """Return the class and the text of an error of a user's code, whose class may be unable to say its text. Characters
    that UTF-8 cannot express are escaped."""
    try:
        text = f"{type(error).__name__}: {error}"
    except Exception:
        text = type(error).__name__
    return text.encode(errors="backslashreplace").decode()
