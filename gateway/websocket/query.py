"""Query parameters of WebSocket URLs as pydantic models. No I/O.

Fields carry the client's names for its options, their aliases are Pulsar's names of the parameters. Unknown and empty
parameters are ignored, as Pulsar does. Fields that are excluded are not options of the client.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, PlainValidator, ValidationError, ValidationInfo
from typing_extensions import override

from heliograph.base.errors import HeliographError
from heliograph.client.options import ACK_TIMEOUT_MS_MIN
from heliograph.client.types import AccessMode
from heliograph.gateway.shapes.bodies import refusal, refused
from heliograph.gateway.shapes.json_forms import id_from_text
from heliograph.gateway.shapes.payload_forms import PayloadFormat
from heliograph.gateway.shapes.value_schema import ValueSchema, readable_schema, value_schema
from heliograph.gateway.websocket.windows import RECEIVER_QUEUE_MAX
from heliograph.protocol.compression import NAMES as CODECS
from heliograph.protocol.message_id import MessageId
from heliograph.protocol.topic_name import TopicName

MILLISECONDS_MAX = 24 * 3600 * 1000
BATCH_MESSAGES_MAX = 10_000
LINGER_MS_MAX = 60_000
PENDING_MESSAGES_MAX = 10_000  # bound on the maxPendingMessages that a peer may ask for
PRIORITY_LEVEL_MAX = 1000
NACK_DELAY_MS = 60_000  # Pulsar's own default
INT64_MAX = 2**63 - 1
PATTERN_CHARACTERS_MAX = 512
_HASHING_SCHEMES = {"JavaStringHash": "java", "Murmur3_32Hash": "murmur3"}
_ACCESS_MODES: dict[str, AccessMode] = {
    "Shared": "shared",
    "Exclusive": "exclusive",
    "WaitForExclusive": "wait_for_exclusive",
    "ExclusiveWithFencing": "exclusive_with_fencing",
}
_TYPES = {"Exclusive": "exclusive", "Shared": "shared", "Failover": "failover", "Key_Shared": "key_shared"}
_POSITIONS = {"Latest": "latest", "Earliest": "earliest"}
_CODECS = {name.upper(): name for name in CODECS}
_SHARED = ("shared", "key_shared")  # subscription types, as the client names them

T = TypeVar("T")


def _words(words: Mapping[str, T]) -> PlainValidator:
    """Return a validator that takes one of the given words, exactly as written, and returns its value."""

    def check(text: str) -> T:
        if text not in words:
            raise ValueError(f"must be one of {', '.join(words)}, not {text!r}")
        return words[text]

    return PlainValidator(check)


def _flag(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(f"must be true or false, not {text!r}")
    return text.lower() == "true"


def _start(text: str) -> MessageId | str:
    # A plus sign in a query means a blank, and base64 ids hold plus signs that few clients escape.
    return text if text in ("earliest", "latest") else id_from_text(text.replace(" ", "+"))


def _ack_timeout(milliseconds: int) -> int:
    if 0 < milliseconds < ACK_TIMEOUT_MS_MIN:
        raise ValueError(f"must be 0 or at least {ACK_TIMEOUT_MS_MIN} ms")
    return milliseconds


def _on_shared(limit: int | None, info: ValidationInfo) -> int | None:
    if limit is not None and info.data.get("type", _SHARED[0]) not in _SHARED:
        raise ValueError("needs subscriptionType=Shared or Key_Shared: other subscriptions deliver in order")
    return limit


def _with_limit(topic: str | None, info: ValidationInfo) -> str | None:
    if topic is None:
        return None
    if info.data.get("max_redeliver", 0) is None:
        raise ValueError("needs maxRedeliverCount, the number of redeliveries before a message becomes a dead letter")
    try:
        return str(TopicName.parse(topic))
    except HeliographError as error:
        raise ValueError(str(error)) from error


Flag = Annotated[bool, PlainValidator(_flag)]
WholeNumber = Annotated[int, BeforeValidator(int)]
ReceiverQueue = Annotated[
    WholeNumber,
    Field(ge=0, alias="receiverQueueSize"),
    AfterValidator(lambda size: max(1, min(size, RECEIVER_QUEUE_MAX))),  # 0 counts as 1; capped as Pulsar does
]
CryptoFailureAction = Literal["FAIL", "DISCARD", "CONSUME"]  # without effect: nothing is decrypted


class UrlQuery(BaseModel):
    """The parameters of one URL. ``payloadFormat`` and ``valueSchema`` exist beyond Pulsar."""

    payloadFormat: PayloadFormat = Field("base64", exclude=True)
    valueSchema: Annotated[ValueSchema | None, PlainValidator(readable_schema)] = Field(None, exclude=True)

    @classmethod
    def of(cls, parameters: Mapping[str, str]) -> Self:
        """Return the checked parameters. With a schema among them this takes long enough for a thread.

        Raises:
            BadRequestError, UnsupportedError: naming the parameter, and the limit where one was broken.
        """
        try:
            return cls.model_validate({name: text for name, text in parameters.items() if text})
        except ValidationError as error:
            raise refusal(error) from error

    def options(self) -> dict[str, Any]:
        """Return the options of the client; those that are None are left to the client."""
        names = (name for name, field in type(self).model_fields.items() if not field.exclude)
        options = {name: value for name in names if (value := getattr(self, name)) is not None}
        return options if self.valueSchema is None else options | {"schema": self.valueSchema}


class ProducerQuery(UrlQuery):
    """Parameters of a producer.

    ``messageRoutingMode`` is checked and has no effect: messages with a key go to the key's partition, others take
    turns.
    ``accessMode`` exists beyond Pulsar, whose WebSocket producers are always shared.
    """

    valueSchema: Annotated[ValueSchema | None, PlainValidator(value_schema)] = Field(None, exclude=True)
    name: str | None = Field(None, alias="producerName")
    hashing: Annotated[str, _words(_HASHING_SCHEMES)] = Field("java", alias="hashingScheme")
    send_timeout_ms: WholeNumber = Field(30_000, alias="sendTimeoutMillis", ge=0, le=MILLISECONDS_MAX)
    access_mode: Annotated[AccessMode, _words(_ACCESS_MODES)] = Field("shared", alias="accessMode")
    compression: Annotated[str, _words(_CODECS)] = Field("none", alias="compressionType")
    batch_messages: WholeNumber = Field(1000, alias="batchingMaxMessages", ge=1, le=BATCH_MESSAGES_MAX)
    linger_ms: WholeNumber = Field(1, alias="batchingMaxPublishDelay", ge=0, le=LINGER_MS_MAX)
    initial_sequence_id: WholeNumber | None = Field(None, alias="initialSequenceId", ge=-1, le=INT64_MAX)
    batchingEnabled: Flag = Field(True, exclude=True)
    maxPendingMessages: WholeNumber | None = Field(None, ge=1, le=PENDING_MESSAGES_MAX, exclude=True)
    messageRoutingMode: Literal["SinglePartition", "RoundRobinPartition", "CustomPartition"] = Field(
        "SinglePartition", exclude=True
    )
    encryptionKeys: Annotated[None, refused("encrypt on the client and send the bytes as payload")] = None

    @override
    def options(self) -> dict[str, Any]:
        options = {
            **super().options(),
            "batch_by_key": True,
        }  # a key stays at one consumer of a Key_Shared subscription
        if not self.batchingEnabled or self.batch_messages == 1:
            options |= {"batch_messages": 1, "linger_ms": 0}
        return options


class ConsumerQuery(UrlQuery):
    """Parameters of a consumer."""

    type: Annotated[str, _words(_TYPES)] = Field("exclusive", alias="subscriptionType")
    initial_position: Annotated[str, _words(_POSITIONS)] = Field("latest", alias="subscriptionInitialPosition")
    name: str | None = Field(None, alias="consumerName")
    receiver_queue: ReceiverQueue = RECEIVER_QUEUE_MAX
    nack_delay_ms: WholeNumber = Field(NACK_DELAY_MS, alias="negativeAckRedeliveryDelay", ge=0, le=MILLISECONDS_MAX)
    priority_level: WholeNumber = Field(0, alias="priorityLevel", ge=0, le=PRIORITY_LEVEL_MAX)
    ack_timeout_ms: Annotated[WholeNumber, AfterValidator(_ack_timeout)] = Field(
        0, alias="ackTimeoutMillis", ge=0, le=MILLISECONDS_MAX
    )
    max_redeliver: Annotated[WholeNumber | None, AfterValidator(_on_shared)] = Field(
        None, alias="maxRedeliverCount", ge=1
    )
    dead_letter_topic: Annotated[str | None, AfterValidator(_with_limit)] = Field(None, alias="deadLetterTopic")
    pullMode: Flag = Field(False, exclude=True)
    cryptoFailureAction: CryptoFailureAction = Field("FAIL", exclude=True)
    subscriptionMode: Annotated[None, refused("use a reader to read without a durable subscription", "Durable")] = None


class TopicsQuery(ConsumerQuery):
    """Parameters of a consumer of several topics: exactly one of a list of topics and a pattern."""

    topics: str | None = Field(None, exclude=True)
    topicsPattern: str | None = Field(None, max_length=PATTERN_CHARACTERS_MAX, exclude=True)


class ReaderQuery(UrlQuery):
    """Parameters of a reader. ``messageId`` is ``earliest``, ``latest``, or the id of the message before its start."""

    start: Annotated[MessageId | str, PlainValidator(_start)] = Field("latest", alias="messageId")
    name: str | None = Field(None, alias="readerName")
    receiver_queue: ReceiverQueue = RECEIVER_QUEUE_MAX
    cryptoFailureAction: CryptoFailureAction = Field("FAIL", exclude=True)
