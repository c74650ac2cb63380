"""The cost limit of one check of a schema, and the threads that checks run on (I15).

Definitions come from producers, and comparing two of them can take the square of their sizes, or more. So each check
has a budget that ends it with a named error, and none runs on an event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from heliograph.base.errors import IncompatibleSchemaError, MalformedJsonError, QuotaExceededError
from heliograph.base.guard.json_text import parse_json

VALUES_MAX = 20_000  # JSON values of one Avro definition; messages, fields and enumerations of one of protobuf
NAME_CHARACTERS_MAX = 1_024  # of one name or namespace in a definition; full names are made of several
STEPS_MAX = 200_000  # pairs of types and fields that one check compares, with all versions together
SECONDS_MAX = 5.0  # of processor time of the thread, for one check
STEPS_IN_TURN = 1_000  # between two looks at the clock
REASON_CHARACTERS_MAX = 1_000  # of a refusal, which may quote the definition
THREADS = 2  # for the checks of all topics
CHECKS_WAITING_MAX = 256  # of all topics, with those that run
CHECKS_OF_TOPIC_MAX = 16  # the same of one topic; they run one at a time

T = TypeVar("T")


class SchemaTooComplexError(IncompatibleSchemaError):
    """A check of the schema would take more than one may; nothing was stored."""


class CheckBudget:
    """The steps and the processor time that are left to one check. It belongs to the thread that made it."""

    def __init__(self) -> None:
        self._steps = 0
        self._end = time.thread_time() + SECONDS_MAX

    def step(self, steps: int = 1) -> None:
        """Count steps.

        Raises:
            SchemaTooComplexError: there are too many of them, or they took too long.
        """
        before = self._steps // STEPS_IN_TURN
        self._steps += steps
        if self._steps > STEPS_MAX:
            raise too_complex("has too many types and fields to compare", f"{STEPS_MAX} pairs")
        if self._steps // STEPS_IN_TURN != before:
            self.check_time()

    def check_time(self) -> None:
        """Raise SchemaTooComplexError if the check has used the time that it has."""
        if time.thread_time() > self._end:
            raise too_complex("takes too long to check", f"{SECONDS_MAX:g} s")


def too_complex(why: str, limit: str) -> SchemaTooComplexError:
    return SchemaTooComplexError(f"the schema {why}: the limit is {limit}", field="schema", limit=limit)


def read_definition(data: bytes, kind: str, *, is_stored: bool = False) -> Any:
    """Return the value of a definition in JSON.

    Args:
        is_stored: it was checked when it was stored, perhaps by a version that took more.

    Raises:
        IncompatibleSchemaError: it is not JSON.
        SchemaTooComplexError: it is above a limit of JSON.
    """
    try:
        return parse_json(data, f"the {kind} schema", "schema", values_max=VALUES_MAX, is_stored=is_stored)
    except MalformedJsonError as error:
        if error.limit is not None:
            raise SchemaTooComplexError(str(error), field="schema", limit=error.limit) from error
        raise IncompatibleSchemaError(str(error), field="schema") from error


class SchemaChecks:
    """Runs checks on threads of their own, one at a time for each topic. All calls on one event loop."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="schema-check")
        self._turns: dict[str, asyncio.Lock] = {}
        self._waiting: Counter[str] = Counter()

    async def run(self, topic: str, check: Callable[[], T]) -> T:
        """Return the result of a check, or raise its error.

        Raises:
            QuotaExceededError: too many checks wait, of the topic or of all; try again.
        """
        if self._waiting.total() >= CHECKS_WAITING_MAX or self._waiting[topic] >= CHECKS_OF_TOPIC_MAX:
            raise QuotaExceededError(
                f"other schemas are being checked: try again with {topic}",
                field="schema",
                limit=f"{CHECKS_OF_TOPIC_MAX} checks of one topic, {CHECKS_WAITING_MAX} of all",
            )
        self._waiting[topic] += 1
        turn = self._turns.setdefault(topic, asyncio.Lock())
        try:
            async with turn:
                return await asyncio.get_running_loop().run_in_executor(self._threads, check)
        finally:
            self._waiting[topic] -= 1
            if not self._waiting[topic]:
                del self._waiting[topic], self._turns[topic]
