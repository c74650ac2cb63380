"""The subscription that a stream owns, and how long it waits for a cluster that does not answer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from heliograph.base.errors import (
    ClusterNotFoundError,
    ConnectionLostError,
    SubscriptionExistsError,
    SubscriptionNotFoundError,
    TopicNotFoundError,
)
from heliograph.client.admin.admin import AdminSync
from heliograph.pipelines.planning.access import ClusterAccess
from heliograph.pipelines.planning.patience import Patience
from heliograph.pipelines.planning.ranges import LedgerRange
from heliograph.pipelines.reading.options import ReadOptions
from heliograph.pipelines.streaming import source
from heliograph.pipelines.streaming.checkpoint import StreamCheckpoint, batches
from heliograph.pipelines.streaming.subscription import StreamSubscription
from tests.unit.pipelines.test_ranges import a_range

TOPIC = "persistent://public/default/t"


class FakeAdmin:
    """The operations on subscriptions; it notes the position up to which each is acknowledged."""

    def __init__(self) -> None:
        self.acknowledged: dict[str, str] = {}
        self.exists = False
        self.cursors = SimpleNamespace(expire_to=self.expire_to)

    def create_subscription(self, topic: str, name: str, position: str) -> None:
        assert position == "earliest"
        if self.exists:
            raise SubscriptionExistsError
        self.exists = True

    def expire_to(self, topic: str, name: str, message_id: str) -> int:
        if not self.exists:
            raise SubscriptionNotFoundError
        if topic.endswith("-9"):
            raise TopicNotFoundError
        self.acknowledged[topic] = message_id
        return 1


def subscription(admin: FakeAdmin) -> StreamSubscription:
    return StreamSubscription(cast(AdminSync, admin), "t", "mine")


def test_a_stream_acknowledges_what_is_committed_and_nothing_before() -> None:
    admin = FakeAdmin()
    subscription(admin).open({})
    assert (admin.exists, admin.acknowledged) == (True, {})
    subscription(admin).open({0: (5, 3), 1: (6, 0)})  # again, with a checkpoint
    assert admin.acknowledged == {f"{TOPIC}-partition-0": "5:2"}
    subscription(admin).acknowledge({-1: (7, 1)})
    assert admin.acknowledged[TOPIC] == "7:0"


def test_a_subscription_that_was_deleted_is_made_again(caplog: pytest.LogCaptureFixture) -> None:
    admin = FakeAdmin()
    subscription(admin).acknowledge({-1: (7, 1), 9: (3, 1)})
    assert admin.acknowledged == {TOPIC: "7:0"}
    assert "mine was deleted" in caplog.text


def test_the_position_is_told_after_the_commit_is_durable(tmp_path: Path) -> None:
    checkpoint = StreamCheckpoint(tmp_path)
    assert checkpoint.committed_positions() == {}
    told: list[Any] = []

    def committed(positions: Any) -> None:
        assert StreamCheckpoint(tmp_path).committed_positions() == positions
        told.append(positions)

    running = batches(
        checkpoint, lambda start: [a_range(0, 9)] if not start else [], on_commit=committed, until_caught_up=True
    )
    next(running)
    assert told == []
    assert checkpoint.committed_positions() == {}
    running.close()
    assert list(batches(checkpoint, lambda start: [], on_commit=committed, until_caught_up=True))
    assert told == [{-1: (7, 10)}]
    assert (
        checkpoint.stream_id() == StreamCheckpoint(tmp_path).stream_id() != StreamCheckpoint(tmp_path / "b").stream_id()
    )


def test_only_a_batch_of_an_earlier_run_is_asked_for_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The plan that was just made has the present addresses and grants."""
    asked: list[list[LedgerRange]] = []

    def planned(topic: str, start: dict[int, Any], **_: object) -> list[LedgerRange]:
        return [] if start else [replace(a_range(0, 9), grant="fresh")]

    def refreshed(ranges: list[LedgerRange], **_: object) -> list[LedgerRange]:
        asked.append(list(ranges))
        return [replace(piece, grant="refreshed") for piece in ranges]

    monkeypatch.setattr(source, "plan_topic", planned)
    monkeypatch.setattr(source, "refresh_addresses", refreshed)
    monkeypatch.setattr(ClusterAccess, "admin_sync", lambda self: FakeAdmin())
    for is_first in (True, False):
        running = source.StreamSource(TOPIC, tmp_path, ReadOptions(), {"until_caught_up": True}).batches()
        batch = next(running)
        (piece,) = batch.ranges
        assert (batch.batch_id, piece.grant, len(asked)) == ((0, "fresh", 0) if is_first else (0, "refreshed", 1))
        running.close()


class Clock:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Failing:
    """A call that fails before it succeeds."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)

    def __call__(self) -> str:
        if self.errors:
            raise self.errors.pop(0)
        return "done"


def test_a_cluster_that_does_not_answer_is_waited_for_with_a_bound(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    patience = Patience(100, lambda: clock.now, clock.sleep)
    assert patience.call("planning", Failing(*[ConnectionLostError("broker-1 is gone")] * 5)) == "done"
    assert "planning failed" in caplog.text
    assert "broker-1 is gone" in caplog.text
    clock.now = 0
    with pytest.raises(ConnectionLostError):
        patience.call("planning", Failing(*[ConnectionLostError("gone")] * 1000))
    assert 50 < clock.now <= 100  # I15


def test_what_cannot_succeed_is_told_at_once() -> None:
    clock = Clock()
    patience = Patience(100, lambda: clock.now, clock.sleep)
    with pytest.raises(ClusterNotFoundError):  # there may be none: nobody waits for it
        patience.call("planning", Failing(ClusterNotFoundError()))
    with pytest.raises(TopicNotFoundError):
        patience.call("planning", Failing(TopicNotFoundError()))
    assert clock.now == 0
    patience.call("planning", Failing())
    assert patience.call("planning", Failing(ClusterNotFoundError("Ray does not answer"))) == "done"
