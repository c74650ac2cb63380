"""Administration of a topic, at the broker that owns it."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from heliograph.actors.broker.admin.owned_cursors import OwnedCursors, durable
from heliograph.actors.broker.admin.read_access import Bookies, read_plan
from heliograph.actors.broker.admin.stored_message import Whereabouts
from heliograph.actors.broker.broker_context import BrokerContext
from heliograph.actors.broker.limits.answers import SHOWN, SHOWN_AT_ONCE_MAX, turns
from heliograph.actors.broker.managed_ledger.managed_ledger import ManagedLedger
from heliograph.actors.broker.records.ledgers import LedgersPort
from heliograph.actors.broker.records.position import Position
from heliograph.actors.broker.records.properties import changed_properties
from heliograph.actors.broker.records.topic_chain import ledger_count
from heliograph.actors.broker.records.topic_record import user_properties, with_user_properties
from heliograph.actors.broker.subscription.message_count import ReadAllowance
from heliograph.actors.broker.subscription.subscription import COMPACTION
from heliograph.actors.broker.topic.deletion import delete_topic
from heliograph.actors.broker.topic.publishing import publish
from heliograph.actors.broker.topic.series import oldest_ms
from heliograph.actors.broker.topic.stats import count_backlogs, internal_stats, ledger_rows, topic_stats
from heliograph.actors.broker.topic.topic import BrokerTopic
from heliograph.actors.broker.upkeep.housekeeping import trim_with_last
from heliograph.base.errors import (
    BadRequestError,
    HeliographError,
    SubscriptionExistsError,
    TopicNotFoundError,
    UnsupportedError,
)
from heliograph.metadata.model import TopicRecord
from heliograph.metadata.store import MetadataStore
from heliograph.operations.table import LEDGER_RANGES_MAX, LEDGERS_PAGE_MAX
from heliograph.protocol.message_id import MessageId
from heliograph.protocol.topic_name import TopicName

Json = dict[str, Any]
AGES_READ_MAX = 20  # entries that are read to tell how old backlogs are, for one answer  # I15


class OwnedTopics:
    """Runs methods on topics that this broker owns, loading a topic where necessary."""

    def __init__(self, context: BrokerContext, store: MetadataStore, ledgers: LedgersPort) -> None:
        self._context = context
        self._store = store
        self._ledgers = ledgers
        self._turns = turns(SHOWN, SHOWN_AT_ONCE_MAX)
        self._methods: dict[str, Callable[..., Awaitable[Any]]] = {
            "delete_topic": self._delete_topic,
            "topic_stats": self._topic_stats,
            "topic_internal_stats": self._topic_internal_stats,
            "topic_history": self._topic_history,
            "subscriptions": self._subscriptions,
            "create_subscription": self._create_subscription,
            "delete_subscription": self._delete_subscription,
            "unload_topic": self._unload_topic,
            "visit_topic": self._visit_topic,
            "ledger_ranges": self._ledger_ranges,
            "topic_ledgers": self._topic_ledgers,
            "read_plan": self._read_plan,
            "publish": self._publish,
            "change_properties": self._change_properties,
            "trim_topic": self._trim_topic,
            "truncate_topic": self._truncate_topic,
            **OwnedCursors(context.topics).methods,
            **Whereabouts(context.topics, ledgers).methods,
            "terminate_topic": self._terminate_topic,
            "compact_topic": self._compact_topic,
            "compaction_status": self._compaction_status,
        }

    @property
    def bookies(self) -> Bookies:
        """Return the bookies as programs outside of the cluster reach them."""
        config = self._context.config
        return Bookies(self._ledgers.bookies, config.cluster_secret, config.ledger.tls, config.read_grant_seconds)

    def is_open(self, name: TopicName) -> bool:
        """Return whether a topic is loaded here and takes entries and subscriptions."""
        topic = self._context.topics.find(name)
        return topic is not None and topic.is_open

    async def run(self, method: str, name: TopicName, arguments: Json) -> Any:
        """Run a method by its name.

        Raises:
            BadRequestError: there is no such method. Only a broker of another version asks for it.
        """
        found = self._methods.get(method)
        if found is None:
            raise BadRequestError(f"brokers of this version have no method {method}", field="method")
        async with self._turns.get(method) or contextlib.nullcontext():
            return await found(name, **arguments)

    async def _delete_topic(self, name: TopicName, force: bool) -> None:
        await delete_topic(name, self._context.topics, self._context.catalog, self._store, self._ledgers, force=force)

    async def _topic_stats(self, name: TopicName) -> Json:
        topic = await self._context.topics.get(name)
        await count_backlogs(topic, ReadAllowance())
        stats, allowed = topic_stats(topic, self._context.config.broker_id), ReadAllowance(AGES_READ_MAX)
        for subscription, told in stats["subscriptions"].items():
            if (one := topic.subscriptions.get(subscription)) is not None and one.is_durable:
                told["oldestUnackedTimestamp"] = await oldest_ms(one, allowed)
        return stats

    async def _topic_internal_stats(self, name: TopicName) -> Json:
        return await internal_stats(await self._context.topics.get(name), self._ledgers)

    async def _subscriptions(self, name: TopicName, is_lasting: bool = False) -> list[str]:
        topic = await self._context.topics.get(name)
        found = topic.subscriptions.values()
        names = [one.name for one in found if not is_lasting or (one.is_durable and not one.is_internal)]
        pending = [one for one in topic.recoveries.pending if not is_lasting or one != COMPACTION]
        return sorted([*names, *pending])

    async def _create_subscription(
        self, topic_name: TopicName, name: str, position: str, properties: Mapping[str, str] | None = None
    ) -> None:
        topic = await self._context.topics.get(topic_name, may_create=True)
        if topic.has_subscription(name):
            raise SubscriptionExistsError(f"{topic_name} has a subscription {name}", field="subscription")
        chain = topic.ledger.chain
        wanted = MessageId.parse(position)
        after = Position(wanted.ledger_id, wanted.entry_id)
        await chain.load(after)
        start = {MessageId.EARLIEST: chain.first, MessageId.LATEST: chain.end}.get(wanted, chain.after(after))
        await topic.subscribe(name, start=start, properties=properties)

    async def _delete_subscription(self, topic_name: TopicName, name: str, force: bool) -> None:
        await (await self._context.topics.get(topic_name)).unsubscribe(name, force=force)

    async def _unload_topic(self, name: TopicName) -> None:
        if self._context.topics.find(name) is None and not await self._context.catalog.exists(name):
            raise TopicNotFoundError(f"there is no topic {name}", field="topic")
        await self._context.topics.unload(name)

    async def _terminate_topic(self, name: TopicName) -> str:
        return str(await (await self._context.topics.get(name)).terminate())

    async def _compact_topic(self, name: TopicName) -> None:
        if not name.is_persistent:
            raise UnsupportedError("a non-persistent topic stores no messages to compact", field="topic")
        (await self._context.topics.get(name)).compaction.start()

    async def _compaction_status(self, name: TopicName) -> Json:
        status = (await self._context.topics.get(name)).compaction.status
        return {"status": status.status, "lastError": status.last_error}

    async def _topic_history(self, name: TopicName) -> Json:
        await self._context.topics.get(name)
        return self._context.topics.history.of_topic(str(name))

    async def _visit_topic(self, name: TopicName) -> None:
        await self._context.topics.get(name)

    async def _ledger_ranges(self, name: TopicName) -> list[Json]:
        ledger = (await self._context.topics.get(name)).ledger
        if ledger_count(ledger.record) > LEDGER_RANGES_MAX:
            raise BadRequestError(
                f"{name} has more than {LEDGER_RANGES_MAX} ledgers: ask for pages, with topic_ledgers", field="topic"
            )
        rows = [row async for row in ledger_rows(ledger, -1)]
        return [
            {
                "ledger_id": row["ledger_id"],
                "first_entry_id": 0,
                "last_entry_id": row["entries"] - 1,
                "bytes": row["bytes"],
                "closed_ms": row["closed_ms"],
            }
            for row in rows
            if row["entries"]
        ]

    async def _topic_ledgers(self, name: TopicName, after: int) -> Json:
        return await self._page((await self._context.topics.get(name)).ledger, after, LEDGERS_PAGE_MAX)

    async def _page(self, ledger: ManagedLedger, after: int, rows_max: int) -> Json:
        rows: list[Json] = []
        has_more = False
        async for row in ledger_rows(ledger, after):
            has_more = len(rows) == rows_max
            if has_more:
                break
            rows.append(row)
        return {"total": ledger_count(ledger.record), "ledgers": rows, "has_more": has_more}

    async def _read_plan(self, name: TopicName, after: int, last: int | None, rows_max: int = LEDGERS_PAGE_MAX) -> Json:
        ledger = (await self._stored(name)).ledger
        rows = await self._page(ledger, after, rows_max)
        return await read_plan(ledger, self._ledgers, rows, last, self.bookies)

    async def _change_properties(self, name: TopicName, changes: Mapping[str, str | None]) -> None:
        def change(record: TopicRecord) -> TopicRecord:
            return with_user_properties(record, changed_properties(user_properties(record), changes))

        topic = await self._context.topics.get(name)
        change(topic.ledger.record)  # a refusal comes before anything is written
        await topic.ledger.change_record(change)

    async def _trim_topic(self, name: TopicName) -> int:
        topic = await self._stored(name)
        try:
            await topic.recoveries.all_recovered()
        except HeliographError:
            if topic.recoveries.needs_head or not topic.is_open:
                raise  # else it is a reader of a compacted form that is lost, which needs no old ledger
        return await trim_with_last(topic)

    async def _truncate_topic(self, name: TopicName) -> int:
        topic = await self._stored(name)
        await topic.recoveries.all_recovered()
        await topic.ledger.roll()
        if topic.has_subscription(COMPACTION):
            await topic.unsubscribe(COMPACTION)
        for subscription in list(topic.subscriptions.values()):
            await durable(subscription.skip(None))
        return await topic.trim(keeps_retained=False)

    async def _stored(self, name: TopicName) -> BrokerTopic:
        if not name.is_persistent:
            raise UnsupportedError("a non-persistent topic stores no messages", field="topic")
        return await self._context.topics.get(name)

    async def _publish(self, name: TopicName, payloads: list[bytes], keys: list[str | None] | None) -> list[str]:
        topic = await self._context.topics.get(name, may_create=True)
        return await publish(topic, f"{self._context.producer_prefix}-inner", payloads, keys)
