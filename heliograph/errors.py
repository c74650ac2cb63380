"""The root of the one error tree, and the branch that clients see.

Every error that the world may cause is a class of this tree and carries an ``advice``: what the caller should do next.
A broken promise of our own code is an ``assert`` instead and never part of this tree.

    HeliographError
    |- BadRequestError            STOP     the caller's words are off: names the field and the limit
    |  |- InvalidTopicNameError
    |  |- MessageTooLargeError
    |  |- InvalidQuorumError
    |  |- InvalidConfigError
    |  `- InvalidMessageIdError
    |- NotFoundError              STOP
    |  |- TopicNotFoundError
    |  |- SubscriptionNotFoundError
    |  |- NamespaceNotFoundError
    |  `- ClusterNotFoundError             no Ray, or no Heliograph in it
    |- ConflictError              STOP     something with that name or role is there already
    |  |- TopicExistsError
    |  |- SubscriptionExistsError
    |  |- ConsumerBusyError
    |  |- ConsumerAssignError              its key ranges contradict those of other consumers
    |  |- ProducerBusyError
    |  |- TopicBusyError                   still has producers, consumers or subscriptions
    |  |- ProducerFencedError
    |  |- TopicTerminatedError             the topic takes no more messages
    |  `- IncompatibleSchemaError
    |- UnsupportedError           STOP     honest "not supported"
    |- NotPermittedError          STOP     unknown or unwelcome caller
    |- ProtocolError              STOP     the peer does not speak the protocol; its connection is closed
    |- QuotaExceededError         RETRY    the topic's backlog or rate is at its limit; nothing was stored
    |  `- ProducerHeldError                its producers wait until consumers have caught up
    |- ChecksumError              RETRY    bytes were damaged on the way; nothing was stored
    |- ServiceNotReadyError       REFRESH  ask for the owner again, then retry
    |- ConnectionLostError        RETRY    the outcome of calls in flight is unknown
    |- RequestTimeoutError        RETRY    the outcome is unknown
    |  `- ReceiveTimeoutError              no message came in time
    |- PersistenceError           RETRY    the broker could not store it; the outcome is unknown
    |- AlreadyClosedError         STOP     this handle was closed
    |- ResourceError              STOP     a port, disk path or tool of this machine cannot be used
    |- MetadataError                       branch of metadata/errors.py
    |- LedgerError                         branch of actors/errors.py
    `- BookieError                         branch of actors/errors.py
"""

from __future__ import annotations

import enum
from typing import ClassVar


class Advice(enum.Enum):
    """What a caller should do after an error."""

    RETRY = "retry"  # the same call may succeed later; its outcome may be unknown
    REFRESH = "refresh"  # re-read what the call was based on, then call again
    STOP = "stop"  # the same call can never succeed


class HeliographError(Exception):
    """Root of the tree.

    Args:
        message: a sentence for a person, saying what to do where that is known.
        field: the name of the offending input, when there is one.
        limit: the limit that was broken, with its unit, when there is one.
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
    """The bytes or text are no message id."""


class NotFoundError(HeliographError):
    """The named thing does not exist."""


class TopicNotFoundError(NotFoundError):
    """No such topic."""


class SubscriptionNotFoundError(NotFoundError):
    """No such subscription on the topic."""


class NamespaceNotFoundError(NotFoundError):
    """No such namespace."""


class ClusterNotFoundError(NotFoundError):
    """No Ray cluster can be reached, or no Heliograph runs in it."""


class ConflictError(HeliographError):
    """The request contradicts something that is there already."""


class TopicExistsError(ConflictError):
    """A topic of that name exists."""


class SubscriptionExistsError(ConflictError):
    """A subscription of that name exists on the topic."""


class ConsumerBusyError(ConflictError):
    """An exclusive subscription already has its consumer."""


class ConsumerAssignError(ConflictError):
    """The key ranges that a consumer asks for cannot be given to it beside those of the others."""


class ProducerBusyError(ConflictError):
    """A producer of that name is connected."""


class TopicBusyError(ConflictError):
    """The topic still has producers, consumers or subscriptions."""


class ProducerFencedError(ConflictError):
    """Another producer took this topic over exclusively."""


class TopicTerminatedError(ConflictError):
    """The topic was ended; it can be read but not written."""


class IncompatibleSchemaError(ConflictError):
    """The schema does not fit the ones that the topic has."""


class NotPermittedError(HeliographError):
    """The caller is unknown, or may not do this."""


class ProtocolError(HeliographError):
    """The bytes of a connection follow no protocol that we speak; the connection is closed."""


class QuotaExceededError(HeliographError):
    """A backlog, rate or request limit is reached; nothing was stored."""

    advice = Advice.RETRY


class ProducerHeldError(QuotaExceededError):
    """The backlog is above its quota, and producers are to wait until it is not; nothing was stored."""


class UnsupportedError(HeliographError):
    """This feature is not offered."""


class ChecksumError(HeliographError):
    """The bytes were damaged; nothing was stored."""

    advice = Advice.RETRY


class ServiceNotReadyError(HeliographError):
    """The broker does not own the topic (any more); look the owner up again."""

    advice = Advice.REFRESH


class ConnectionLostError(HeliographError):
    """The connection ended; the outcome of calls in flight is unknown."""

    advice = Advice.RETRY


class RequestTimeoutError(HeliographError):
    """No answer in time; the outcome is unknown."""

    advice = Advice.RETRY


class ReceiveTimeoutError(RequestTimeoutError, TimeoutError):
    """No message came within the time that the caller gave; nothing was lost or changed."""


class PersistenceError(HeliographError):
    """The broker could not store it; the outcome is unknown."""

    advice = Advice.RETRY


class CompactedLostError(PersistenceError):
    """The compacted form of a topic is lost, and the topic no longer holds all that it stood for."""

    advice = Advice.STOP


class AlreadyClosedError(HeliographError):
    """The handle was closed."""


class ResourceError(HeliographError):
    """A port, a path or a tool of this machine cannot be used."""
