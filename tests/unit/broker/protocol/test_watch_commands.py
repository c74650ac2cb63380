"""Watchers of topic lists: what a client is told at first, and of each change."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from heliograph.actors.broker.namespaces import topic_lists
from heliograph.actors.broker.namespaces.catalog import Catalog
from heliograph.actors.broker.protocol import watch_commands
from heliograph.actors.broker.protocol.watch_commands import WATCHERS_MAX
from heliograph.metadata.store import CHILDREN_PAGE_MAX
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.topic_name import TopicName
from heliograph.protocol.topics_pattern import topics_hash
from tests.unit.broker.clients import Client, LoneBroker, T
from tests.unit.broker.world import turns
from tests.waits import until

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


def added(client: Client) -> list[str]:
    return [name for one in updates(client) for name in one.new_topics]


async def updated(client: Client, count: int) -> None:
    await until(lambda: len(updates(client)) >= count)


async def test_a_client_is_told_of_topics_that_come_and_go(client: Client, lone: LoneBroker) -> None:
    await turns(lambda: client.answer(T.CONNECTED))
    flags = client.transport.answers[0].connected.feature_flags
    assert flags.supports_topic_watchers
    assert flags.supports_topic_watcher_reconcile
    success = (await watch(client)).watch_topic_list_success
    assert (success.request_id, success.watcher_id, list(success.topic)) == (7, 1, [ORDERS])
    assert success.topics_hash == topics_hash([ORDERS])
    await create(lone, "oranges")
    await create(lone, "apples")
    await updated(client, 1)
    oranges = "persistent://public/default/oranges"
    assert (list(updates(client)[0].new_topics), list(updates(client)[0].deleted_topics)) == ([oranges], [])
    assert updates(client)[0].topics_hash == topics_hash([oranges, ORDERS])
    await lone.broker.admin.delete_topic("oranges")
    await updated(client, 2)
    assert (list(updates(client)[1].new_topics), list(updates(client)[1].deleted_topics)) == ([], [oranges])
    await lone.broker.admin.create_subscription("orders", "s")  # a change below a topic
    await asyncio.sleep(0.05)
    assert len(updates(client)) == 2


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


async def test_a_closed_watcher_is_told_nothing(client: Client, lone: LoneBroker) -> None:
    await watch(client)
    close = pb.CommandWatchTopicListClose(request_id=9, watcher_id=1)
    client.say(T(type=T.WATCH_TOPIC_LIST_CLOSE, watch_topic_list_close=close))
    await turns(lambda: client.answer(T.SUCCESS))
    await create(lone, "oranges")
    await asyncio.sleep(0.05)
    assert not updates(client)
    assert not lone.broker._topic_lists._followed  # nothing is watched in metadata


async def test_a_namespace_may_come_later(client: Client, lone: LoneBroker) -> None:
    namespace: Any = {"namespace": "public/later", "topics_pattern": "public/later/.*"}
    assert not (await watch(client, **namespace)).watch_topic_list_success.topic
    await lone.broker.admin.namespaces.create("public/later")
    await create(lone, "persistent://public/later/x")
    await updated(client, 1)
    assert list(updates(client)[0].new_topics) == ["persistent://public/later/x"]


async def test_watchers_are_bounded_and_patterns_are_checked(lone: LoneBroker) -> None:  # I15
    client = Client(lone.broker)
    wrong: list[Any] = [{"topics_pattern": "(?!x).*"}, {"namespace": "public"}]
    for fields in wrong:
        refused = (await watch(client, **fields)).error
        assert (refused.request_id, refused.error) == (7, pb.NOT_ALLOWED_ERROR)
    for number in range(WATCHERS_MAX):
        assert (await watch(client, number)).type == T.WATCH_TOPIC_LIST_SUCCESS
    assert "too many watchers" in (await watch(client, WATCHERS_MAX)).error.message
    assert lone.broker._topic_lists._watched_bytes == WATCHERS_MAX * (len(ORDERS) + 4)
    client.leave()
    assert not lone.broker._topic_lists._followed
    assert not lone.broker._topic_lists._watched_bytes


async def test_changes_are_followed_without_a_list(lone: LoneBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = list[str]()
    whole = lone.broker._store.children_from

    async def counted(path: str, start: str = "", limit: int = CHILDREN_PAGE_MAX) -> list[str]:
        listed.append(start)
        return await whole(path, start, limit)

    monkeypatch.setattr(lone.broker._store, "children_from", counted)
    await create(lone, "apples")
    client = Client(lone.broker)
    await watch(client)
    assert listed[0] == "or", "no other name is read"
    asked = len(listed)
    for number in range(5):
        await create(lone, f"or-{number}")
        await updated(client, number + 1)
    await watch(client, topics_hash="0")  # the same watcher: reconciliation
    await watch(client, 2, topics_pattern="public/other/.*")  # it can match none of this namespace
    assert len(listed) == asked
    lone.broker._topic_lists._followed["public/default"]._missed()
    await create(lone, "or-5")
    await updated(client, 6)
    assert len(listed) == 2 * asked, "one list after changes may have been missed"
    assert [name.rpartition("/")[2] for one in updates(client) for name in one.new_topics] == [
        f"or-{number}" for number in range(6)
    ]
    client.leave()


async def test_changes_during_a_list_are_told_after_it(lone: LoneBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, stopped, reading = lone.broker._store.children_from, asyncio.Event(), asyncio.Event()

    async def slow(path: str, start: str = "", limit: int = CHILDREN_PAGE_MAX) -> list[str]:
        page = await whole(path, start, limit)
        reading.set()
        await stopped.wait()
        return page

    monkeypatch.setattr(lone.broker._store, "children_from", slow)
    client = Client(lone.broker)
    opening = asyncio.ensure_future(watch(client))
    await reading.wait()
    for name in ("oranges", "orchids"):
        await create(lone, name)
    path = Catalog.topic_path(TopicName.parse("orchids"))
    await lone.broker._store.delete(path)
    await lone.broker._store.delete(Catalog.topic_path(TopicName.parse("orders")))
    await asyncio.sleep(0.01)
    assert not updates(client)
    stopped.set()
    assert list((await opening).watch_topic_list_success.topic) == [ORDERS]
    await updated(client, 1)
    (told,) = updates(client)
    assert (list(told.new_topics), list(told.deleted_topics)) == (["persistent://public/default/oranges"], [ORDERS])
    client.leave()


@pytest.mark.parametrize("module", [topic_lists, watch_commands])
async def test_more_changes_than_are_kept_are_listed(
    lone: LoneBroker, module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:  # I15
    monkeypatch.setattr(module, "CHANGES_MAX", 2)
    monkeypatch.setattr(topic_lists, "GATHER_SECONDS", 0.05)
    client = Client(lone.broker)
    await watch(client)
    for number in range(5):
        await create(lone, f"or-{number}")
    # In several updates if the creations take longer than changes are gathered.
    await until(lambda: len(added(client)) >= 5)
    assert [name[-4:] for name in added(client)] == [f"or-{number}" for number in range(5)]
    client.leave()


@pytest.mark.parametrize("bound", ["NAMES_BYTES_MAX", "WATCHED_BYTES_MAX"])
async def test_names_that_are_too_many_are_refused(
    lone: LoneBroker, bound: str, monkeypatch: pytest.MonkeyPatch
) -> None:  # I15
    monkeypatch.setattr(topic_lists, bound, 2 * len(ORDERS))
    client = Client(lone.broker)
    await watch(client)
    await create(lone, "apples")
    await create(lone, "oranges")
    await turns(lambda: not lone.broker._topic_lists._followed)
    assert not updates(client), "the watcher is closed"
    assert not lone.broker._topic_lists._watched_bytes
    assert "too many topics" in (await watch(client)).error.message
    assert (await watch(client, topics_pattern="public/default/a.*")).type == T.WATCH_TOPIC_LIST_SUCCESS
    client.leave()
