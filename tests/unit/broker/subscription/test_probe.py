"""Tests of the question of a quiet owner whether its bookies would take another add."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from heliograph.actors.errors import LedgerFencedError
from heliograph.actors.ledger.driver.writer import LedgerWriter
from heliograph.actors.ledger.limits import WriterLimits
from heliograph.actors.ledger.pipeline import WindowRoom
from heliograph.actors.wire.messages import Answer, Status
from heliograph.base.errors import HeliographError
from tests.unit.ledger.cores import Spares, ledger

BOOKIES = ("b1", "b2", "b3")


class Context(SimpleNamespace):
    """The part of a driver's context that a question needs. ``answer`` answers for one bookie."""

    def __init__(self) -> None:
        config = SimpleNamespace(writer=WriterLimits())
        loop = asyncio.get_running_loop()
        super().__init__(config=config, loop=loop, waiting={}, window_room=WindowRoom())

    def chooser_for(self, record: Any) -> Spares:
        return Spares()

    def now(self) -> int:
        return 0

    def begin_ticking(self, writer: LedgerWriter) -> None:
        """Do nothing: no test needs the passing of time."""

    def request(self, bookie_id: str, request: Any, body: bytes, on_answer: Callable[..., None], context: Any) -> None:
        self.waiting[bookie_id] = lambda status: on_answer(context, Answer(0, status), memoryview(b""))

    def answer(self, bookie_id: str, status: Status) -> None:
        self.waiting.pop(bookie_id)(status)


async def asked(*answers: tuple[str, Status]) -> tuple[bool, list[HeliographError]]:
    """Ask, let bookies answer in turn, and return the outcome and what the owner was told."""
    context, told = Context(), list[HeliographError]()
    writer = LedgerWriter(cast(Any, context), ledger(" ".join(BOOKIES)))
    task = asyncio.create_task(writer.probe(told.append))
    for bookie_id, status in answers:
        await asyncio.sleep(0)
        context.answer(bookie_id, status)
    return await task, told


def test_an_ack_quorum_witnesses_a_ledger_without_the_others() -> None:
    assert asyncio.run(asked(("b1", Status.OK), ("b2", Status.OK))) == (True, [])


def test_too_few_answers_witness_nothing() -> None:
    found = asyncio.run(asked(("b1", Status.OK), ("b2", Status.STORAGE_ERROR), ("b3", Status.STORAGE_ERROR)))
    assert found == (False, [])


def test_a_fence_is_told_at_once() -> None:  # I13
    is_witnessed, told = asyncio.run(asked(("b1", Status.FENCED)))
    assert not is_witnessed
    assert [type(error) for error in told] == [LedgerFencedError]


def test_a_fence_is_told_though_an_ack_quorum_answered_before() -> None:  # I13
    is_witnessed, told = asyncio.run(asked(("b1", Status.OK), ("b2", Status.OK), ("b3", Status.FENCED)))
    assert is_witnessed, "when the owner asked, nobody had fenced an ack quorum"
    assert [type(error) for error in told] == [LedgerFencedError]
