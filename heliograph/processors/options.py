"""The options of a processor, and the topics that belong to it (pure)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from heliograph.base.clock import Duration, seconds_of
from heliograph.base.errors import BadRequestError, InvalidConfigError
from heliograph.protocol.topic_name import TopicName

INSTANCES_MAX = 1_000
STATE_BYTES_MAX = 1 << 20  # of one key # I15
KEYS_MAX = 1_000_000  # of one partition, in the memory of its owner # I15
BATCH_MAX = 1_000  # messages of one call of on_batch # I15
INPUTS_MAX = 16
COMMIT_SECONDS_MAX = 3_600.0
RETRIES_MAX = 1_000
SEND_BYTES_MAX = 1 << 20  # that the handling of one message may send # I15
Start = Literal["earliest", "latest"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


@dataclass(frozen=True, slots=True)
class ProcessorOptions:
    """How a processor runs.

    Attributes:
        name: Name of the processor in the namespace of its first input, of its subscriptions, and in those of its
            topics.
        inputs: Full names of the topics that it reads; several have the same number of partitions.
        outputs: Full names of the topics that it may send to; None: any.
        instances: Processes that share the partitions.
        commit_every: Seconds from the first message of a group to its commit; 0: after each delivery.
        start: Where inputs are read from at first.
        retries: How often a message that failed is handled again before it becomes a letter.
        backoff: The first and the longest pause before that, in seconds; the pause doubles.
        batch: The most messages of one call of ``on_batch``.
        state_bytes_max: Most bytes of the state of one key. # I15
        keys_max: Most keys with a state in one partition. # I15
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...] | None = None
    instances: int = 1
    commit_every: Duration = 1.0
    start: Start = "earliest"
    retries: int = 3
    backoff: tuple[float, float] = (1.0, 60.0)
    batch: int = 64
    state_bytes_max: int = 64 << 10
    keys_max: int = KEYS_MAX

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise InvalidConfigError(
                f"name is {self.name!r}", field="name", limit="1 to 100 letters, digits, points, dashes and underscores"
            )
        if not 1 <= len(self.inputs) <= INPUTS_MAX or len(set(self.inputs)) < len(self.inputs):
            raise InvalidConfigError(
                "inputs are missing, too many or the same", field="inputs", limit=f"1 to {INPUTS_MAX}"
            )
        for topic in (*self.inputs, *(self.outputs or ())):
            parsed = TopicName.parse(topic)
            if parsed.partition >= 0 or not parsed.is_persistent:
                raise InvalidConfigError(f"{topic} is no whole persistent topic", field="inputs")
        for name, least, most in (
            ("instances", 1, INSTANCES_MAX),
            ("retries", 0, RETRIES_MAX),
            ("batch", 1, BATCH_MAX),
            ("state_bytes_max", 1, STATE_BYTES_MAX),
            ("keys_max", 1, KEYS_MAX),
        ):
            value = getattr(self, name)
            if type(value) is not int or not least <= value <= most:
                raise InvalidConfigError(f"{name} is {value!r}", field=name, limit=f"{least} to {most}")
        if not 0 <= seconds_of(self.commit_every, "commit_every") <= COMMIT_SECONDS_MAX:
            raise InvalidConfigError(
                "commit_every is out of range", field="commit_every", limit=f"0 to {COMMIT_SECONDS_MAX} s"
            )
        if self.start not in ("earliest", "latest"):
            raise InvalidConfigError(f"start is {self.start!r}", field="start", limit="earliest or latest")
        first, longest = self.backoff if isinstance(self.backoff, tuple | list) and len(self.backoff) == 2 else (-1, -1)
        if not 0 < first <= longest <= COMMIT_SECONDS_MAX:
            raise InvalidConfigError(
                f"backoff is {self.backoff!r}", field="backoff", limit="the first and the longest pause"
            )
        self.check_outputs(self.outputs or ())

    def check_outputs(self, outputs: tuple[str, ...]) -> None:
        """Refuse outputs that are inputs or not declared.

        Raises:
            BadRequestError: A message that is sent there would come back, or the topic is not among ``outputs``.
        """
        for topic in outputs:
            if topic in self.inputs:
                raise BadRequestError(
                    f"{topic} is an input of {self.name}: its outputs would come back", field="outputs"
                )
            if self.outputs is not None and topic not in self.outputs:
                raise BadRequestError(f"{topic} is not among the outputs of {self.name}", field="outputs")

    @property
    def namespace(self) -> str:
        """Return ``tenant/namespace`` of the topics of the processor."""
        return TopicName.parse(self.inputs[0]).namespace

    def topic(self, suffix: str) -> str:
        """Return the full name of a topic of the processor: ``state``, ``letters`` or ``log``."""
        return f"persistent://{self.namespace}/{self.name}-{suffix}"
