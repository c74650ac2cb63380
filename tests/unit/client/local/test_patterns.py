"""Consumers of several topics, and of all topics whose names match an expression."""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import re
from collections.abc import Callable, Collection
from types import SimpleNamespace
from typing import Any

import pytest

import heliograph
from heliograph.actors.broker.protocol.watch_commands import WatchCommands
from heliograph.base.errors import (
    BadRequestError,
    ConnectionLostError,
    HeliographError,
    InvalidConfigError,
    NotPermittedError,
    UnsupportedError,
)
from heliograph.client.aio.pattern_watch import PatternWatch, full_pattern
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.topic_name import TopicName
from tests.waits import until

SECONDS = 60
FAST: dict[str, Any] = {"initial_position": "earliest", "pattern_update_ms": 20}


def values_of(consumer: heliograph.Consumer, count: int) -> set[bytes]:
    found = set()
    for _ in range(count):
        message = consumer.receive(SECONDS)
        consumer.ack(message)
        found.add(message.value)
    return found


def test_a_consumer_of_several_topics(client: heliograph.Client) -> None:
    for topic in ("several-a", "several-b", "several-c"):
        client.producer(topic).send(topic)
    with client.consumer(["several-a", "several-b"], "s", initial_position="earliest") as consumer:
        assert values_of(consumer, 2) == {b"several-a", b"several-b"}


def test_a_pattern_receives_from_topics_that_match_also_from_new_ones(client: heliograph.Client) -> None:
    client.producer("matched-1").send("1")
    client.producer("other").send("no")
    consumer = client.consumer(re.compile("matched-.*"), "s", **FAST)
    assert repr(consumer) == "Consumer(matched-.*, 's', exclusive)"
    assert values_of(consumer, 1) == {b"1"}
    with client.producer("matched-2") as producer:  # from its first message on, though it was there before
        producer.send_many(["2", "3"])
    assert values_of(consumer, 2) == {b"2", b"3"}
    consumer.close()
    copy = pickle.loads(pickle.dumps(consumer))
    client.producer("matched-1").send("4")
    assert values_of(copy, 1) == {b"4"}
    copy.close()


def test_a_pattern_may_match_nothing_yet_and_name_a_namespace(client: heliograph.Client) -> None:
    with client.consumer(re.compile("persistent://public/default/later-[0-9]"), "s", **FAST) as consumer:
        assert consumer.receive_many(1, timeout=0.01) == []
        client.producer("later-1").send("1")
        assert values_of(consumer, 1) == {b"1"}


def test_own_letters_do_not_match(client: heliograph.Client) -> None:
    client.producer("letters-a").send("bad")
    options = {**FAST, "type": "shared", "nack_delay_ms": 0, "max_redeliver": 0}
    with client.consumer(re.compile("letters-.*"), "s", **options) as consumer:
        consumer.nack(consumer.receive(SECONDS))
        client.producer("letters-b").send("good")
        assert values_of(consumer, 1) == {b"good"}, "the look that found it saw the dead letter topic too"
    with client.reader("letters-a-s-DLQ", "earliest") as reader:
        assert reader.receive(SECONDS).value == b"bad"


RARELY: dict[str, Any] = {"initial_position": "earliest", "pattern_update_ms": 3_600_000}


async def test_topics_are_followed_without_a_question(cluster: heliograph.LocalCluster) -> None:
    async with await heliograph.connect_async(cluster.service_url) as client:
        await client.producer("followed-1").send("1")
        consumer = await client.consumer(re.compile("followed-.*"), "s", type="shared", **RARELY)
        watch = consumer._subscribed._pattern  # type: ignore[union-attr]
        assert watch is not None
        for number in range(2, 4):
            await client.admin.create_topic(f"followed-{number}", 2)
            await client.producer(f"followed-{number}").send(f"{number}")
        got = [await consumer.receive(SECONDS) for _ in range(3)]
        await consumer.ack_many(got)
        assert {message.value for message in got} == {b"1", b"2", b"3"}
        await client.admin.delete_topic("followed-2", force=True)
        await until(lambda: len(consumer._parts) == 3)
        connection = watch._connection
        assert connection is not None
        connection.abort(ConnectionLostError("cut by the test"))
        await until(lambda: watch._connection is not None and watch._connection is not connection)
        await client.producer("followed-4").send("4")
        assert (await consumer.receive(SECONDS)).value == b"4"
        connection = watch._connection
        await consumer.close()
        assert connection is not None
        assert not connection.topic_watchers


async def test_a_broker_without_watchers_is_asked_again(
    cluster: heliograph.LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> Any:
        raise UnsupportedError("no watchers here")

    monkeypatch.setattr(WatchCommands, "_open", refuse)
    async with await heliograph.connect_async(cluster.service_url) as client:
        consumer = await client.consumer(re.compile("polled-.*"), "s", **FAST)
        await client.producer("polled-1").send("1")
        assert (await consumer.receive(SECONDS)).value == b"1"


async def test_what_is_told_while_a_question_is_open_is_not_lost(cluster: heliograph.LocalCluster) -> None:
    async with await heliograph.connect_async(cluster.service_url) as client:
        consumer = await client.consumer(re.compile("early-.*"), "s", **RARELY)
        watch: PatternWatch = consumer._subscribed._pattern  # type: ignore[union-attr,assignment]
        connection = watch._connection
        assert connection is not None
        before = "persistent://public/default/early-"
        asked = connection.request

        def request(build: Any, *others: Any) -> Any:
            future = asked(build, *others)
            if build(0).HasField("watch_topic_list"):
                update = pb.CommandWatchTopicUpdate(watcher_id=watch._watcher_id, new_topics=[f"{before}1-partition-0"])
                future.add_done_callback(lambda _: watch.on_topics_changed(update))
            return future

        connection.request = request  # type: ignore[method-assign,assignment]
        assert await watch.ask() == {TopicName.parse(f"{before}1")}, "the answer, then what was told behind it"


class Told:
    """A watch that no broker tells anything, and the topics that its consumer has."""

    def __init__(self) -> None:
        self.topics: list[str] = []
        self.calls: list[str] = []
        self.failing: dict[str, HeliographError] = {}
        self.meanwhile: Callable[[], None] | None = None
        options: Any = SimpleNamespace(pattern=".*", pattern_update_ms=0, subscription="s")
        session: Any = SimpleNamespace(next_id=lambda: 1)
        self.watch = PatternWatch(session, options, (), self.changed)
        self.watch.start(())

    async def changed(self, added: Collection[TopicName], removed: Collection[TopicName]) -> None:
        for topic in added:
            self.calls.append(f"+{topic.local_name}")
            meanwhile, self.meanwhile = self.meanwhile, None
            if meanwhile is not None:
                meanwhile()
            if topic.local_name in self.failing:
                raise self.failing[topic.local_name]
            self.topics.append(topic.local_name)
        for topic in removed:
            self.calls.append(f"-{topic.local_name}")
            self.topics.remove(topic.local_name)

    def tell(self, new: str = "", gone: str = "") -> None:
        before = "persistent://public/default/"
        self.watch.on_topics_changed(
            pb.CommandWatchTopicUpdate(
                new_topics=[before + name for name in new.split()],
                deleted_topics=[before + name for name in gone.split()],
            )
        )

    async def follow(self) -> None:
        with contextlib.suppress(HeliographError):
            await self.watch._follow()


async def test_a_topic_that_cannot_be_opened_keeps_no_other_waiting() -> None:
    told = Told()
    told.tell("x")
    await told.follow()
    told.failing = {"a": NotPermittedError("no"), "b": ConnectionLostError("not now")}
    told.tell("a b c", gone="x")
    with pytest.raises(ConnectionLostError):
        await told.watch._follow()
    assert told.topics == []
    await told.follow()
    assert told.topics == ["c"], "b waits behind what would fail less"
    told.failing.clear()
    await told.follow()
    assert sorted(told.topics) == ["a", "b", "c"]
    calls = len(told.calls)
    await told.follow()
    assert len(told.calls) == calls, "nothing has changed"


async def test_a_topic_that_goes_while_others_are_opened_is_not_opened() -> None:
    told = Told()
    told.tell("a b c d")
    told.meanwhile = lambda: told.tell("e", gone="a b")
    await told.follow()
    assert told.calls == ["+a", "+c", "+d"]
    await told.follow()
    assert told.calls[3:] == ["-a", "+e"]
    assert told.topics == ["c", "d", "e"]
    assert not told.watch._pending


async def test_a_deleted_topic_leaves_the_others(cluster: heliograph.LocalCluster) -> None:
    async with await heliograph.connect_async(cluster.service_url) as client:
        for topic in ("gone-1", "gone-2"):
            async with client.producer(topic) as producer:
                await producer.send(topic)
        consumer = await client.consumer(re.compile("gone-.*"), "s", **{**FAST, "pattern_update_ms": 0})
        for _ in range(2):
            await consumer.ack(await consumer.receive(SECONDS))
        watch = consumer._subscribed._pattern  # type: ignore[union-attr]
        assert watch is not None

        async def fewer() -> Any:
            watch._learn(["persistent://public/default/gone-2"])

        watch.ask = fewer  # type: ignore[method-assign]
        await watch.check()
        assert list(consumer._parts) == ["persistent://public/default/gone-2"]
        async with client.producer("gone-2") as producer:
            await producer.send("more")
        assert (await consumer.receive(SECONDS)).value == b"more"
        assert not consumer.has_reached_end


async def test_new_partitions_of_a_matched_topic_are_watched(cluster: heliograph.LocalCluster) -> None:
    async with await heliograph.connect_async(cluster.service_url) as client:
        await client.producer("counted-1").send("1")
        consumer = await client.consumer(re.compile("counted-.*"), "s", **FAST)
        waiting = asyncio.ensure_future(consumer.receive_many(10, SECONDS))
        assert [message.value for message in await waiting] == [b"1"]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("a.*", ("persistent", "public/default", "public/default/(?:a.*)")),
        ("t.x/n/a|b", ("persistent", "t.x/n", r"t\.x/n/(?:a|b)")),
        ("non-persistent://t/n/a", ("non-persistent", "t/n", "t/n/(?:a)")),
    ],
)
def test_the_parts_of_a_pattern(pattern: str, expected: tuple[str, str, str]) -> None:
    assert full_pattern(pattern) == expected


@pytest.mark.parametrize(
    ("pattern", "error"),
    [
        (re.compile("a", re.IGNORECASE), UnsupportedError),
        (re.compile("(?=a)b"), UnsupportedError),
        (re.compile("t.*/n/a"), HeliographError),
        (re.compile("n/a"), BadRequestError),
        (re.compile("persistent://a"), BadRequestError),
        (re.compile(""), InvalidConfigError),
    ],
)
def test_patterns_that_are_refused(client: heliograph.Client, pattern: re.Pattern[str], error: type[Exception]) -> None:
    with pytest.raises(error):
        client.consumer(pattern, "s")


def test_a_pattern_with_retries_needs_the_name_of_their_topic(client: heliograph.Client) -> None:
    with pytest.raises(InvalidConfigError, match="retry_topic"):
        client.consumer(re.compile("a"), "s", type="shared", retry=True)
