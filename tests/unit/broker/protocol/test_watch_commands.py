"""Watchers of topic lists: what a client is told at first, and of each change."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from heliograph.actors.broker.namespaces import topic_lists
from heliograph.actors.broker.protocol.lookup_commands import topics_hash
from heliograph.actors.broker.protocol.watch_commands import WATCHERS_MAX
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.topic_name import TopicName
from tests.unit.broker.clients import Client, LoneBroker, T
from tests.unit.broker.world import turns

PATTERN = "persistent://public/default/or.*"
ORDERS = "persistent://public/default/orders"


@pytest.fixture
async def lone(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[LoneBroker]:
    monkeypatch.setattr(topic_lists, "GATHER_SECONDS", 0.0)
    async with LoneBroker("orders") as running:
        yield running


async def watch(client: Client, watcher_id: int = 1, **fields: Any) -> pb.BaseCommand:
    wanted: dict[str, Any] = {"namespace": "public/default", "topics_pattern": PATTERN, **fields}
    await turns(lambda: client.answer(T.CONNECTED))
    before = len(client.transport.answers)
    command = pb.CommandWatchTopicList(request_id=7, watcher_id=watcher_id, **wanted)
    client.say(T(type=T.WATCH_TOPIC_LIST, watch_topic_list=command))
    await turns(lambda: len(client.transport.answers) > before)
    return client.transport.answers[before]


def updates(client: Client) -> list[pb.CommandWatchTopicUpdate]:
    return [one.watch_topic_update for one in client.transport.answers if one.type == T.WATCH_TOPIC_UPDATE]


async def create(lone: LoneBroker, name: str) -> None:
    await lone.broker._catalog.create(TopicName.parse(name))


async def until(client: Client, count: int) -> None:
    for _ in range(500):
        if len(updates(client)) >= count:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("the client was not told")


async def test_a_client_is_told_of_topics_that_come_and_go(lone: LoneBroker) -> None:
    client = Client(lone.broker)
    await turns(lambda: client.answer(T.CONNECTED))
    flags = client.transport.answers[0].connected.feature_flags
    assert flags.supports_topic_watchers
    assert flags.supports_topic_watcher_reconcile
    success = (await watch(client)).watch_topic_list_success
    assert (success.request_id, success.watcher_id, list(success.topic)) == (7, 1, [ORDERS])
    assert success.topics_hash == topics_hash([ORDERS])
    await create(lone, "oranges")
    await create(lone, "apples")
    await until(client, 1)
    oranges = "persistent://public/default/oranges"
    assert (list(updates(client)[0].new_topics), list(updates(client)[0].deleted_topics)) == ([oranges], [])
    assert updates(client)[0].topics_hash == topics_hash([oranges, ORDERS])
    await lone.broker.admin.delete_topic("oranges")
    await until(client, 2)
    assert (list(updates(client)[1].new_topics), list(updates(client)[1].deleted_topics)) == ([], [oranges])
    await lone.broker.admin.create_subscription("orders", "s")  # a change below a topic
    await asyncio.sleep(0.05)
    assert len(updates(client)) == 2
    client.leave()


async def test_a_client_that_comes_back_gets_only_what_it_does_not_have(lone: LoneBroker) -> None:
    client = Client(lone.broker)
    known = (await watch(client)).watch_topic_list_success.topics_hash
    again = (await watch(client, topics_hash=known)).watch_topic_list_success  # the same watcher: reconciliation
    assert (list(again.topic), again.topics_hash) == ([], known)
    client.leave()
    other = Client(lone.broker)
    assert not (await watch(other, topics_hash=known)).watch_topic_list_success.topic
    assert (await watch(other, 2, topics_hash="0")).watch_topic_list_success.topic == [ORDERS]
    other.leave()


async def test_a_closed_watcher_is_told_nothing(lone: LoneBroker) -> None:
    client = Client(lone.broker)
    await watch(client)
    close = pb.CommandWatchTopicListClose(request_id=9, watcher_id=1)
    client.say(T(type=T.WATCH_TOPIC_LIST_CLOSE, watch_topic_list_close=close))
    await turns(lambda: client.answer(T.SUCCESS))
    await create(lone, "oranges")
    await asyncio.sleep(0.05)
    assert not updates(client)
    assert not lone.broker._topic_lists._followed  # nothing is watched in metadata
    client.leave()


async def test_a_namespace_may_come_later(lone: LoneBroker) -> None:
    client = Client(lone.broker)
    namespace: Any = {"namespace": "public/later", "topics_pattern": "public/later/.*"}
    assert not (await watch(client, **namespace)).watch_topic_list_success.topic
    await lone.broker.admin.namespaces.create("public/later")
    await create(lone, "persistent://public/later/x")
    await until(client, 1)
    assert list(updates(client)[0].new_topics) == ["persistent://public/later/x"]
    client.leave()


async def test_watchers_are_bounded_and_patterns_are_checked(lone: LoneBroker) -> None:  # I15
    client = Client(lone.broker)
    wrong: list[Any] = [{"topics_pattern": "(?!x).*"}, {"namespace": "public"}]
    for fields in wrong:
        refused = (await watch(client, **fields)).error
        assert (refused.request_id, refused.error) == (7, pb.NOT_ALLOWED_ERROR)
    for number in range(WATCHERS_MAX):
        assert (await watch(client, number)).type == T.WATCH_TOPIC_LIST_SUCCESS
    assert "too many watchers" in (await watch(client, WATCHERS_MAX)).error.message
    client.leave()
    assert not lone.broker._topic_lists._followed
