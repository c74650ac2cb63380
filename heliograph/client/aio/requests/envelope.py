"""The properties of requests and replies, and the order in which a caller takes replies (pure).

A request has the properties ``heliograph.request`` (its id), ``heliograph.reply-to``, ``heliograph.deadline`` (ms of
wall time) and, if it takes a stream, ``heliograph.reply-stream``. A reply has ``heliograph.reply`` (the id),
``heliograph.reply-run``, ``heliograph.reply-number`` and ``heliograph.reply-kind``.
"""

from __future__ import annotations

import enum
import re
import uuid
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from heliograph.base.errors import (
    HeliographError,
    InvalidTopicNameError,
    QuotaExceededError,
    ReplyInterruptedError,
    RequestFailedError,
)
from heliograph.protocol.topic_name import TopicName

REQUEST_ID = "heliograph.request"
REPLY_TO = "heliograph.reply-to"
DEADLINE = "heliograph.deadline"
TAKES_STREAM = "heliograph.reply-stream"
REPLY_ID = "heliograph.reply"
RUN = "heliograph.reply-run"
NUMBER = "heliograph.reply-number"
KIND = "heliograph.reply-kind"

ID_CHARACTERS_MAX = 64
BUFFERED_BYTES_MAX = 16 << 20  # of a stream's parts that its caller has not taken # I15
BUFFERED_PARTS_MAX = 100_000  # I15
_REPLY_TOPIC = re.compile(r"heliograph-replies-[0-9a-f]{32}")
_NUMBER = re.compile(r"[0-9]{1,15}")


class ReplyKind(enum.StrEnum):
    """The place of a reply in its answer."""

    PART = "part"  # of a stream that goes on
    VALUE = "value"  # the only or the last value
    END = "end"  # no further value
    ERROR = "error"  # the payload says why there is none


_KINDS = frozenset(each.value for each in ReplyKind)


@dataclass(frozen=True, slots=True)
class Request:
    """The properties of a message whose sender waits for an answer."""

    id: str
    reply_to: str
    deadline_ms: int
    takes_stream: bool = False

    @property
    def properties(self) -> dict[str, str]:
        """Return the properties of the message."""
        found = {REQUEST_ID: self.id, REPLY_TO: self.reply_to, DEADLINE: str(self.deadline_ms)}
        return found | ({TAKES_STREAM: "yes"} if self.takes_stream else {})

    @classmethod
    def of(cls, properties: Mapping[str, str], topic: str) -> Request | None:
        """Return the request that a message is; None if nobody waits for an answer that may be given.

        Args:
            topic: The topic of the message. A reply topic in another namespace, or of another form, is refused: the
                sender could have a responder publish where only the responder may.
        """
        id, reply_to = properties.get(REQUEST_ID, ""), properties.get(REPLY_TO, "")
        deadline = properties.get(DEADLINE, "")
        if not 0 < len(id) <= ID_CHARACTERS_MAX or not _NUMBER.fullmatch(deadline):
            return None
        if not is_reply_topic(reply_to, topic):
            return None
        return cls(id, reply_to, int(deadline), TAKES_STREAM in properties)


@dataclass(frozen=True, slots=True)
class ReplyMessage:
    """One message to the caller."""

    id: str
    run: str
    number: int
    kind: ReplyKind
    data: bytes = b""

    @property
    def properties(self) -> dict[str, str]:
        """Return the properties of the message."""
        return {REPLY_ID: self.id, RUN: self.run, NUMBER: str(self.number), KIND: self.kind.value}

    @classmethod
    def of(cls, properties: Mapping[str, str], data: bytes) -> ReplyMessage | None:
        """Return the reply that a message is, or None."""
        number, kind = properties.get(NUMBER, ""), properties.get(KIND, "")
        if not _NUMBER.fullmatch(number) or kind not in _KINDS:
            return None
        return cls(properties.get(REPLY_ID, ""), properties.get(RUN, ""), int(number), ReplyKind(kind), data)


class ReplyOrder:
    """The replies to one request in the order in which its caller takes them.

    Args:
        resumes: Whether another run of the function may go on where the one before ended.
        bytes_max: Of the parts that the caller has not taken; the answer fails above it. # I15
    """

    def __init__(self, *, resumes: bool = False, bytes_max: int = BUFFERED_BYTES_MAX) -> None:
        self.has_ended = False  # nothing is taken after the last value, the end or a failure
        self.failure: HeliographError | None = None  # raised once the values before it were taken
        self._values: deque[bytes] = deque()
        self._bytes = 0  # of _values; 0 <= _bytes <= _bytes_max while has_ended is False
        self._bytes_max = bytes_max
        self._resumes = resumes
        self._run: str | None = None  # whose parts are taken
        self._next = 0  # number of the part that is waited for

    def put(self, reply: ReplyMessage) -> bool:
        """Take a reply in its turn.

        Returns:
            Whether it counts. A later answer, a repeated part and what comes after the end do not.
        """
        if self.has_ended:
            return False
        if self._run is not None and reply.run != self._run:
            if self._next and not self._resumes:
                self._fail(ReplyInterruptedError("another responder began the answer again"))
                return True
            if reply.number < self._next and reply.kind is not ReplyKind.PART:  # there is nothing more to wait for
                self._fail(_failed(reply) or ReplyInterruptedError("another responder made a shorter answer"))
                return True
            if reply.number != self._next:
                return False  # a part that is there, or the run is ahead and has no later part to wait for
        if reply.number < self._next:
            return False
        if reply.number > self._next:
            self._fail(ReplyInterruptedError(f"part {self._next} of the answer was lost"))
            return True
        self._run = reply.run
        self._next += 1
        if (failure := _failed(reply)) is not None:
            self._fail(failure)
            return True
        if reply.kind is not ReplyKind.END:
            self._values.append(reply.data)
            self._bytes += len(reply.data)
        self.has_ended = reply.kind is not ReplyKind.PART
        if not self.has_ended and (self._bytes > self._bytes_max or len(self._values) > BUFFERED_PARTS_MAX):  # I15
            limit = f"{self._bytes_max} bytes or {BUFFERED_PARTS_MAX} parts"
            self._fail(QuotaExceededError("the caller takes the answer more slowly than it comes", limit=limit))
        return True

    def take(self) -> bytes | None:
        """Return the next value; None if there is none now."""
        if not self._values:
            return None
        value = self._values.popleft()
        self._bytes -= len(value)
        return value

    def fail(self, failure: HeliographError) -> None:
        """End the answer by a failure, unless it has ended."""
        if not self.has_ended:
            self._fail(failure)

    def _fail(self, failure: HeliographError) -> None:
        self.has_ended, self.failure = True, failure


def _failed(reply: ReplyMessage) -> RequestFailedError | None:
    if reply.kind is not ReplyKind.ERROR:
        return None
    return RequestFailedError(reply.data.decode(errors="replace") or "the responder gave no reason")


def new_reply_topic(topic: TopicName) -> str:
    """Return a name for the replies to what a client asks in the namespace of a topic."""
    return f"non-persistent://{topic.namespace}/heliograph-replies-{uuid.uuid4().hex}"


def is_reply_topic(name: str, topic: str) -> bool:
    """Return whether a name is of a reply topic in the namespace of a topic."""
    try:
        reply_to, own = TopicName.parse(name), TopicName.parse(topic)
    except InvalidTopicNameError:
        return False
    return (
        reply_to.namespace == own.namespace
        and not reply_to.is_persistent
        and _REPLY_TOPIC.fullmatch(reply_to.local_name) is not None
    )
