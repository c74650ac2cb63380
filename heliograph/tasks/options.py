"""The options of a task, and the topics of its queue (pure)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, get_args

from heliograph.base.clock import Duration, seconds_of
from heliograph.base.errors import InvalidConfigError
from heliograph.protocol.topic_name import TopicName

SUBSCRIPTION = "tasks"  # of the workers
EXPIRY = "expiry"  # the subscription that keeps states and results until they expire
CONCURRENCY_MAX = 1_000  # jobs that one worker runs at a time
PRIORITIES_MAX = 8
RETRIES_MAX = 1_000
JOBS_MAX = 1_000_000  # whose states a process holds, about 400 bytes each # I15
PAUSE_SECONDS_MAX = 86_400.0
Encoding = Literal["pickle", "json"]

RATE_MAX = 1_000_000_000
_RATE = re.compile(r"(\d+)/(s|m|h)")
_PERIODS = {"s": 1, "m": 60, "h": 3600}


@dataclass(frozen=True, slots=True)
class JobRate:
    """How many jobs all workers of a queue together begin in how many seconds."""

    jobs: int
    seconds: int

    @classmethod
    def parse(cls, text: str) -> JobRate:
        """Return the rate of a text such as ``100/s``, ``30/m`` or ``5/h``.

        Raises:
            InvalidConfigError: The text has another form, or the rate is 0.
        """
        found = _RATE.fullmatch(text) if isinstance(text, str) else None
        if found is None or not 0 < int(found[1]) <= RATE_MAX:
            raise InvalidConfigError(
                f"rate is {text!r}", field="rate", limit=f"1 to {RATE_MAX} jobs a second, minute or hour, as 100/s"
            )
        return cls(int(found[1]), _PERIODS[found[2]])


@dataclass(frozen=True, slots=True)
class TaskOptions:
    """How the jobs of a task are run.

    Attributes:
        queue: Name of the topic that holds the jobs. Several tasks may share one queue; then their workers know all.
        concurrency: Jobs that one worker runs at a time.
        per_key: Jobs of one key that run at a time, over all workers; None: any number. Only 1 keeps their order.
        retries: How often a job that failed is begun again before it becomes a letter.
        backoff: The first and the longest pause before a failed job begins again, in seconds; the pause doubles.
        timeout: Seconds after which a job that runs has failed; None: never.
        rate: Jobs begun a second, minute or hour, over all workers, such as ``100/s``; None: any number.
        crashes: How often a job may end the worker that runs it alone before it becomes a letter.
        priorities: Number of priorities. Jobs of priority 0, the default, are begun first; a later one has half the
            turns of the one before.
        encoding: ``pickle``, or ``json`` for arguments and results that other languages write and read.
        results_for: Seconds that states and results are kept.
        jobs_max: Jobs with a state; more end the processes that hold them. # I15
    """

    queue: str
    concurrency: int = 8
    per_key: int | None = None
    retries: int = 5
    backoff: tuple[float, float] = (1.0, 60.0)
    timeout: Duration | None = None
    rate: str | None = None
    crashes: int = 3
    priorities: int = 1
    encoding: Encoding = "pickle"
    results_for: Duration = 86_400.0
    jobs_max: int = JOBS_MAX

    def __post_init__(self) -> None:
        if TopicName.parse(self.queue).partition >= 0:
            raise InvalidConfigError("a queue is a whole topic, not a partition", field="queue")
        for name, least, most in (
            ("concurrency", 1, CONCURRENCY_MAX),
            ("per_key", 1, CONCURRENCY_MAX),
            ("retries", 0, RETRIES_MAX),
            ("crashes", 1, RETRIES_MAX),
            ("priorities", 1, PRIORITIES_MAX),
            ("jobs_max", 1, JOBS_MAX),
        ):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or not least <= value <= most):
                raise InvalidConfigError(f"{name} is {value!r}", field=name, limit=f"{least} to {most}")
        first, longest = self.backoff if isinstance(self.backoff, tuple | list) and len(self.backoff) == 2 else (-1, -1)
        if not 0 <= first <= longest <= PAUSE_SECONDS_MAX:
            raise InvalidConfigError(
                f"backoff is {self.backoff!r}",
                field="backoff",
                limit=f"the first and the longest pause, 0 to {PAUSE_SECONDS_MAX:.0f} s",
            )
        if self.timeout is not None and seconds_of(self.timeout, "timeout") <= 0:
            raise InvalidConfigError("timeout must be above 0", field="timeout")
        if seconds_of(self.results_for, "results_for") <= 0:
            raise InvalidConfigError("results_for must be above 0", field="results_for")
        if self.encoding not in get_args(Encoding):
            raise InvalidConfigError(f"encoding is {self.encoding!r}", field="encoding", limit="pickle, json")
        if self.rate is not None:
            JobRate.parse(self.rate)

    @property
    def job_topics(self) -> tuple[str, ...]:
        """Return the topics of the jobs, by priority from 0."""
        name = str(TopicName.parse(self.queue))
        return (name, *(f"{name}-priority-{each}" for each in range(1, self.priorities)))

    @property
    def states_topic(self) -> str:
        """Return the topic of the states, keyed by the jobs' ids."""
        return f"{TopicName.parse(self.queue)}-states"

    @property
    def results_topic(self) -> str:
        """Return the topic of the larger results."""
        return f"{TopicName.parse(self.queue)}-results"

    @property
    def letters_topic(self) -> str:
        """Return the topic of the jobs that failed for good."""
        return f"{TopicName.parse(self.queue)}-letters"

    @property
    def schedules_topic(self) -> str:
        """Return the topic of the schedules, keyed by their names."""
        return f"{TopicName.parse(self.queue)}-schedules"
