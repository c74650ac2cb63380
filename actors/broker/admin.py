"""Administration of topics, the same on every broker: what needs the owner is forwarded to it.

All answers are plain data (JSON). Errors are those of ``heliograph.errors``; a call that raises one with advice RETRY
or REFRESH may be repeated as it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from actors.broker.admin_brokers import BrokerAdmin, BrokerDuties
from actors.broker.admin_cursors import CursorAdmin
from actors.broker.admin_namespaces import NamespaceAdmin
from actors.broker.admin_schemas import SchemaAdmin
from actors.broker.admin_topics import OwnedTopics
from actors.broker.broker_context import BrokerContext
from actors.broker.catalog import PARTITIONS_MAX
from actors.broker.ledgers import Ledgers
from actors.broker.publishing import Spreader, check_payloads
from actors.broker.session_guard import needs_session
from actors.broker.stats import merged_stats
from actors.errors import NotEnoughBookiesError
from heliograph.errors import (
    BadRequestError,
    InvalidQuorumError,
    NotFoundError,
    ServiceNotReadyError,
    SubscriptionExistsError,
    TopicNotFoundError,
)
from heliograph.protocol.topic_name import DOMAINS, TopicName
from metadata import paths
from metadata.model import Persistence
from metadata.store import MetadataStore

Json = dict[str, Any]

PARTITIONS_AT_ONCE_MAX = 32  # asked for their statistics

log = logging.getLogger(__name__)


class AdminApi(Protocol):
    """What brokers ask of each other."""

    async def forwarded(self, method: str, arguments: Json) -> Any:
        """Run a method that needs the topic's owner, here and nowhere else.

        Raises:
            ServiceNotReadyError: this broker is not the owner either.
        """

    async def asked(self, method: str, arguments: Json) -> Any:
        """Run one of the methods of ``admin_brokers.BrokerDuties``."""


PeerOf = Callable[[str], AdminApi]


class Admin:
    """See the module. ``peer`` finds another broker by its actor name."""

    def __init__(
        self,
        context: BrokerContext,
        store: MetadataStore,
        ledgers: Ledgers,
        brokers: BrokerAdmin,
        duties: BrokerDuties,
        peer: PeerOf | None = None,
    ) -> None:
        self.brokers = brokers
        self.namespaces = NamespaceAdmin(store, context.catalog, self.delete_topic)
        self._duties = duties
        self._context = context
        self._catalog = context.catalog
        self._store = store
        self._peer = peer
        self._owned = OwnedTopics(context, store, ledgers)
        self._spreader = Spreader()
        self.schemas = SchemaAdmin(context)
        self.cursors = CursorAdmin(context.catalog, self._at_owner)

    async def lookup(self, topic: str) -> Json:
        """The broker that serves a topic (of a partitioned topic: each partition has its own)."""
        name = TopicName.parse(topic)
        owner = await self._context.ownership.resolve(name)
        return {
            "broker_id": owner.broker_id,
            "service_url": owner.service_url,
            "service_url_tls": owner.service_url_tls,
            "actor_name": owner.actor_name,
        }

    async def create_topic(self, topic: str, partitions: int = 0, persistence: Json | None = None) -> None:
        """Create a topic, or a partitioned one.

        Args:
            partitions: 0 for a topic that is not partitioned.
            persistence: ``ensemble_size``, ``write_quorum``, ``ack_quorum``; the namespace's where left out.

        Raises:
            TopicExistsError, NamespaceNotFoundError, InvalidTopicNameError, InvalidQuorumError.
            NotEnoughBookiesError: fewer bookies are registered than one ensemble needs.
        """
        name = TopicName.parse(topic)
        if not isinstance(partitions, int) or not 0 <= partitions <= PARTITIONS_MAX:
            raise BadRequestError(
                f"{partitions!r} is no number of partitions", field="partitions", limit=f"0 to {PARTITIONS_MAX}"
            )
        if name.partition >= 0 and partitions:
            raise BadRequestError("a partition has no partitions of its own", field="partitions")
        policies = await self._catalog.policies(name)
        numbers = _persistence(persistence, policies.persistence)
        with needs_session():
            bookies = len(await self._store.children(paths.BOOKIES_AVAILABLE))
        if name.is_persistent and bookies < numbers.ensemble_size:
            raise NotEnoughBookiesError(
                f"an ensemble of {numbers.ensemble_size} bookies needs more than the {bookies} that are registered: "
                "start more bookies, or ask for a smaller ensemble",
                field="ensemble_size",
                limit=f"{bookies} bookies",
            )
        await self._catalog.create(name, partitions, None if persistence is None else numbers)

    async def delete_topic(self, topic: str, force: bool = False) -> None:
        """Delete a topic with everything in it; a partitioned one with all partitions.

        Raises:
            TopicNotFoundError.
            TopicBusyError: it has producers or subscriptions, and ``force`` is not set; some partitions of a
                partitioned topic may be gone by then.
        """
        name = TopicName.parse(topic)
        partitions = await self._catalog.partitions(name)
        if not partitions:
            await self._at_owner("delete_topic", name, force=force)
            if name.partition < 0:
                await self.forget_topic(name)
            return
        if force:  # first, or clients that are connected would have its partitions made again
            await self._catalog.forget_partitioned(name)
        for partition in name.partitions(partitions):
            if await self._catalog.exists(partition):
                await self._at_owner("delete_topic", partition, force=force)
        await self._catalog.forget_partitioned(name)
        await self.forget_topic(name)

    async def forget_topic(self, name: TopicName) -> None:
        """Remove what is kept of a topic that was deleted, with all its partitions, beside its record."""
        await self._context.schemas.forget(name)
        await self._catalog.forget_topic_policies(name)

    async def list_topics(self, namespace: str = "public/default") -> list[Json]:
        """Topics by full name, a partitioned topic as one with its number of partitions, sorted.

        Raises:
            NamespaceNotFoundError.
        """
        tenant, separator, rest = namespace.partition("/")
        if not separator or not tenant or not rest or "/" in rest:
            raise BadRequestError(f"{namespace!r} is no tenant/namespace", field="namespace")
        found = {}
        for domain in DOMAINS:
            for name in await self._catalog.partitioned_topics(tenant, rest, domain):
                found[str(name)] = await self._catalog.partitions(name)
            for name in await self._catalog.topics(tenant, rest, domain):
                if name.partition < 0 or name.partitioned_name not in found:
                    found[str(name)] = 0
        return [{"name": name, "partitions": found[name]} for name in sorted(found)]

    async def partitions(self, topic: str, may_create: bool = False) -> int:
        """How many partitions a topic has; 0 when it is not partitioned.

        Args:
            may_create: the topic is about to be used: one that is missing gets partitions where policies say so, and
                counts as one without where using it creates it.

        Raises:
            TopicNotFoundError.
        """
        name = TopicName.parse(topic)
        if may_create:
            return await self._catalog.auto_partitions(name, may_create=True)
        count = await self._catalog.partitions(name)
        if not count and not await self._catalog.exists(name):
            raise TopicNotFoundError(f"there is no topic {name}", field="topic")
        return count

    async def update_partitions(self, topic: str, partitions: int) -> None:
        """Have a partitioned topic grow. Its subscriptions are on the new partitions before anybody can publish there.

        Raises:
            TopicNotFoundError: it is not a partitioned topic.
            BadRequestError: it has more partitions already.
        """
        name = TopicName.parse(topic)
        if not isinstance(partitions, int) or not 1 <= partitions <= PARTITIONS_MAX:
            raise BadRequestError(
                f"{partitions!r} is no number of partitions", field="partitions", limit=f"1 to {PARTITIONS_MAX}"
            )
        present = await self._catalog.partitions(name)
        if partitions <= present or not present:
            await self._catalog.set_partitions(name, partitions)  # nothing to do, or what is wrong is said there
            return
        await self._catalog.create_missing_partitions(name, present, partitions)
        names: set[str] = set()
        for part in name.partitions(present):
            names.update(await self._at_owner("subscriptions", part, is_lasting=True))
        for part in name.partitions(partitions)[present:]:
            for subscription in sorted(names):
                with contextlib.suppress(SubscriptionExistsError):
                    await self._at_owner("create_subscription", part, name=subscription, position="earliest")
        await self._catalog.set_partitions(name, partitions)

    async def create_missing_partitions(self, topic: str) -> int:
        """Create partitions that a partitioned topic should have and has not; returns how many.

        Raises:
            TopicNotFoundError: it is not a partitioned topic.
        """
        return await self._catalog.create_missing_partitions(TopicName.parse(topic))

    async def topic_stats(self, topic: str) -> Json:
        """Counters and rates in Pulsar's shape; of a partitioned topic the sums, with ``partitions`` by name."""
        name = TopicName.parse(topic)
        partitions = await self._catalog.partitions(name)
        if not partitions:
            stats: Json = await self._at_owner("topic_stats", name)
            return stats
        return merged_stats(await self._at_owners("topic_stats", name, partitions))

    async def topic_internal_stats(self, topic: str) -> Json:
        """Ledgers with their ensembles, and cursors, in Pulsar's shape."""
        name = TopicName.parse(topic)
        partitions = await self._catalog.partitions(name)
        if not partitions:
            stats: Json = await self._at_owner("topic_internal_stats", name)
            return stats
        parts = await self._at_owners("topic_internal_stats", name, partitions)
        return {"metadata": {"partitions": partitions}, "partitions": parts}

    async def subscriptions(self, topic: str) -> list[str]:
        """Names of the subscriptions, sorted; of a partitioned topic those of any partition."""
        name = TopicName.parse(topic)
        names: set[str] = set()
        for part in name.partitions(await self._catalog.partitions(name)):
            names.update(await self._at_owner("subscriptions", part))
        return sorted(names)

    async def create_subscription(self, topic: str, name: str, position: str = "latest") -> None:
        """Create a durable subscription, on every partition of a partitioned topic.

        Args:
            position: ``latest``, ``earliest``, or ``ledger:entry`` of the last message not to deliver.

        Raises:
            SubscriptionExistsError, TopicNotFoundError, BadRequestError.
        """
        if not name:
            raise BadRequestError("a subscription needs a name", field="subscription")
        topic_name = TopicName.parse(topic)
        for part in topic_name.partitions(await self._catalog.partitions(topic_name)):
            await self._at_owner("create_subscription", part, name=name, position=position)

    async def delete_subscription(self, topic: str, name: str, force: bool = False) -> None:
        """Delete a subscription, on every partition of a partitioned topic.

        Raises:
            SubscriptionNotFoundError.
            ConflictError: it has consumers, and ``force`` is not set.
        """
        topic_name = TopicName.parse(topic)
        found = False
        missing: NotFoundError | None = None
        for part in topic_name.partitions(await self._catalog.partitions(topic_name)):
            try:
                await self._at_owner("delete_subscription", part, name=name, force=force)
                found = True
            except NotFoundError as error:
                missing = error
        if missing is not None and not found:
            raise missing

    async def unload_topic(self, topic: str) -> None:
        """Close a topic where it is served; the next request opens it again."""
        name = TopicName.parse(topic)
        for part in name.partitions(await self._catalog.partitions(name)):
            await self._at_owner("unload_topic", part)

    async def terminate_topic(self, topic: str) -> dict[str, str]:
        """End a topic for good: it can be read, and nothing is published to it any more. Idempotent.

        Returns:
            ``ledger:entry`` of the last message by name of the topic, or of each partition; entry -1 for none.

        Raises:
            TopicNotFoundError.
            ServiceNotReadyError, PersistenceError: not now; some partitions may be ended.
        """
        name = TopicName.parse(topic)
        parts = name.partitions(await self._catalog.partitions(name))
        return {str(part): await self._at_owner("terminate_topic", part) for part in parts}

    async def compact_topic(self, topic: str) -> None:
        """Begin to keep the latest message of each key, on every partition; ``compaction_status`` tells how it goes.

        Raises:
            ConflictError: that is under way already; some partitions may have begun.
        """
        name = TopicName.parse(topic)
        for part in name.partitions(await self._catalog.partitions(name)):
            await self._at_owner("compact_topic", part)

    async def compaction_status(self, topic: str) -> Json:
        """Pulsar's ``status`` (NOT_RUN, RUNNING, SUCCESS, ERROR) and ``lastError``; of partitions the least finished.

        The status is that of this time of being served: it is NOT_RUN again after the topic moved to another broker.
        """
        name = TopicName.parse(topic)
        parts = name.partitions(await self._catalog.partitions(name))
        found = [await self._at_owner("compaction_status", part) for part in parts]
        order = ("ERROR", "RUNNING", "NOT_RUN", "SUCCESS")
        least: Json = min(found, key=lambda status: order.index(status["status"]))
        return least

    async def visit_topic(self, topic: str) -> None:
        """Open a topic where it is served, so that its policies act on it; it is closed again when it is idle."""
        await self._at_owner("visit_topic", TopicName.parse(topic))

    async def ledger_ranges(self, topic: str) -> list[Json]:
        """All entries confirmed by now, ledger by ledger in publish order: ids of the first and the last entry.

        Raises:
            BadRequestError: the topic is partitioned; ask for each partition.
        """
        name = TopicName.parse(topic)
        if await self._catalog.partitions(name):
            raise BadRequestError(f"{name} is partitioned: ask for each partition", field="topic")
        ranges: list[Json] = await self._at_owner("ledger_ranges", name)
        return ranges

    async def publish(
        self, topic: str, payloads: Sequence[bytes], keys: Sequence[str | None] | None = None
    ) -> list[str]:
        """Publish a list of payloads, packed into as few entries as the size limit allows.

        On a partitioned topic, messages with a key go to the key's partition, those without one all to the next
        partition in turn.

        Returns:
            ``ledger:entry:partition:batch_index`` of each, in the order given, when all are durable.

        Raises:
            MessageTooLargeError: one payload is above the limit; nothing was published.
            PersistenceError, ServiceNotReadyError: the outcome of what has not been confirmed is unknown.
        """
        name = TopicName.parse(topic)
        check_payloads(payloads, keys, self._context.config.max_message_bytes)
        partitions = await self._catalog.partitions(name)
        ids = [""] * len(payloads)
        for part, places in self._spreader.spread(name, partitions, len(payloads), keys):
            answers = await self._at_owner(
                "publish",
                part,
                payloads=[payloads[place] for place in places],
                keys=None if keys is None else [keys[place] for place in places],
            )
            for place, answer in zip(places, answers, strict=True):
                ids[place] = answer
        return ids

    async def forwarded(self, method: str, arguments: Json) -> Any:
        """See AdminApi."""
        name = TopicName.parse(arguments.pop("topic"))
        owner = await self._context.ownership.resolve(name, authoritative=True)
        if not owner.is_us:
            raise ServiceNotReadyError(f"{name} is served by {owner.broker_id}")
        return await self._owned.run(method, name, arguments)

    async def asked(self, method: str, arguments: Json) -> Any:
        """See AdminApi."""
        return await self._duties.run(method, arguments)

    async def _at_owners(self, method: str, topic: TopicName, partitions: int) -> dict[str, Json]:
        """A method's answers for each partition, by its full name."""
        limit = asyncio.Semaphore(PARTITIONS_AT_ONCE_MAX)

        async def ask(part: TopicName) -> Json:
            async with limit:
                answer: Json = await self._at_owner(method, part)
                return answer

        names = topic.partitions(partitions)
        return dict(zip(map(str, names), await asyncio.gather(*map(ask, names)), strict=True))

    async def _at_owner(self, method: str, topic: TopicName, /, **arguments: Any) -> Any:
        owner = await self._context.ownership.resolve(topic)
        if owner.is_us:
            return await self._owned.run(method, topic, arguments)
        if self._peer is None:
            raise ServiceNotReadyError(f"{topic} is served by {owner.broker_id} at {owner.service_url}")
        return await self._peer(owner.actor_name).forwarded(method, {"topic": str(topic), **arguments})


def _persistence(wanted: Json | None, default: Persistence) -> Persistence:
    if wanted is None:
        return default
    fields = ("ensemble_size", "write_quorum", "ack_quorum")
    unknown = set(wanted) - set(fields)
    if unknown:
        raise BadRequestError(
            f"persistence has no {sorted(unknown)[0]!r}", field="persistence", limit=", ".join(fields)
        )
    numbers = [wanted.get(field, getattr(default, field)) for field in fields]
    if not all(isinstance(number, int) and not isinstance(number, bool) for number in numbers):
        raise InvalidQuorumError("the numbers of copies are integers", field="persistence")
    return Persistence(*numbers)
