"""Campaigns: conversations from a seed against a listener until something breaks or the time is over.

Conversation ``n`` of a seed is the same wherever it is held. A listener serves at most
``GENERATION`` conversations, so that what hostile clients may store (topics, nodes, entries) stays bounded.
"""

from __future__ import annotations

import asyncio
import gc
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests.fuzz.alarms import Alarms
from tests.fuzz.conversation import Conversation
from tests.fuzz.listener import BrokenPromiseError, Listener, converse

GENERATION = 500  # conversations with one instance of a listener
AUDIT_EVERY = 100  # conversations between two complete checks
SETTLE_SECONDS_MAX = 30.0  # until everything of a conversation is gone; a promise is broken only after this
WORK_SECONDS_MAX = 60.0
SHRINK_TRIES_MAX = 120


@dataclass(frozen=True)
class Failure:
    """A conversation after which a promise was broken."""

    listener: str
    seed: int
    number: int
    reason: str
    conversation: Conversation
    is_alone: bool = False  # whether the conversation does it alone, with a new listener

    def __str__(self) -> str:
        first = self.number if self.is_alone else self.number - self.number % GENERATION
        lines = [
            f"{self.listener}, seed {self.seed}, conversation {self.number}"
            + (", smallest form:" if self.is_alone else ", which needs those before it:"),
            *(f"  {step}" for step in self.conversation),
            self.reason,
            "replay: python -m tests.fuzz --listener "
            f"{self.listener} --seed {self.seed} --first {first} --count {self.number - first + 1}",
        ]
        return "\n".join(lines)


@dataclass(frozen=True)
class Report:
    """What a campaign did."""

    listener: str
    conversations: int
    seconds: float
    failure: Failure | None


def conversation_of(kind: type[Listener], seed: int, number: int) -> Conversation:
    return kind.conversation(Random(f"{kind.name} {seed} {number}"))


async def campaign(
    kind: type[Listener], seed: int, *, first: int = 0, count: int | None = None, seconds: float | None = None
) -> Report:
    """Hold conversations ``first`` and following, as many as ``count``, or for some time; stop at the first failure."""
    begun = time.monotonic()
    number = first
    while (count is None or number < first + count) and (seconds is None or time.monotonic() < begun + seconds):
        end = min(
            number - number % GENERATION + GENERATION, first + count if count is not None else number + GENERATION
        )

        def is_over() -> bool:
            return seconds is not None and time.monotonic() >= begun + seconds

        numbers = range(number, end)
        held, reason = await generation(kind, [conversation_of(kind, seed, n) for n in numbers], is_over)
        if reason:
            failed = number + held - 1
            failure = Failure(kind.name, seed, failed, reason, conversation_of(kind, seed, failed))
            return Report(kind.name, failed + 1 - first, time.monotonic() - begun, await shrunk(kind, failure))
        number += held
    return Report(kind.name, number - first, time.monotonic() - begun, None)


async def generation(
    kind: type[Listener], conversations: Sequence[Conversation], is_over: Callable[[], bool] = lambda: False
) -> tuple[int, str]:
    """Hold conversations with one new listener.

    Returns:
        how many were held, and what the last of them broke; "" if every promise was kept.
    """
    alarms = Alarms()
    held = 0
    with tempfile.TemporaryDirectory(prefix="heliograph-fuzz-") as folder, alarms.listening():
        listener = kind(Path(folder))
        await listener.start()
        try:
            await listener.work()
            baseline, baseline_long = listener.held(), listener.held_long()
            for held, conversation in enumerate(conversations, 1):
                is_last = held == len(conversations) or is_over()
                is_audit = is_last or held % AUDIT_EVERY == 0
                reason = await _judged(listener, conversation, alarms, baseline, baseline_long if is_audit else None)
                if reason or is_last:
                    return held, reason
        finally:
            await listener.stop()
    return held, ""


async def _judged(
    listener: Listener,
    conversation: Conversation,
    alarms: Alarms,
    baseline: Counter[str],
    baseline_long: Counter[str] | None,
) -> str:
    """Hold one conversation; return which promise it broke, "" for none. Check more if ``baseline_long`` is given."""
    try:
        for heard in await converse(listener, conversation):
            listener.examine(heard)
        await _settled(listener.held, baseline)
        if less := baseline - listener.held():
            raise BrokenPromiseError(f"taken from others: {dict(less)}")
        async with asyncio.timeout(WORK_SECONDS_MAX):
            await listener.work()
        if baseline_long is not None:
            await _settled(listener.held_long, baseline_long)
            async with asyncio.timeout(WORK_SECONDS_MAX):
                await listener.audit()
            gc.collect()  # tasks whose exceptions nobody retrieved say so when they are collected
    except BrokenPromiseError as error:
        return "\n".join([str(error), *alarms.found])
    except Exception as error:
        return "\n".join([*traceback.format_exception(error), *alarms.found])
    return "\n".join(alarms.found)


async def _settled(held: Callable[[], Counter[str]], baseline: Counter[str]) -> None:
    """Wait until nothing of a conversation is held any more."""
    deadline = time.monotonic() + SETTLE_SECONDS_MAX
    turns = 0
    while more := held() - baseline:
        if time.monotonic() > deadline:
            raise BrokenPromiseError(f"left behind after all connections were closed: {dict(more)}")
        turns += 1
        await asyncio.sleep(0 if turns < 20 else 0.002)


async def shrunk(kind: type[Listener], failure: Failure) -> Failure:
    """Return a failure with fewer steps, if the conversation fails alone; otherwise the failure itself."""
    _, reason = await generation(kind, [failure.conversation])
    if not reason:
        return failure
    steps, tries, size = list(failure.conversation), 0, max(1, len(failure.conversation) // 2)
    while size and tries < SHRINK_TRIES_MAX:
        at = 0
        while at < len(steps) and tries < SHRINK_TRIES_MAX:
            tries += 1
            fewer = steps[:at] + steps[at + size :]
            _, again = await generation(kind, [tuple(fewer)])
            if _gist(again) == _gist(reason):
                steps, reason = fewer, again
            else:
                at += size
        size //= 2
    return Failure(failure.listener, failure.seed, failure.number, reason, tuple(steps), is_alone=True)


def _gist(reason: str) -> str:
    """Return what two forms of one failure have in common: the words of the last line."""
    lines = reason.strip().splitlines()
    return "".join(character for character in lines[-1] if character.isalpha())[:40] if lines else ""
