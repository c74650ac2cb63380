"""The options of clients and their handles, as frozen records that are part of a handle's pickle.

Times end in ``_ms`` (milliseconds; callers may give a timedelta), sizes in ``_bytes``, counts in ``_messages`` or
``_max``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar, get_args

from heliograph.base.clock import as_number
from heliograph.base.errors import BadRequestError, InvalidConfigError
from heliograph.client.identity import Identity, TokenSupplier
from heliograph.client.schemas.choice import schema_of
from heliograph.client.schemas.schema import SchemaLike
from heliograph.client.types import AccessMode, Compression, Hashing, InitialPosition, Rejoin, SubscriptionType
from heliograph.protocol.frame import MESSAGE_BYTES_MAX
from heliograph.protocol.message_id import MessageId
from heliograph.protocol.topic_name import TopicName

NAME_CHARACTERS_MAX = 256  # of a producer
CONSUMER_NAME_CHARACTERS_MAX = 1_024  # brokers take 1,024 bytes
ENCRYPTED = "pulsar+ssl://"  # how addresses of TLS begin
SEQUENCE_ID_MAX = (1 << 63) - 1
NACK_MULTIPLIER_MAX = 100.0
NACK_EXPONENT_MAX = 100  # deliveries that let a pause grow, so that the product stays a number
ACK_TIMEOUT_MS_MIN = 1_000  # Pulsar's
CONCURRENCY_MAX = 10_000  # requests that one responder answers at a time # I15
_SECRETS = ("token", "user", "password")  # options of a client that no pickle holds unless ``carry_token`` says so

_Options = TypeVar("_Options")


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """The addresses of a cluster and the timeouts of a client.

    Attributes:
        service_urls: Brokers to ask first, as ``pulsar://host:port``; one that answers is enough.
        discovery_namespace: Ray namespace in which to look for brokers again when none of ``service_urls`` answers.
        token: JWT that every connection presents, or a function that returns one; it is asked again at each connection
            and when a broker asks for credentials again.
        token_file: File with the token, read as often.
        user, password: For brokers that know users by a password.
        carry_token: Whether pickles of the client and its handles hold its token, or user and password. If not, an
            unpickled handle shows what the environment of its own process names, as ``connect`` does. The path of
            ``token_file`` is in every pickle.
        original_principal: Role that a proxy speaks for; only proxy roles may name one.
        tls_enabled: Connect by TLS only: brokers are looked for by their addresses of TLS, and others are refused.
        tls_ca_file: Certificates to trust for ``pulsar+ssl://``; None trusts what the machine trusts.
        tls_certificate_file, tls_key_file: The client's own certificate, for brokers that require one.
        operation_timeout_ms: Time for a lookup, subscribing, acknowledging or seeking, with all retries.
        connect_timeout_ms: Time for one attempt to reach one broker.
        silence_ms: Time between pings. When a broker has sent nothing for so long, another one is asked whether its
            topics have moved, as they do from a broker that stands still for longer than its session.
        keep_alive_ms: A broker that sends nothing for this long is taken for dead.
        partitions_update_ms: Time between checks for added partitions while a handle is open; 0 turns them off.
        retry_first_ms, retry_max_ms: The first and the longest pause between attempts; pauses double, with jitter.
        lacks_credentials: Whether this comes from a pickle without its credentials, and the environment names none.
    """

    service_urls: tuple[str, ...]
    discovery_namespace: str | None = None
    token: str | TokenSupplier | None = field(default=None, repr=False)
    token_file: str | None = None
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    carry_token: bool = False
    original_principal: str | None = None
    tls_enabled: bool = False
    tls_ca_file: str | None = None
    tls_certificate_file: str | None = None
    tls_key_file: str | None = None
    operation_timeout_ms: int = 30_000
    connect_timeout_ms: int = 5_000
    silence_ms: int = 5_000
    keep_alive_ms: int = 30_000
    partitions_update_ms: int = 60_000
    retry_first_ms: int = 50
    retry_max_ms: int = 1_000
    lacks_credentials: bool = field(default=False, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.service_urls:
            raise InvalidConfigError("there is no address to connect to", field="address")
        if self.tls_enabled and not all(url.startswith(ENCRYPTED) for url in self.service_urls):
            raise InvalidConfigError(
                "connections are to be made by TLS, and an address is of none", field="address", limit=ENCRYPTED
            )
        _check_positive(
            self,
            "operation_timeout_ms",
            "connect_timeout_ms",
            "silence_ms",
            "keep_alive_ms",
            "retry_first_ms",
            "retry_max_ms",
        )
        assert self.identity is not None, "its parts do not contradict each other, or it has raised"

    @property
    def identity(self) -> Identity:
        """Return who the client says it is."""
        return Identity(self.token, self.token_file, self.user, self.password, self.original_principal)

    def __reduce__(self) -> tuple[Any, ...]:
        values = {entry.name: getattr(self, entry.name) for entry in dataclasses.fields(self) if entry.init}
        is_secret = not self.carry_token and (self.token is not None or self.password is not None)
        if is_secret:
            values |= dict.fromkeys(_SECRETS)
        return _unpickled_client_options, (values, is_secret or self.lacks_credentials)

    def __deepcopy__(self, memo: object) -> Self:
        return self  # nothing in it changes, and a copy in the same process keeps its token


def _unpickled_client_options(values: dict[str, Any], lacks_credentials: bool) -> ClientOptions:
    """Return options from a pickle; credentials that were left out of it come from this process's environment."""
    found = Identity.from_environment() if lacks_credentials else Identity()
    options = ClientOptions(**{**values, **({} if found.is_empty else found.options)})
    object.__setattr__(options, "lacks_credentials", lacks_credentials and found.is_empty)
    return options


@dataclass(frozen=True, slots=True)
class ProducerOptions:
    """The name, batches, bounds and access mode of a producer.

    Attributes:
        topic: Full name of the topic.
        schema: Type of the values, as ``heliograph.client.schemas.choice.schema_of`` takes it; the topic's registry
            has to accept it. None: bytes or text, without a schema.
        name: Name of the producer, unique on the topic and kept over reconnects; None lets the broker choose one.
        batch_messages, batch_bytes: A batch is sent when it reaches either.
        linger_ms: How long a batch may wait for more messages while entries are unconfirmed; an idle producer never
            waits.
        pending_messages_max, pending_bytes_max: Bounds on what is accepted and not confirmed; above them ``send``
            waits. # I15
        send_timeout_ms: A message that is unconfirmed for longer fails, with its outcome unknown; 0 waits forever.
        compression: ``none``, ``lz4``, ``zlib``, ``zstd`` or ``snappy``. An entry that would not become smaller is sent
            without it.
        hashing: The hash of keys that chooses the partition.
        batch_by_key: No batch holds two keys, for Key_Shared consumers that take whole batches.
            The policy ``batching`` of a topic says the same to all producers (``by_key``), or ends batches (``none``).
        access_mode: ``shared`` with other producers, ``exclusive`` (opening fails if there are others),
            ``wait_for_exclusive`` (opening waits until there are no others), ``exclusive_with_fencing`` (the others are
            fenced).
        initial_subscription: A subscription that is created with the producer, unless there is one of that name.
        initial_sequence_id: Messages are numbered from the next number on. None continues after the last number that
            the topic holds of this name. A topic with deduplication stores no number of a name twice.
        interceptors: Objects that see each message before it is sent and when its outcome is known, in this order.
        stop_at_failure: Whether every later message fails, too, once one that was sent, or a call of ``send_many``, has
            failed, so that what the topic holds of this producer has no gap.
        rejoin: When to look for the topic again after the broker closed the producer: ``at_once``, as stock clients do,
            which creates a topic again that was deleted by force; or, if nothing is unconfirmed, ``when_sending``.
    """

    topic: str
    schema: SchemaLike = None
    name: str | None = None
    batch_messages: int = 1000
    batch_bytes: int = 128 << 10
    linger_ms: float = 1
    pending_messages_max: int = 100_000
    pending_bytes_max: int = 64 << 20
    send_timeout_ms: int = 30_000
    compression: Compression = "none"
    hashing: Hashing = "java"
    batch_by_key: bool = False
    access_mode: AccessMode = "shared"
    initial_subscription: str | None = None
    initial_sequence_id: int | None = None
    interceptors: tuple[Any, ...] = ()
    stop_at_failure: bool = False
    rejoin: Rejoin = "at_once"

    def __post_init__(self) -> None:
        TopicName.parse(self.topic)
        schema_of(self.schema)  # refuses what is none before anything is opened
        _check_positive(self, "batch_messages", "batch_bytes", "pending_messages_max", "pending_bytes_max")
        if self.linger_ms < 0 or self.send_timeout_ms < 0:
            raise InvalidConfigError("linger_ms and send_timeout_ms cannot be negative", field="linger_ms")
        if self.batch_bytes > MESSAGE_BYTES_MAX:
            raise InvalidConfigError(
                "batch_bytes is above what an entry can hold", field="batch_bytes", limit=f"{MESSAGE_BYTES_MAX} bytes"
            )
        if self.name is not None:
            _check_name("producer", self.name, NAME_CHARACTERS_MAX)
        _check_choice("compression", self.compression, get_args(Compression))
        _check_choice("hashing", self.hashing, get_args(Hashing))
        _check_choice("access_mode", self.access_mode, get_args(AccessMode))
        _check_choice("rejoin", self.rejoin, get_args(Rejoin))
        if self.initial_sequence_id is not None and not -1 <= self.initial_sequence_id < SEQUENCE_ID_MAX:
            raise InvalidConfigError(
                "initial_sequence_id is out of range", field="initial_sequence_id", limit=f"-1 to {SEQUENCE_ID_MAX - 1}"
            )


@dataclass(frozen=True, slots=True)
class ConsumerOptions:
    """Which messages a consumer or reader receives, and how many it holds.

    Attributes:
        topics: Full names, at least one unless there is a pattern.
        pattern: A regular expression (RE2) of the topics instead: of those in ``public/default``, or with a namespace
            in front. Topics that appear later are received from their first message on.
        pattern_update_ms: Time between questions for topics that match, where no broker tells of them, and for what it
            told; 0: only those that match at the opening.
        subscription: Name of the subscription; empty for a reader, which makes up a new name when it opens.
        schema: Type of the values, as ``heliograph.client.schemas.choice.schema_of`` takes it; None: bytes.
        type: How consumers share the subscription.
        initial_position: Where a subscription starts that does not exist yet.
        receiver_queue: Messages requested ahead of the caller, over all partitions together. 0, on shared and
            key-shared subscriptions: one for each call that waits, so that no message waits behind a busy caller. What
            comes when the call has ended goes back, so a call that does not wait (``timeout=0``) needs at least 1.
        receiver_bytes_max: No more is requested while the held messages are above this. # I15
        name: Name of the consumer, shown in statistics.
        nack_delay_ms: Pause before a negatively acknowledged message is requested again.
        nack_multiplier: The pause grows by this factor with each delivery of the message, on shared subscriptions;
            1 keeps it as it is.
        nack_delay_max_ms: The longest pause.
        ack_timeout_ms: A message that the caller has for longer without acknowledging it is requested again; 0: never.
        max_redeliver: How often a message is delivered again on a shared or key-shared subscription before it becomes a
            dead letter: it is published to the dead letter topic and acknowledged. None: there are no dead letters.
        max_crashes: How often a message may be lost with the process that handles it, on a shared or key-shared
            subscription, before it becomes a dead letter. A message that was lost once is handed out alone, and only
            losses alone count. None: no message becomes a dead letter by crashes.
        dead_letter_topic: Where dead letters go; None: ``<topic>-<subscription>-DLQ``.
        dead_letter_subscription: A subscription of the dead letter topic that is created with it, and so keeps its
            messages whatever retention there is.
        chunked_messages_max: Messages of which some chunks are held while others are missing, for each topic or
            partition. The chunks of the oldest are dropped for a further one, and requested again. # I15
        chunked_expiry_ms: An incomplete message is given up, and its chunks are acknowledged, when no further chunk of
            it came for so long and a quarter more, though the broker could send entries; 0: never. Its producer has
            died, and the chunks would hold the subscription back.
        retry: Whether ``reconsume_later`` may be used: the consumer then also receives from the retry topic.
        retry_topic: None: ``<topic>-<subscription>-RETRY``.
        priority_level: Consumers of a lower level are served first on shared subscriptions.
        read_compacted: Whether to read the compacted form of the topic.
        interceptors: Objects that see each message before the caller, and each acknowledgement, in this order.
        start: Where a reader starts; None for consumers, which start at the cursor of their subscription.
        start_inclusive: Whether a reader receives the message at ``start`` itself.
    """

    topics: tuple[str, ...]
    subscription: str
    pattern: str | None = None
    pattern_update_ms: int = 60_000
    schema: SchemaLike = None
    type: SubscriptionType = "exclusive"
    initial_position: InitialPosition = "latest"
    receiver_queue: int = 1000
    receiver_bytes_max: int = 64 << 20
    name: str | None = None
    nack_delay_ms: int = 1_000
    nack_multiplier: float = 1.0
    nack_delay_max_ms: int = 600_000
    ack_timeout_ms: int = 0
    max_redeliver: int | None = None
    max_crashes: int | None = None
    dead_letter_topic: str | None = None
    dead_letter_subscription: str | None = None
    chunked_messages_max: int = 16
    chunked_expiry_ms: int = 120_000
    retry: bool = False
    retry_topic: str | None = None
    priority_level: int = 0
    read_compacted: bool = False
    interceptors: tuple[Any, ...] = ()
    start: MessageId | None = None
    start_inclusive: bool = False

    def __post_init__(self) -> None:
        if (self.pattern is None) is not bool(self.topics):
            raise BadRequestError("a consumer needs at least one topic, or a pattern", field="topic")
        for topic in self.topics:
            TopicName.parse(topic)
        schema_of(self.schema)
        if not self.subscription and self.durable:
            raise BadRequestError("a subscription needs a name", field="subscription")
        if self.name:
            _check_name("consumer", self.name, CONSUMER_NAME_CHARACTERS_MAX)
        _check_choice("type", self.type, get_args(SubscriptionType))
        _check_choice("initial_position", self.initial_position, get_args(InitialPosition))
        _check_positive(self, "receiver_bytes_max", "chunked_messages_max")
        if self.receiver_queue < (0 if self.is_shared else 1):
            raise InvalidConfigError(
                f"receiver_queue is {self.receiver_queue}",
                field="receiver_queue",
                limit="at least 1, or 0 on a shared or key-shared subscription",
            )
        if self.chunked_expiry_ms < 0:
            raise InvalidConfigError("chunked_expiry_ms cannot be negative", field="chunked_expiry_ms")
        if self.nack_delay_ms < 0 or self.priority_level < 0:
            raise InvalidConfigError("nack_delay_ms and priority_level cannot be negative", field="nack_delay_ms")
        self._check_redelivery()
        self._check_dead_letters()

        if self.pattern is not None and (self.pattern_update_ms < 0 or (self.retry and self.retry_topic is None)):
            raise InvalidConfigError(
                "a consumer of a pattern needs the name of its retry_topic, and pattern_update_ms cannot be negative",
                field="retry_topic,pattern_update_ms",
            )

    def _check_redelivery(self) -> None:
        if not 1 <= self.nack_multiplier <= NACK_MULTIPLIER_MAX:
            raise InvalidConfigError(
                f"nack_multiplier is {self.nack_multiplier}",
                field="nack_multiplier",
                limit=f"1 to {NACK_MULTIPLIER_MAX}",
            )
        if self.nack_multiplier > 1 and self.nack_delay_max_ms < self.nack_delay_ms:
            raise InvalidConfigError("nack_delay_max_ms is below nack_delay_ms", field="nack_delay_max_ms")
        if self.ack_timeout_ms and self.ack_timeout_ms < ACK_TIMEOUT_MS_MIN:
            raise InvalidConfigError(
                f"ack_timeout_ms is {self.ack_timeout_ms}",
                field="ack_timeout_ms",
                limit=f"0, or at least {ACK_TIMEOUT_MS_MIN} ms",
            )

    def _check_dead_letters(self) -> None:
        has_letters = self.has_dead_letters or self.retry
        if not has_letters and (self.dead_letter_topic or self.dead_letter_subscription or self.retry_topic):
            raise InvalidConfigError(
                "dead letters need max_redeliver or max_crashes, and a retry topic needs retry=True",
                field="max_redeliver,retry",
            )
        if has_letters and not self.is_shared:
            raise InvalidConfigError(
                f"{self.type} subscriptions have no dead letters and no retries: their messages stay in order",
                field="type",
                limit="shared, key_shared",
            )
        if min(self.max_redeliver or 0, self.max_crashes or 0) < 0:
            raise InvalidConfigError(
                "max_redeliver and max_crashes cannot be negative", field="max_redeliver,max_crashes"
            )
        if not self.durable and (has_letters or self.ack_timeout_ms):
            raise InvalidConfigError("a reader acknowledges nothing", field="ack_timeout_ms,max_redeliver,retry")
        for topic in (self.dead_letter_topic, self.retry_topic):
            if topic is not None:
                TopicName.parse(topic)

    @property
    def has_dead_letters(self) -> bool:
        """Return whether a message may become a dead letter instead of being received again."""
        return self.max_redeliver is not None or self.max_crashes is not None

    def nack_pause_ms(self, redelivery_count: int) -> float:
        """Return the pause before a message is requested again that was redelivered ``redelivery_count`` times."""
        if self.nack_multiplier == 1:
            return self.nack_delay_ms
        exponent = min(redelivery_count, NACK_EXPONENT_MAX)
        return min(self.nack_delay_ms * self.nack_multiplier**exponent, self.nack_delay_max_ms)

    @property
    def durable(self) -> bool:
        """Return whether the subscription outlives its consumers; a reader's does not."""
        return self.start is None

    @property
    def is_shared(self) -> bool:
        """Return whether several consumers receive messages of one topic at the same time."""
        return self.type in ("shared", "key_shared")


@dataclass(frozen=True, slots=True)
class TableViewOptions:
    """Options of a table view.

    Attributes:
        topic: Full name of the topic.
        schema: Type of the values, as ``heliograph.client.schemas.choice.schema_of`` takes it; None: bytes.
        keys_max: More keys end the view: all of them are in memory. # I15
    """

    topic: str
    schema: SchemaLike = None
    keys_max: int = 1_000_000

    def __post_init__(self) -> None:
        TopicName.parse(self.topic)
        schema_of(self.schema)
        _check_positive(self, "keys_max")


@dataclass(frozen=True, slots=True)
class ResponderOptions:
    """The function that answers the requests of a topic, and how.

    Attributes:
        topic: Full name of the topic.
        function: Gets the value of a request and returns the answer; a function or a coroutine function, or a generator
            of either kind, whose values are parts of a stream.
        subscription: Responders of one subscription share the requests.
        concurrency: Requests that are answered at a time; functions that are no coroutines run on threads.
        schema: Type of the requests, as ``heliograph.client.schemas.choice.schema_of`` takes it; None: bytes.
        reply: Type of the answers, in the same way; None: bytes or text.
        name: Shown in statistics.
    """

    topic: str
    function: Callable[[Any], Any]
    subscription: str = "responders"
    concurrency: int = 8
    schema: SchemaLike = None
    reply: SchemaLike = None
    name: str | None = None

    def __post_init__(self) -> None:
        TopicName.parse(self.topic)
        if not callable(self.function):
            raise InvalidConfigError(f"{self.function!r} cannot be called", field="function")
        if not 0 < self.concurrency <= CONCURRENCY_MAX:
            limit = f"1 to {CONCURRENCY_MAX}"
            raise InvalidConfigError(f"concurrency is {self.concurrency}", field="concurrency", limit=limit)
        schema_of(self.schema)
        schema_of(self.reply)


def build(kind: type[_Options], **values: Any) -> _Options:
    """Return the options of class ``kind`` with the given values, in which a timedelta stands for its milliseconds.

    Raises:
        InvalidConfigError: ``kind`` has no such option, or a value is out of range. The message lists the options.
    """
    known = {entry.name for entry in dataclasses.fields(kind) if entry.init}  # type: ignore[arg-type]
    unknown = sorted(values.keys() - known)
    if unknown:
        raise InvalidConfigError(
            f"unknown option {unknown[0]!r}; the options are {', '.join(sorted(known))}", field=unknown[0]
        )
    return kind(**{name: as_number(name, value) for name, value in values.items()})


def _check_positive(options: object, *names: str) -> None:
    for name in names:
        if getattr(options, name) <= 0:
            raise InvalidConfigError(f"{name} must be above 0", field=name)


def _check_name(kind: str, name: str, most: int) -> None:
    if not isinstance(name, str) or not 0 < len(name) <= most:
        raise InvalidConfigError(f"the name of a {kind} is {name!r:.80}", field="name", limit=f"1 to {most} characters")


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise InvalidConfigError(f"{name} is {value!r}; it must be one of {', '.join(choices)}", field=name)
