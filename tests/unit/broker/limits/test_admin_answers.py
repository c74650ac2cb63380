"""Answers of administration that may be large are made a few at a time (I15)."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from heliograph.actors.broker.admin.admin import AdminService
from heliograph.actors.broker.admin.topics import OwnedTopics
from heliograph.actors.broker.limits.answers import LISTS, LISTS_AT_ONCE_MAX, SHOWN, SHOWN_AT_ONCE_MAX, turns
from heliograph.operations.table import OPERATIONS
from heliograph.protocol.topic_name import TopicName
from tests.waits import many_turns

CALLS = 20


class Gate:
    """Where calls stay until the gate is opened, and how many there are at once."""

    def __init__(self) -> None:
        self.open, self.inside, self.most = asyncio.Event(), 0, 0

    async def passed(self, *_: Any, **__: Any) -> Any:
        self.inside += 1
        self.most = max(self.most, self.inside)
        try:
            await self.open.wait()
        finally:
            self.inside -= 1
        raise LookupError("nothing is there")


async def counted(gate: Gate, calls: list[asyncio.Task[Any]], expected: int) -> None:
    await many_turns()
    assert gate.inside == expected
    calls[0].cancel()  # its caller has gone, and another one takes its turn
    await many_turns()
    assert gate.inside == expected
    gate.open.set()
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert sum(isinstance(one, LookupError) for one in outcomes) == CALLS - 1
    assert (gate.inside, gate.most) == (0, expected)


async def test_messages_are_shown_a_few_at_a_time_by_the_owner_of_topics() -> None:
    gate = Gate()
    context = SimpleNamespace(topics=SimpleNamespace(get=gate.passed))
    owned = OwnedTopics(cast(Any, context), cast(Any, None), cast(Any, None))
    topic = TopicName.parse("t")
    arguments: tuple[tuple[str, dict[str, Any]], ...] = (
        ("peek", {"subscription": "s", "count": 1}),
        ("examine", {"initial": "earliest", "number": 1}),
        ("message", {"ledger_id": 1, "entry_id": 2}),
    )
    calls = [
        asyncio.ensure_future(owned.run(arguments[number % 3][0], topic, arguments[number % 3][1]))
        for number in range(CALLS)
    ]
    other = asyncio.ensure_future(owned.run("last_message_id", topic, {}))
    await many_turns()
    assert gate.inside == SHOWN_AT_ONCE_MAX + 1, "what returns no messages does not wait"
    other.cancel()
    gate.most = 0
    await counted(gate, calls, SHOWN_AT_ONCE_MAX)


@pytest.mark.parametrize(("operation", "expected"), [("list_topics", LISTS_AT_ONCE_MAX), ("delete_topic", CALLS)])
def test_lists_are_made_a_few_at_a_time(operation: str, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    async def allowed(*_: Any) -> None:
        return None

    async def scenario() -> None:
        gate = Gate()
        monkeypatch.setattr(AdminService, operation, lambda self, **_: gate.passed())
        admin = object.__new__(AdminService)
        admin._turns = turns(LISTS, LISTS_AT_ONCE_MAX)
        noted = SimpleNamespace(operation=lambda *_, **__: None)
        admin._context = cast(Any, SimpleNamespace(authorizer=SimpleNamespace(check_operation=allowed), audit=noted))
        arguments = {"list_topics": {"namespace": "a/b"}, "delete_topic": {"topic": "t"}}[operation]
        calls = [asyncio.ensure_future(admin.run(operation, arguments)) for _ in range(CALLS)]
        await asyncio.sleep(0.01)
        if expected < CALLS:
            await counted(gate, calls, expected)
            return
        assert gate.inside == CALLS
        gate.open.set()
        await asyncio.gather(*calls, return_exceptions=True)

    asyncio.run(scenario())


def test_operations_that_wait_for_their_turn_exist() -> None:
    assert {*LISTS, *(f"cursors.{name}" for name in SHOWN)} < OPERATIONS.keys()
