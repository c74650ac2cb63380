"""The records of a changelog: of each key, and of the last committed group (pure)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgpack

from heliograph.base.errors import ProtocolError
from heliograph.protocol.message_id import MessageId

VERSION = 1
GROUP_KEY = "group"  # of the message that commits a group
OWNER_KEY = "owner"  # of the mark that an owner writes when it begins
_STATE, _WINDOW = "k:", "w:"
_Record = TypeVar("_Record")


@dataclass(frozen=True, slots=True, order=True)
class StateKey:
    """Names the state of a key, or of a key in the window of event time that starts at ``start_ms``."""

    key: str
    start_ms: int | None = None

    @property
    def text(self) -> str:
        """Return the key of its messages in the changelog."""
        return f"{_STATE}{self.key}" if self.start_ms is None else f"{_WINDOW}{self.start_ms}:{self.key}"

    @classmethod
    def parse(cls, text: str) -> StateKey | None:
        """Return the state that a key of the changelog names; None if it names none."""
        if text.startswith(_STATE):
            return cls(text[len(_STATE) :])
        start, colon, key = text.removeprefix(_WINDOW).partition(":")
        if not text.startswith(_WINDOW) or not colon or not start.lstrip("-").isdigit():
            return None
        return cls(key, int(start))


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """The state of a key.

    Attributes:
        state: Its encoded state; None: it has none.
        timers: When each of its timers is due, in ms since the epoch, by name.
    """

    state: bytes | None = None
    timers: Mapping[str, int] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Return whether nothing has to be kept."""
        return self.state is None and not self.timers

    def encode(self) -> bytes:
        kept = {"s": self.state, "t": dict(self.timers)}
        return bytes(
            msgpack.packb({"v": VERSION, **{name: value for name, value in kept.items() if value or value == b""}})
        )

    @classmethod
    def decode(cls, data: bytes) -> KeyRecord:
        """Return the record of some bytes.

        Raises:
            ProtocolError: The bytes are no record, or one of a later version.
        """
        return _decoded(data, "the state of a key", lambda values: cls(values.get("s"), dict(values.get("t", {}))))


@dataclass(frozen=True, slots=True)
class ProcessorOutput:
    """A message that a processor sends.

    Attributes:
        topic: Full name of the topic.
        partition: Partition of the topic, -1 if it has none or if it is not chosen yet.
        payload: Its bytes; None: a null value.
    """

    topic: str
    payload: bytes | None
    key: str | None = None
    properties: Mapping[str, str] | None = None
    event_time_ms: int | None = None
    partition: int = -1

    @property
    def size(self) -> int:
        """Return about how many bytes it takes."""
        named = sum(len(name) + len(value) for name, value in (self.properties or {}).items())
        return len(self.payload or b"") + len(self.key or "") + named + 32


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """A committed group: the effects of the messages up to some positions.

    Attributes:
        positions: By input, the last message whose effects are in.
        seen_ms: By input, the highest event time of its messages.
        next_ids: Of each partition of an output, the sequence id of its next output, of this group or a later one.
        outputs: In order.
        states: Encoded key records by the keys of the changelog; None: deleted.
        late: Messages, from the beginning on, that came after the end of their windows.
        life: Part of the names of the producers of outputs. A changelog that begins again has another one, because
            topics remember the sequence ids of the one before.
    """

    positions: Mapping[str, MessageId]
    seen_ms: Mapping[str, int] = field(default_factory=dict)
    next_ids: Mapping[tuple[str, int], int] = field(default_factory=dict)
    outputs: tuple[ProcessorOutput, ...] = ()
    states: Mapping[str, bytes | None] = field(default_factory=dict)
    late: int = 0
    life: str = ""

    def encode(self) -> bytes:
        outputs = [
            [each.topic, each.partition, each.key, each.payload, dict(each.properties or {}), each.event_time_ms]
            for each in self.outputs
        ]
        values = {
            "v": VERSION,
            "at": {topic: position.to_bytes() for topic, position in self.positions.items()},
            "seen": dict(self.seen_ms),
            "next": [[topic, partition, number] for (topic, partition), number in self.next_ids.items()],
            "out": outputs,
            "states": dict(self.states),
            "late": self.late,
            "life": self.life,
        }
        return bytes(msgpack.packb(values))

    @classmethod
    def decode(cls, data: bytes) -> GroupRecord:
        """Return the record of some bytes.

        Raises:
            ProtocolError: The bytes are no record, or one of a later version.
        """

        def made(values: Mapping[str, Any]) -> GroupRecord:
            return cls(
                positions={topic: MessageId.from_bytes(position) for topic, position in values["at"].items()},
                seen_ms=values["seen"],
                next_ids={(topic, partition): number for topic, partition, number in values["next"]},
                outputs=tuple(
                    ProcessorOutput(topic, payload, key, properties or None, time_ms, partition)
                    for topic, partition, key, payload, properties, time_ms in values["out"]
                ),
                states=values["states"],
                late=values["late"],
                life=values["life"],
            )

        return _decoded(data, "a group", made)


def _decoded(data: bytes, what: str, made: Callable[[Mapping[str, Any]], _Record]) -> _Record:
    try:
        values = msgpack.unpackb(data)
        if not isinstance(values, Mapping) or values.get("v") != VERSION:
            raise ValueError(f"version {values.get('v')!r}" if isinstance(values, Mapping) else "not a map")
        return made(values)
    except (ValueError, TypeError, KeyError, AttributeError, msgpack.UnpackException) as error:
        raise ProtocolError(f"{what} in a changelog cannot be read: {error}", field="state") from error
