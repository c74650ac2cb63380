"""Administration of topics that this broker serves: the half of ``admin.py`` that needs the owner."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any
from weakref import WeakKeyDictionary

from actors.broker.broker_context import BrokerContext
from actors.broker.ledgers import Ledgers
from actors.broker.owned_cursors import OwnedCursors
from actors.broker.position import Position
from actors.broker.publishing import publish
from actors.broker.rates import Rates
from actors.broker.stats import internal_stats, topic_stats
from actors.broker.topic import Topic
from actors.broker.topic_deletion import delete_topic
from heliograph.errors import BadRequestError, SubscriptionExistsError, UnsupportedError
from heliograph.protocol.message_id import MessageId
from heliograph.protocol.topic_name import TopicName
from metadata.store import MetadataStore

Json = dict[str, Any]


class OwnedTopics:
    """Runs a method on a topic that is ours, loading it if need be."""

    def __init__(self, context: BrokerContext, store: MetadataStore, ledgers: Ledgers) -> None:
        self._context = context
        self._store = store
        self._ledgers = ledgers
        self._rates: WeakKeyDictionary[Topic, Rates] = WeakKeyDictionary()
        self._methods: dict[str, Callable[..., Awaitable[Any]]] = {
            "delete_topic": self._delete_topic,
            "topic_stats": self._topic_stats,
            "topic_internal_stats": self._topic_internal_stats,
            "subscriptions": self._subscriptions,
            "create_subscription": self._create_subscription,
            "delete_subscription": self._delete_subscription,
            "unload_topic": self._unload_topic,
            "visit_topic": self._visit_topic,
            "ledger_ranges": self._ledger_ranges,
            "publish": self._publish,
            **OwnedCursors(context.topics).methods,
            "terminate_topic": self._terminate_topic,
            "compact_topic": self._compact_topic,
            "compaction_status": self._compaction_status,
        }

    async def run(self, method: str, name: TopicName, arguments: Json) -> Any:
        """Run one of the methods by name.

        Raises:
            BadRequestError: there is no such method, which only a broker of another version would ask for.
        """
        found = self._methods.get(method)
        if found is None:
            raise BadRequestError(f"brokers of this version know no {method}", field="method")
        return await found(name, **arguments)

    async def _delete_topic(self, name: TopicName, force: bool) -> None:
        await delete_topic(name, self._context.topics, self._context.catalog, self._store, self._ledgers, force=force)

    async def _topic_stats(self, name: TopicName) -> Json:
        topic = await self._context.topics.get(name)
        return topic_stats(topic, self._rates.setdefault(topic, Rates()), self._context.config.broker_id)

    async def _topic_internal_stats(self, name: TopicName) -> Json:
        return await internal_stats(await self._context.topics.get(name), self._ledgers)

    async def _subscriptions(self, name: TopicName, is_lasting: bool = False) -> list[str]:
        topic = await self._context.topics.get(name)
        found = topic.subscriptions.values()
        names = [one.name for one in found if not is_lasting or (one.is_durable and not one.is_internal)]
        return sorted([*names, *topic.unavailable])

    async def _create_subscription(self, topic_name: TopicName, name: str, position: str) -> None:
        topic = await self._context.topics.get(topic_name, may_create=True)
        if name in topic.subscriptions or name in topic.unavailable:
            raise SubscriptionExistsError(f"{topic_name} has a subscription {name}", field="subscription")
        chain = topic.ledger.chain
        wanted = MessageId.parse(position)
        start = {MessageId.EARLIEST: chain.first, MessageId.LATEST: chain.end}.get(
            wanted, chain.after(Position(wanted.ledger_id, wanted.entry_id))
        )
        await topic.subscribe(name, start=start)

    async def _delete_subscription(self, topic_name: TopicName, name: str, force: bool) -> None:
        await (await self._context.topics.get(topic_name)).unsubscribe(name, force=force)

    async def _unload_topic(self, name: TopicName) -> None:
        await self._context.topics.unload(name)

    async def _terminate_topic(self, name: TopicName) -> str:
        return str(await (await self._context.topics.get(name)).terminate())

    async def _compact_topic(self, name: TopicName) -> None:
        if not name.is_persistent:
            raise UnsupportedError("a non-persistent topic keeps nothing to compact", field="topic")
        (await self._context.topics.get(name)).compaction.start()

    async def _compaction_status(self, name: TopicName) -> Json:
        status = (await self._context.topics.get(name)).compaction.status
        return {"status": status.status, "lastError": status.last_error}

    async def _visit_topic(self, name: TopicName) -> None:
        await self._context.topics.get(name)

    async def _ledger_ranges(self, name: TopicName) -> list[Json]:
        chain = (await self._context.topics.get(name)).ledger.chain
        counts = [(ledger_id, chain.entries_in(ledger_id)) for ledger_id in chain.ledger_ids]
        return [
            {"ledger_id": ledger_id, "first_entry_id": 0, "last_entry_id": count - 1}
            for ledger_id, count in counts
            if count
        ]

    async def _publish(self, name: TopicName, payloads: list[bytes], keys: list[str | None] | None) -> list[str]:
        topic = await self._context.topics.get(name, may_create=True)
        return await publish(topic, f"{self._context.producer_prefix}-inner", payloads, keys)
