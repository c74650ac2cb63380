"""The fence's state machine, over every short sequence of events."""

from __future__ import annotations

import itertools

import pytest

from heliograph.actors.bookie.store.fencing import Fence, FenceEffect, FenceState


def test_adds_are_refused_from_the_first_request_on() -> None:  # I4
    fence = Fence()
    assert fence.permits_add(is_recovery=False)
    assert fence.request("a") is FenceEffect.WRITE
    assert not fence.permits_add(is_recovery=False)
    assert fence.permits_add(is_recovery=True)


def test_requests_share_one_record_and_wait_for_it() -> None:
    fence = Fence()
    assert [fence.request(name) for name in "abc"] == [FenceEffect.WRITE, FenceEffect.WAIT, FenceEffect.WAIT]
    assert not fence.is_durable, "nobody is answered before the record is durable"  # I6
    assert fence.written() == ["a", "b", "c"]
    assert fence.request("d") is FenceEffect.ANSWER
    assert fence.written() == []


def test_a_failed_record_fails_its_waiters_and_is_written_again() -> None:
    fence = Fence()
    fence.request("a")
    assert fence.failed() == ["a"]
    assert not fence.permits_add(is_recovery=False)
    assert fence.request("b") is FenceEffect.WRITE
    assert fence.written() == ["b"]


def test_a_restored_fence_answers_at_once() -> None:
    fence = Fence()
    fence.restore()
    assert fence.request("a") is FenceEffect.ANSWER


@pytest.mark.parametrize("events", list(itertools.product(["request", "written", "failed"], repeat=4)))
def test_nothing_leads_back_to_clear(events: tuple[str, ...]) -> None:  # I4
    """No waiter is forgotten or notified twice."""
    fence = Fence()
    asked: list[int] = []
    told: list[int] = []
    is_writing = False
    for number, event in enumerate(events):
        if event == "request":
            effect = fence.request(number)
            if effect is FenceEffect.ANSWER:
                assert fence.state is FenceState.FENCED
                told.append(number)
            assert (effect is FenceEffect.WRITE) <= (not is_writing), "one record at a time"
            is_writing = is_writing or effect is FenceEffect.WRITE
            asked.append(number)
        elif is_writing:
            told += fence.written() if event == "written" else fence.failed()
            is_writing = False
        if asked:
            assert not fence.is_clear
    if is_writing:
        told += fence.written()
    assert sorted(told) == asked
