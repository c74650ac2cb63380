"""Dead letters and copies: a call ends in time and says how far it came; a pass ends although letters fail."""

from __future__ import annotations

from typing import Any

import pytest

from heliograph.base.errors import ServiceNotReadyError
from heliograph.gateway.rest import resend
from heliograph.metrics.broker import RETRYING
from tests.unit.gateway.clients import FakeTopic
from tests.unit.gateway.world import Gateway

ORIGIN = "persistent://public/default/shop"
LETTERS = f"{ORIGIN}-billing-DLQ"
PATH = "/topics/persistent/public/default/shop-billing-DLQ"


@pytest.fixture
async def shop(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> tuple[Gateway, FakeTopic]:
    """Ten dead letters, of which the even ones cannot go back; and the topic of the others."""
    monkeypatch.setattr(resend, "IDLE_SECONDS", 0.05)
    origin, letters = gateway.world.add(ORIGIN), gateway.world.add(LETTERS)
    for number in range(10):
        letters.publish(f"{number}".encode(), None, {"REAL_TOPIC": ORIGIN if number % 2 else f"{ORIGIN}-other"}, None)
    return gateway, origin


async def posted(gateway: Gateway, what: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = await gateway.http.post(f"{PATH}/{what}", json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def test_a_pass_ends_although_letters_fail(shop: tuple[Gateway, FakeTopic]) -> None:
    gateway, origin = shop
    answer = await posted(gateway, "retry", {"limit": 3})
    assert (answer["sent"], answer["failures"], answer["done"]) == (1, 2, False)
    calls = 1
    while not answer["done"]:
        answer = await posted(gateway, "retry", {"limit": 3, "after": answer["next"]})
        calls += 1
        assert calls <= 5, "the pass does not end"
    assert sorted(message.data for message in origin.messages) == [b"1", b"3", b"5", b"7", b"9"]
    assert answer["next"] == ""
    again = await posted(gateway, "retry", {})
    assert (again["sent"], again["failures"], again["done"]) == (0, 5, True), "a later pass tries them again"


async def test_a_call_ends_in_time_and_says_what_it_sent(
    shop: tuple[Gateway, FakeTopic], monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway, origin = shop
    monkeypatch.setattr(resend, "SECONDS_MAX", 0.3)
    gateway.world.held = []  # no receipt comes
    ids = [f"{gateway.world.topics[LETTERS].ledger_id}:{entry}" for entry in (1, 3)]
    calls: list[tuple[str, dict[str, Any]]]
    calls = [("retry", {}), ("retry", {"ids": ids}), ("resend", {"ids": ids, "to": ORIGIN})]
    for what, body in calls:
        answer = await posted(gateway, what, body)
        assert (answer["sent"], answer["done"]) == (0, False), what
        assert answer["left"] == ([f"{id_}:-1" for id_ in ids] if body else []), what
    assert [message.data for message in origin.messages] == [b"1"] * 3, "the bound holds for each letter"


async def test_a_letter_that_is_not_stored_in_time_has_failed(
    shop: tuple[Gateway, FakeTopic], monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway, _ = shop
    monkeypatch.setattr(resend, "SEND_SECONDS", 0.05)
    gateway.world.held = []
    answer = await posted(gateway, "retry", {})
    assert (answer["sent"], answer["failures"], answer["done"]) == (0, 10, True)


async def test_a_letter_that_was_named_is_not_sent_again_with_all(shop: tuple[Gateway, FakeTopic]) -> None:
    gateway, origin = shop
    letters = gateway.world.topics[LETTERS]
    named = {"ids": [f"{letters.ledger_id}:1"]}
    assert (await posted(gateway, "retry", named))["done"]
    assert [str(id_) for id_ in letters.subscriptions[RETRYING].acknowledged] == [f"{letters.ledger_id}:1:-1"]
    await posted(gateway, "retry", {})
    assert sorted(message.data for message in origin.messages) == [b"1", b"3", b"5", b"7", b"9"]
    await posted(gateway, "retry", named)
    assert len(origin.messages) == 6, "who names it again wants it again"


async def test_a_message_that_is_gone_fails_alone_unless_it_is_the_first(shop: tuple[Gateway, FakeTopic]) -> None:
    gateway, origin = shop
    ledger = gateway.world.topics[LETTERS].ledger_id
    gateway.world.send_errors[b"3"] = ServiceNotReadyError("later")
    ids = [f"{ledger}:1", f"{ledger - 1}:7", f"{ledger}:3", f"{ledger}:5"]
    answer = await posted(gateway, "resend", {"ids": ids, "to": ORIGIN})
    assert (answer["sent"], answer["failures"], answer["done"], answer["left"]) == (2, 2, True, [])
    assert [message.data for message in origin.messages] == [b"1", b"5"]
    refused = await gateway.http.post(f"{PATH}/resend", json={"ids": ids[1:], "to": ORIGIN})
    assert refused.status_code == 404
