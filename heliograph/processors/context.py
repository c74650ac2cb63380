"""The context of a handler: state, outputs, timers and log of a message, a timer or the end of a window."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from heliograph.base.clock import Duration, Moment, moment_ms, seconds_of
from heliograph.base.errors import BadRequestError, QuotaExceededError
from heliograph.client.aio.producer.arguments import check_head_size, checked_head, checked_text
from heliograph.client.schemas.choice import schema_of
from heliograph.client.schemas.records import JsonSchema
from heliograph.processors.options import SEND_BYTES_MAX
from heliograph.processors.records import ProcessorOutput
from heliograph.protocol.topic_name import TopicName
from heliograph.tasks.records import KEY_BYTES_MAX

if TYPE_CHECKING:
    from heliograph.client.schemas.schema import Schema
    from heliograph.processors.group import Cell
    from heliograph.processors.windows import WindowSpan

TIMER_NAME_CHARACTERS_MAX = 256
TIMERS_MAX = 1_000  # of one key # I15

_JSON = JsonSchema()


class Context:
    """The state of the key, and the effects of handling one message. They are kept if the handling returns, else
    dropped.

    Attributes:
        key: Key of the message; None: it has none, and no state.
        window: The window of event time, if the processor has windows.
        partition: Number of the partition.
        now_ms: The time of the owner's clock, in ms since the epoch.
        log: A logger whose lines are in ``helio functions logs``.
    """

    def __init__(
        self,
        key: str | None,
        cell: Callable[[], Cell],
        *,
        window: WindowSpan | None,
        partition: int,
        now_ms: int,
        outputs: Mapping[str, Schema[Any] | None],
        check: Callable[[tuple[str, ...]], None],
        has_timers: bool,
        log: logging.Logger,
    ) -> None:
        self.key = key
        self.window = window
        self.partition = partition
        self.now_ms = now_ms
        self.log = log
        self.sent: list[ProcessorOutput] = []
        self.cell: Cell | None = None  # once it was asked for
        self._cell_of = cell
        self._outputs = outputs
        self._check = check
        self._has_timers = has_timers
        self._bytes = 0

    @property
    def state(self) -> Any:
        """Return the state of the key, which may be changed in place; a new key has an empty one.

        Raises:
            BadRequestError: The message has no key, or the processor declares no ``state``.
        """
        return self._own().state

    @state.setter
    def state(self, value: Any) -> None:
        """Replace the state; None deletes it."""
        self._own().state = value

    def send(
        self,
        topic: str,
        value: Any,
        *,
        key: str | None = None,
        properties: Mapping[str, str] | None = None,
        event_time_ms: Moment | None = None,
    ) -> None:
        """Publish a message with the commit of this group, once.

        Args:
            topic: Full or short name.
            value: Bytes or text as they are; a model or a dataclass as its schema says; numbers, lists and dicts as
                JSON; None is a null value. A topic with a schema among ``outputs`` takes what that schema takes.

        Raises:
            BadRequestError: The value has no form, the topic is an input or not among the declared outputs, or key or
                properties are no text.
            MessageTooLargeError: Key and properties have more than 7 KiB.
            QuotaExceededError: This message sends more than 1 MiB.
        """
        name = str(TopicName.parse(topic))
        self._check((name,))
        time_ms = None if event_time_ms is None else moment_ms(event_time_ms, "event_time_ms")
        schema = self._outputs.get(name)
        payload = None if value is None else schema.encode(value) if schema is not None else encoded(value)
        # Once committed it has to be published, so what no topic takes is refused here.
        check_head_size(checked_head(0, None if key is None else checked_text(key), properties, time_ms))
        output = ProcessorOutput(name, payload, key, properties, time_ms)
        self._bytes += output.size
        if self._bytes > SEND_BYTES_MAX:
            raise QuotaExceededError("one message sends too much", field="send", limit=f"{SEND_BYTES_MAX} bytes")
        self.sent.append(output)

    def timer(self, name: str, *, after: Duration | None = None, at: Moment | None = None) -> None:
        """Have ``on_timer`` called with a name, for this key, at a time or later; a timer of the same name is replaced.

        Raises:
            BadRequestError: The message has no key, the processor has no ``on_timer``, or no or two times are given.
            QuotaExceededError: The key has 1,000 timers.
        """
        if (after is None) == (at is None):
            raise BadRequestError("a timer needs after= or at=", field="after")
        if not self._has_timers:
            raise BadRequestError("the processor has no on_timer", field="timer")
        if not 0 < len(name) <= TIMER_NAME_CHARACTERS_MAX:
            raise BadRequestError("the name of a timer is empty or too long", field="name", limit="256 characters")
        timers = self._own(is_state=False).timers
        if name not in timers and len(timers) >= TIMERS_MAX:
            raise QuotaExceededError("the key has too many timers", field="timer", limit=f"{TIMERS_MAX}")
        timers[name] = moment_ms(at, "at") if at is not None else self.now_ms + round(1000 * seconds_of(after, "after"))

    def cancel_timer(self, name: str) -> None:
        """Forget a timer of this key, if it is set."""
        self._own(is_state=False).timers.pop(name, None)

    def _own(self, *, is_state: bool = True) -> Cell:
        if self.cell is None:
            if self.key is None:
                raise BadRequestError("the message has no key, so it has no state and no timers", field="key")
            if (size := len(self.key.encode())) > KEY_BYTES_MAX:
                raise QuotaExceededError(
                    f"a key of {size} bytes has no state", field="key", limit=f"{KEY_BYTES_MAX} bytes"
                )
            self.cell = self._cell_of()
        if is_state and not self.cell.has_state:
            raise BadRequestError("the processor declares no state: state = dict, for example", field="state")
        return self.cell


def encoded(value: Any) -> bytes:
    """Return the bytes of a value that is sent to a topic without a declared schema.

    Raises:
        BadRequestError: It has no form.
    """
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bool | int | float | list | tuple | dict):
        return _JSON.encode(value)
    if dataclasses.is_dataclass(value) or hasattr(type(value), "model_fields"):
        schema = schema_of(type(value))
        assert schema is not None, "models and dataclasses have a schema"
        return schema.encode(value)
    raise BadRequestError(f"a {type(value).__name__} cannot be sent", field="value")
