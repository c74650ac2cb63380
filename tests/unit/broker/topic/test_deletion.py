"""Deletion of a topic while it is used, and deletions that stop half-way."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextvars import ContextVar
from typing import Any

import pytest

from heliograph.actors.broker.subscription.type import SubscriptionType
from heliograph.actors.broker.topic.deletion import delete_topic
from heliograph.base.errors import (
    ConflictError,
    HeliographError,
    NamespaceNotFoundError,
    ServiceNotReadyError,
    TopicBusyError,
    TopicNotFoundError,
)
from heliograph.metadata import paths
from heliograph.metadata.errors import ConnectionLossError, SessionExpiredError
from heliograph.metadata.store import MetadataStore
from heliograph.protocol.topic_name import TopicName
from tests.unit.broker.clients import LoneBroker
from tests.unit.broker.topic.test_cancellations import Gate
from tests.unit.broker.topic_world import listen

ORDERS = TopicName.parse("orders")
RECORD = paths.topic("public", "default", "orders")


async def delete(lone: LoneBroker) -> None:
    broker = lone.broker
    await delete_topic(ORDERS, broker.topics, broker._catalog, broker._store, lone.ledgers, force=True)


async def test_a_producer_that_reconnects_does_not_publish_to_a_topic_being_deleted() -> None:
    """The producer would get receipts for messages that are deleted with the ledger (I1)."""
    async with LoneBroker("orders") as lone:
        topics, admin = lone.broker.topics, lone.broker.admin
        await admin.publish("orders", [b"old"])
        unload = topics.unload

        async def unload_and_come_back(name: TopicName, *before: Any) -> None:
            await unload(name, *before)
            with contextlib.suppress(TopicNotFoundError):
                await topics.get(name, may_create=True)

        topics.unload = unload_and_come_back  # type: ignore[method-assign,assignment]
        await delete(lone)
        [stored] = await admin.publish("orders", [b"new"])
        assert int(stored.split(":")[0]) in lone.ledgers.ledgers
        assert (await topics.get(ORDERS)).ledger.chain.end == 1


async def test_consumers_are_told_although_the_topic_is_opened_while_it_is_marked() -> None:
    async with LoneBroker("orders") as lone:
        topics, store = lone.broker.topics, lone.broker._store
        topic = await topics.get(ORDERS)
        _, heard = listen(await topic.subscribe("billing", start=0), SubscriptionType.SHARED)
        gate = Gate(store.set)
        write, store.set = store.set, gate  # type: ignore[method-assign,assignment]
        deleting = asyncio.create_task(delete(lone))
        await gate.arrived.wait()
        store.set = write  # type: ignore[method-assign]
        coming = asyncio.create_task(topics.get(ORDERS, may_create=True))
        for _ in range(20):
            await asyncio.sleep(0)
        gate.open.set()
        await deleting
        assert heard.is_closed
        assert (await coming).is_open
        assert not (await coming).subscriptions


async def test_a_topic_that_another_broker_took_over_is_not_deleted_behind_its_back() -> None:
    async with LoneBroker("orders") as lone:
        topic, store = await lone.broker.topics.get(ORDERS), lone.broker._store
        value, _ = await store.get(RECORD)
        await store.set(RECORD, value)  # as a new owner does
        with pytest.raises(ServiceNotReadyError):  # I13
            await delete(lone)
        assert not topic.is_open
        assert (await store.get(RECORD))[0] == value
        assert set(lone.ledgers.ledgers) >= set(topic.ledger.chain.ledger_ids)
        assert (await lone.broker.topics.get(ORDERS)).is_open


async def test_a_deletion_that_stopped_half_way_is_finished_by_the_next_use_of_the_name() -> None:
    """A topic that is deleted because it is not used would otherwise never be deleted completely."""
    async with LoneBroker("orders") as lone:
        topics, admin = lone.broker.topics, lone.broker.admin
        await admin.publish("orders", [b"old"])
        await admin.create_subscription("orders", "billing", "earliest")

        async def refuse(ledger_id: int) -> None:
            raise ConnectionLossError("metadata is out of reach")

        remove, lone.ledgers.delete = lone.ledgers.delete, refuse  # type: ignore[method-assign]
        with pytest.raises(ConnectionLossError):
            await delete(lone)
        lone.ledgers.delete = remove  # type: ignore[method-assign]
        topic = await topics.get(ORDERS, may_create=True)
        assert topic.ledger.chain.end == 0
        assert not topic.subscriptions
        assert len(lone.ledgers.ledgers) == 1


async def test_a_topic_that_goes_while_it_is_opened_is_created_where_that_is_allowed() -> None:
    """Stock clients take "no such topic" for final, and below a deletion's mark they have to hear that it lasts."""
    async with LoneBroker("orders") as lone:
        topics, catalog = lone.broker.topics, lone.broker._catalog
        find, calls = catalog.ensure, list[TopicName]()

        async def find_what_goes(topic: TopicName, **options: Any) -> Any:
            found = await find(topic, **options)
            calls.append(topic)
            if len(calls) == 1:
                await lone.broker._store.delete(RECORD)
            return found

        catalog.ensure = find_what_goes  # type: ignore[method-assign]
        assert (await topics.get(ORDERS, may_create=True)).is_open
        assert calls == [ORDERS, ORDERS]


async def test_a_slow_deletion_does_not_delete_the_topics_successor() -> None:
    async with LoneBroker("orders") as lone:
        topics, admin = lone.broker.topics, lone.broker.admin
        await admin.publish("orders", [b"old"])
        await admin.create_subscription("orders", "billing", "earliest")
        gate = Gate(lone.ledgers.delete)
        lone.ledgers.delete = gate  # type: ignore[method-assign,assignment]
        slow = asyncio.create_task(delete(lone))
        await gate.arrived.wait()
        lone.ledgers.delete = gate.method  # type: ignore[method-assign,assignment]
        topic = await topics.get(ORDERS, may_create=True)
        await admin.create_subscription("orders", "billing", "earliest")
        await admin.publish("orders", [b"new"])
        gate.open.set()
        await slow
        assert topic.is_open
        await topic.ledger.check_ownership()
        await topics.unload(ORDERS)
        again = await topics.get(ORDERS)
        assert (await again.subscription("billing")).backlog == 1


@pytest.mark.parametrize("force", [False, True])
async def test_a_namespace_that_could_not_be_deleted_is_used_as_before(force: bool) -> None:
    """Otherwise its topics could not even be looked up."""
    async with LoneBroker("orders") as lone:
        namespaces, catalog = lone.broker.admin.namespaces, lone.broker._catalog
        calls, find = 0, catalog.left_in
        fails_at = 1 if not force else 2

        async def fail(tenant: str, namespace: str) -> AsyncIterator[list[TopicName]]:
            nonlocal calls
            calls += 1
            if calls >= fails_at:
                raise ConnectionLossError("metadata is out of reach")
            async for page in find(tenant, namespace):
                yield page

        catalog.left_in = fail  # type: ignore[method-assign]
        with pytest.raises(ConnectionLossError):
            await namespaces.delete("public/default", force)
        assert calls == fails_at
        assert (await namespaces.policies("public/default"))["bundles"]


async def test_a_namespace_with_topics_stays_in_use_when_its_deletion_is_refused() -> None:
    async with LoneBroker("orders") as lone:
        namespaces = lone.broker.admin.namespaces
        store = lone.broker._store
        before = await store.get(paths.namespace("public", "default"))
        with pytest.raises(ConflictError):
            await namespaces.delete("public/default")
        assert await store.get(paths.namespace("public", "default")) == before


@pytest.mark.parametrize("force", [False, True])
async def test_a_deletion_of_a_namespace_that_stopped_half_way_can_be_repeated(force: bool) -> None:
    async with LoneBroker("orders") as lone:
        namespaces = lone.broker.admin.namespaces
        await namespaces.mark("public/default", is_deleted=True)
        with contextlib.suppress(ConflictError):
            await namespaces.delete("public/default", force)
        assert ("public/default" in await namespaces.list("public")) is not force
        if not force:
            assert (await namespaces.policies("public/default"))["bundles"]


async def test_a_forced_deletion_of_a_namespace_ends_although_its_clients_reconnect() -> None:
    async with LoneBroker("orders", "payments") as lone:
        namespaces, refused = lone.broker.admin.namespaces, list[str]()
        delete = namespaces._delete_topic

        async def deleted_and_used_again(topic: str, force: bool) -> None:
            await delete(topic, force)
            try:
                await lone.broker._catalog.ensure(TopicName.parse(topic))
            except NamespaceNotFoundError as error:
                refused.append(str(error))

        namespaces._delete_topic = deleted_and_used_again
        await namespaces.delete("public/default", True)
        assert "public/default" not in await namespaces.list("public")
        assert set(refused) == {"public/default is being deleted"}


async def test_a_subscription_without_consumers_keeps_no_topic() -> None:
    async with LoneBroker("orders") as lone:
        admin, topics = lone.broker.admin, lone.broker.topics
        await admin.create_subscription("orders", "billing", "earliest")
        await admin.publish("orders", [b"unread"])
        subscription = (await topics.get(ORDERS)).subscriptions["billing"]
        consumer, _ = listen(subscription, SubscriptionType.SHARED)
        with pytest.raises(TopicBusyError, match="1 consumers"):
            await admin.delete_topic("orders")
        assert await admin.subscriptions("orders") == ["billing"]
        subscription.remove_consumer(consumer)
        await admin.delete_topic("orders")
        assert not await lone.broker._catalog.exists(ORDERS)


async def test_what_does_not_exist_is_not_unloaded() -> None:
    async with LoneBroker("orders") as lone:
        admin = lone.broker.admin
        for _ in range(2):  # loaded, and not loaded
            await lone.broker.admin._owners.at(ORDERS, "unload_topic")
        for missing in ("nosuch", "non-persistent://public/default/nosuch"):
            with pytest.raises(TopicNotFoundError):
                await admin._owners.at(TopicName.parse(missing), "unload_topic")


async def test_the_partitions_that_are_left_are_those_of_the_topic_alone() -> None:
    async with LoneBroker() as lone:
        catalog, topic = lone.broker._catalog, TopicName.parse("many")
        for name in ("many", "many-partition-x", "manyfold"):
            await catalog.create(TopicName.parse(name), 2)
        await catalog.create(TopicName.parse("many-partition-7-partition-1"))
        await catalog.create(TopicName.parse("many-partition-9"))  # of a creation that stopped half-way
        assert await catalog.partitions_left(topic) == [*topic.partitions(2), TopicName.parse("many-partition-9")]


async def test_a_partitioned_topic_goes_with_the_last_of_its_inactive_partitions() -> None:
    async with LoneBroker() as lone:
        broker, topic = lone.broker, TopicName.parse("many")
        await broker._catalog.create(topic, 2)
        await broker.admin.namespaces.set_topic_policies("many", {"message_ttl_seconds": 9})
        for left, partition in zip((2, 0), topic.partitions(2), strict=True):
            await broker._delete_idle(await broker.topics.get(partition))
            assert await broker._catalog.partitions(topic) == left
        await broker._catalog.create(topic, 3)
        assert not (await broker._catalog.topic_policies(topic)).overrides


async def test_a_partitioned_topic_stays_if_a_partition_is_used_again_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with LoneBroker() as lone:
        catalog, topic = lone.broker._catalog, TopicName.parse("many")
        await catalog.create(topic, 1)
        [partition] = topic.partitions(1)
        await lone.broker._store.delete(catalog.topic_path(partition))
        left, asked = catalog.partitions_left, list[bool]()

        async def used_after_the_first_look(name: TopicName) -> list[TopicName]:
            asked.append(bool(found := await left(name)))
            if len(asked) == 1:
                await catalog.ensure(partition)
            return found

        monkeypatch.setattr(catalog, "partitions_left", used_after_the_first_look)
        assert not await lone.broker.admin.forget_without_partitions(partition)
        assert asked == [False], "the second look finds a partition without a listing"
        assert await catalog.partitions(topic) == 1


_is_dying: ContextVar[bool] = ContextVar("_is_dying", default=False)


class Death:
    """Fails the writes of one piece of work from the ``at``-th on, as if its broker had crashed before that write.

    Those of the broker's other work go through.
    """

    def __init__(self, store: MetadataStore, patch: pytest.MonkeyPatch) -> None:
        self.at = 0
        self.has_come = False
        self._writes = 0
        for name in ("create", "set", "delete", "multi"):
            patch.setattr(store, name, self._dying(getattr(store, name)))

    def _dying(self, method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def call(*arguments: Any, **options: Any) -> Any:
            if not _is_dying.get():
                return await method(*arguments, **options)
            self._writes += 1
            if self._writes >= self.at:
                self.has_come = True
                raise SessionExpiredError("the broker crashed")
            _is_dying.set(False)  # one method may call another
            try:
                return await method(*arguments, **options)
            finally:
                _is_dying.set(True)

        return call

    async def during(self, work: Coroutine[Any, Any, None], at: int) -> None:
        self.at, self.has_come, self._writes = at, False, 0

        async def dying() -> None:
            _is_dying.set(True)
            await work

        with contextlib.suppress(HeliographError):
            await asyncio.create_task(dying())


async def test_another_broker_finishes_the_deletion_of_a_partitioned_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever write the first one does not come to; before the first, nothing has happened to the topic."""
    async with LoneBroker() as lone:
        broker, catalog = lone.broker, lone.broker._catalog
        admin, death = broker.admin, Death(broker._store, monkeypatch)
        for at in itertools.count(1):
            topic = TopicName.parse(f"many-{at}")
            await catalog.create(topic, 2)
            await admin.namespaces.set_topic_policies(str(topic), {"message_ttl_seconds": 9})
            await admin.create_subscription(str(topic), "billing", "earliest")
            await death.during(admin.delete_topic(str(topic), True), at)
            record = await catalog.partitioned(topic)
            if record is not None and record.is_deleting:
                for refused in (
                    catalog.auto_partitions(topic, may_create=True),
                    catalog.set_partitions(topic, 9),
                    catalog.create(topic, 2),
                ):
                    with pytest.raises(ServiceNotReadyError, match="being deleted"):
                        await refused
                with contextlib.suppress(ServiceNotReadyError):  # while there is a partition, it is found
                    await catalog.ensure(topic.partitions(2)[0])
            await admin.finish_deletions()  # one that is under way may end by itself
            await admin.finish_deletions()
            if at == 1:
                assert await catalog.partitions_left(topic) == topic.partitions(2)
                assert await admin.subscriptions(str(topic)) == ["billing"]
                continue
            assert await catalog.partitioned(topic) is None
            assert not await catalog.partitions_left(topic)
            assert not (await catalog.topic_policies(topic)).overrides
            if not death.has_come:
                break
        assert at > 6, "there are several writes"


@pytest.mark.slow
async def test_another_broker_finishes_the_deletion_of_a_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    async with LoneBroker() as lone:
        broker, catalog = lone.broker, lone.broker._catalog
        admin, death = broker.admin, Death(broker._store, monkeypatch)
        for at in itertools.count(1):
            namespace = f"public/n{at}"
            await admin.namespaces.create(namespace, 1)
            await catalog.create(TopicName.parse(f"{namespace}/many"), 2)
            await catalog.create(TopicName.parse(f"{namespace}/orders"))
            await death.during(admin.namespaces.delete(namespace, True), at)
            await admin.finish_deletions()  # one that is under way may end by itself
            await admin.finish_deletions()
            assert (namespace in await admin.namespaces.list("public")) == (at == 1)
            if at == 1:
                assert sum([len(page) async for page in catalog.left_in("public", "n1")]) == 4
            if not death.has_come:
                break
            assert at == 1 or not [page async for page in catalog.left_in("public", f"n{at}")]
        assert at > 6, "there are several writes"


async def test_a_refused_deletion_of_a_namespace_takes_back_that_it_is_closing() -> None:
    """A forced deletion that stopped leaves the mark; a plain one says that the namespace is kept."""
    async with LoneBroker("orders") as lone:
        namespaces = lone.broker.admin.namespaces
        await namespaces.mark("public/default", is_closing=True)
        assert (await namespaces.policies("public/default"))["is_closing"] is True
        with pytest.raises(ConflictError):
            await namespaces.delete("public/default")
        assert "is_closing" not in await namespaces.policies("public/default")
        await lone.broker._catalog.ensure(TopicName.parse("refunds"))
