"""A short round of every listener. ``make fuzz`` holds more."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tests.fuzz.campaign import campaign, conversation_of
from tests.fuzz.conversation import Act
from tests.fuzz.listeners.listeners import LISTENERS
from tests.patience import patience

SEED = 7
CONVERSATIONS = 60


@pytest.fixture(autouse=True)
def _patience() -> Iterator[None]:
    with patience():
        yield


@pytest.mark.parametrize("name", LISTENERS)
def test_no_conversation_breaks_a_promise(name: str) -> None:
    report = asyncio.run(campaign(LISTENERS[name], SEED, count=CONVERSATIONS))
    assert report.failure is None, str(report.failure)
    assert report.conversations == CONVERSATIONS


@pytest.mark.parametrize("name", LISTENERS)
def test_a_seed_says_the_same_each_time(name: str) -> None:
    kind = LISTENERS[name]
    first = [conversation_of(kind, SEED, number) for number in range(30)]
    assert first == [conversation_of(kind, SEED, number) for number in range(30)]
    assert first != [conversation_of(kind, SEED + 1, number) for number in range(30)]
    acts = {step.act for conversation in first for step in conversation}
    assert acts >= {Act.SEND, Act.HEAR, Act.TURNS, Act.EOF, Act.CLOSE, Act.ABORT}
