"""What a caller may choose for a client and its handles: plain frozen records that travel inside pickles.

Times end in ``_ms`` (milliseconds), sizes in ``_bytes``, counts in ``_messages`` or ``_max``.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, TypeVar, get_args

from heliograph.errors import BadRequestError, InvalidConfigError
from heliograph.protocol.compression import NAMES as COMPRESSION_NAMES
from heliograph.protocol.frame import MESSAGE_BYTES_MAX
from heliograph.protocol.message_id import MessageId
from heliograph.protocol.topic_name import TopicName
from heliograph.types import AccessMode, Hashing, InitialPosition, SubscriptionType

NAME_CHARACTERS_MAX = 256
SEQUENCE_ID_MAX = (1 << 63) - 1

_Options = TypeVar("_Options")


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """Where the cluster is, and how patient a client is with it.

    Attributes:
        service_urls: brokers to ask first, as ``pulsar://host:port``; any of them will do.
        discovery_namespace: Ray namespace to ask for brokers again once none of ``service_urls`` answers.
        token: JWT that every connection presents.
        tls_ca_file: certificates to trust for ``pulsar+ssl://``; None is what the machine trusts.
        tls_certificate_file, tls_key_file: what this client shows of itself, for brokers that ask for it.
        operation_timeout_ms: look-ups, subscribing, acknowledging, seeking, with all their retries.
        connect_timeout_ms: one attempt to reach one broker.
        keep_alive_ms: pause between pings; a peer that is silent for two pauses counts as dead.
        partitions_update_ms: between two looks of an open handle at how many partitions its topics have, 0 never.
        retry_first_ms, retry_max_ms: pauses between attempts, doubled from one to the other, with jitter.
    """

    service_urls: tuple[str, ...]
    discovery_namespace: str | None = None
    token: str | None = field(default=None, repr=False)
    tls_ca_file: str | None = None
    tls_certificate_file: str | None = None
    tls_key_file: str | None = None
    operation_timeout_ms: int = 30_000
    connect_timeout_ms: int = 5_000
    keep_alive_ms: int = 30_000
    partitions_update_ms: int = 60_000
    retry_first_ms: int = 50
    retry_max_ms: int = 1_000

    def __post_init__(self) -> None:
        if not self.service_urls:
            raise InvalidConfigError("there is no address to connect to", field="address")
        _check_positive(
            self, "operation_timeout_ms", "connect_timeout_ms", "keep_alive_ms", "retry_first_ms", "retry_max_ms"
        )


@dataclass(frozen=True, slots=True)
class ProducerOptions:
    """How a producer batches, bounds and names itself.

    Attributes:
        topic: full name.
        name: kept over reconnects and unique per topic; None lets the broker choose one.
        batch_messages, batch_bytes: a batch is sent once it has either.
        linger_ms: how long a batch may wait for more while another is on its way; an idle producer never waits.
        pending_messages_max, pending_bytes_max: sent or waiting, not yet confirmed; above, ``send`` waits. # I15
        send_timeout_ms: a message unconfirmed for longer fails with its outcome unknown; 0 waits forever.
        batch_by_key: no batch holds two keys, as Key_Shared subscriptions need it.
        access_mode: whether it shares the topic with other producers: ``shared``, ``exclusive`` (or not at all),
            ``wait_for_exclusive`` (opening waits for its turn), ``exclusive_with_fencing`` (others are thrown out).
        initial_sequence_id: messages are numbered from the one behind it; None goes on behind what the topic holds of
            this name. A topic with deduplication stores no number of a producer's name twice.
    """

    topic: str
    name: str | None = None
    batch_messages: int = 1000
    batch_bytes: int = 128 << 10
    linger_ms: float = 1
    pending_messages_max: int = 100_000
    pending_bytes_max: int = 64 << 20
    send_timeout_ms: int = 30_000
    compression: str = "none"
    hashing: Hashing = "java"
    batch_by_key: bool = False
    access_mode: AccessMode = "shared"
    initial_sequence_id: int | None = None

    def __post_init__(self) -> None:
        TopicName.parse(self.topic)
        _check_positive(self, "batch_messages", "batch_bytes", "pending_messages_max", "pending_bytes_max")
        if self.linger_ms < 0 or self.send_timeout_ms < 0:
            raise InvalidConfigError("linger_ms and send_timeout_ms cannot be negative", field="linger_ms")
        if self.batch_bytes > MESSAGE_BYTES_MAX:
            raise InvalidConfigError(
                "batch_bytes is above what fits an entry", field="batch_bytes", limit=f"{MESSAGE_BYTES_MAX} bytes"
            )
        if self.name is not None and not 0 < len(self.name) <= NAME_CHARACTERS_MAX:
            raise InvalidConfigError(
                "a producer's name is empty or too long", field="name", limit=f"{NAME_CHARACTERS_MAX} characters"
            )
        _check_choice("compression", self.compression, tuple(COMPRESSION_NAMES))
        _check_choice("hashing", self.hashing, get_args(Hashing))
        _check_choice("access_mode", self.access_mode, get_args(AccessMode))
        if self.initial_sequence_id is not None and not -1 <= self.initial_sequence_id < SEQUENCE_ID_MAX:
            raise InvalidConfigError(
                "initial_sequence_id is out of range", field="initial_sequence_id", limit=f"-1 to {SEQUENCE_ID_MAX - 1}"
            )


@dataclass(frozen=True, slots=True)
class ConsumerOptions:
    """Which messages a consumer gets and how many it holds.

    Attributes:
        topics: full names, at least one.
        subscription: empty for a reader, which gives itself a new one wherever it opens.
        receiver_queue: messages asked for ahead of the caller, over all partitions together.
        receiver_bytes_max: no more is asked for while the held messages are above this. # I15
        nack_delay_ms: pause before a negatively acknowledged message is asked for again.
        start: where a reader starts; None for consumers, which start where their subscription stands.
        start_inclusive: whether a reader gets the message at ``start`` itself.
    """

    topics: tuple[str, ...]
    subscription: str
    type: SubscriptionType = "exclusive"
    initial_position: InitialPosition = "latest"
    receiver_queue: int = 1000
    receiver_bytes_max: int = 64 << 20
    name: str | None = None
    nack_delay_ms: int = 1_000
    priority_level: int = 0
    read_compacted: bool = False
    start: MessageId | None = None
    start_inclusive: bool = False

    def __post_init__(self) -> None:
        if not self.topics:
            raise BadRequestError("a consumer needs at least one topic", field="topic")
        for topic in self.topics:
            TopicName.parse(topic)
        if not self.subscription and self.durable:
            raise BadRequestError("a subscription needs a name", field="subscription")
        _check_choice("type", self.type, get_args(SubscriptionType))
        _check_choice("initial_position", self.initial_position, get_args(InitialPosition))
        _check_positive(self, "receiver_queue", "receiver_bytes_max")
        if self.nack_delay_ms < 0 or self.priority_level < 0:
            raise InvalidConfigError("nack_delay_ms and priority_level cannot be negative", field="nack_delay_ms")

    @property
    def durable(self) -> bool:
        """Whether the subscription outlives its consumers; that of a reader does not."""
        return self.start is None

    @property
    def is_shared(self) -> bool:
        """Whether several consumers take messages of one topic at the same time."""
        return self.type in ("shared", "key_shared")


def build(kind: type[_Options], **values: Any) -> _Options:
    """An options record out of keyword arguments.

    Raises:
        InvalidConfigError: an argument that ``kind`` does not know, with the ones that it does.
    """
    known = {entry.name for entry in dataclasses.fields(kind)}  # type: ignore[arg-type]
    unknown = sorted(values.keys() - known)
    if unknown:
        raise InvalidConfigError(
            f"unknown option {unknown[0]!r}; there are {', '.join(sorted(known))}", field=unknown[0]
        )
    return kind(**values)


def _check_positive(options: object, *names: str) -> None:
    for name in names:
        if getattr(options, name) <= 0:
            raise InvalidConfigError(f"{name} must be above 0", field=name)


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise InvalidConfigError(f"{name} is {value!r}; it must be one of {', '.join(choices)}", field=name)
