"""A broker: everything but Ray."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

from actors.broker.admin import Admin, PeerOf
from actors.broker.admin_brokers import BrokerAdmin, BrokerDuties
from actors.broker.broker_context import BrokerContext
from actors.broker.bundle_changes import BundleChanges
from actors.broker.catalog import Catalog
from actors.broker.config import BrokerConfig
from actors.broker.idle_topics import IdleTopics, is_in_use
from actors.broker.leader import Leader
from actors.broker.ledgers import Ledgers
from actors.broker.load_watch import LoadWatch
from actors.broker.orphan_sweep import OrphanSweep
from actors.broker.ownership import Ownership
from actors.broker.policy_watch import PolicyWatch
from actors.broker.publish_budget import PublishBudget
from actors.broker.pulsar_server import PulsarServer
from actors.broker.schema_registry import SchemaRegistry
from actors.broker.subscription import SubscriptionSetting
from actors.broker.tail_cache import TailCache
from actors.broker.tls import ServerTls
from actors.broker.topic import Topic
from actors.broker.topic_deletion import delete_topic
from actors.broker.topic_tour import TopicTour
from actors.broker.topics import Topics
from actors.wire.broken import end_process
from heliograph.errors import HeliographError, TopicBusyError, TopicNotFoundError
from metadata.model import BrokerRegistration
from metadata.store import MetadataStore

log = logging.getLogger(__name__)


class Broker:
    """Serves the topics that it owns to clients of Pulsar's binary protocol, and answers for every topic's admin.

    A broker lives as long as the session of its store: when that is lost it drops every topic, hangs up on its clients
    and calls ``on_session_lost``. It is then of no more use; make another one with a new store.

    Args:
        ledgers: made on the same store; it is the caller's to close, as the store is.
        peer: finds the admin interface of another broker by its actor name.
    """

    def __init__(
        self, config: BrokerConfig, store: MetadataStore, ledgers: Ledgers, peer: PeerOf | None = None
    ) -> None:
        self.config = config
        self.on_session_lost: Callable[[], None] = lambda: None
        self._tls = None if config.tls is None else ServerTls(config.tls)
        self._server = PulsarServer(config.host, config.port, config.tls_port, self._tls)
        self._store = store
        self._ledgers = ledgers
        self._peer = peer
        self._cache = TailCache(config.cache_bytes)
        self._publish_budget = PublishBudget(config.publish_bytes_max)
        self._publish_budget.rate.set(config.publish_messages_per_second, config.publish_bytes_per_second)
        self._catalog = Catalog(store)
        self._ownership: Ownership | None = None
        self._topics: Topics | None = None
        self._admin: Admin | None = None
        self._load: LoadWatch | None = None
        self._leader: Leader | None = None
        self._orphans = OrphanSweep(store, ledgers, config.orphan_grace_seconds)
        self._policy_watch: PolicyWatch | None = None
        self._housekeeper: asyncio.Task[None] | None = None
        self._started_ms = time.time_ns() // 1_000_000

    @property
    def service_url(self) -> str:
        """``pulsar://host:port`` as clients and other brokers know it."""
        return f"pulsar://{self.config.advertised_host or self.config.host}:{self._server.port}"

    @property
    def service_url_tls(self) -> str:
        """``pulsar+ssl://host:port``, empty without TLS."""
        port = self._server.tls_port
        return "" if port is None else f"pulsar+ssl://{self.config.advertised_host or self.config.host}:{port}"

    @property
    def leader(self) -> Leader:
        """This broker's part in the election of a leader; only after ``start``."""
        assert self._leader is not None, "the broker was started"
        return self._leader

    @property
    def orphans(self) -> OrphanSweep:
        """The search for ledgers that nothing names."""
        return self._orphans

    @property
    def admin(self) -> Admin:
        """The admin interface; only after ``start``."""
        assert self._admin is not None, "the broker was started"
        return self._admin

    @property
    def topics(self) -> Topics:
        """The topics being served; only after ``start``."""
        assert self._topics is not None, "the broker was started"
        return self._topics

    @property
    def ownership(self) -> Ownership:
        """The bundles owned; only after ``start``."""
        assert self._ownership is not None, "the broker was started"
        return self._ownership

    async def start(self) -> None:
        """Listen, register, then let clients in. A predecessor's session is ended at once.

        Raises:
            ResourceError: the port is taken.
            ConnectionLossError, SessionExpiredError: metadata cannot be used.
        """
        await self._server.bind()
        config = self.config
        registration = BrokerRegistration(
            config.broker_id,
            self.service_url,
            config.actor_name,
            started_ms=self._started_ms,
            service_url_tls=self.service_url_tls,
        )
        ownership = self._ownership = Ownership(self._store, registration, self._catalog.bundle_of)
        topics = self._topics = Topics(self._store, self._ledgers, self._catalog, ownership, self._cache)
        topics.setting = SubscriptionSetting(
            failover_delay_seconds=config.failover_delay_seconds, splits_keys=config.key_shared_splits_ranges
        )
        drop_topics = ownership.on_lost

        def session_lost() -> None:
            drop_topics()
            self._server.hang_up()
            self.on_session_lost()

        ownership.on_lost = session_lost
        policy_watch = self._policy_watch = PolicyWatch(self._store, self._catalog, topics)
        try:
            await ownership.start()
            await policy_watch.start()
        except BaseException:
            await self._server.stop()
            raise
        topics.idle = IdleTopics(config.idle_topic_seconds)
        topics.delete_idle = self._delete_idle
        changes = BundleChanges(self._catalog, ownership, topics, config.shutdown_seconds_max)
        leader = self._leader = Leader(
            self._store, ownership, self._peer, config.balance, config.balance_seconds, self._leaders_duties
        )
        self._load = LoadWatch(self._store, ownership, topics, changes, config)
        prefix = f"{config.broker_id}-{self._started_ms:x}"
        context = BrokerContext(
            config, self._catalog, ownership, topics, SchemaRegistry(self._store), self._publish_budget, prefix
        )
        duties = BrokerDuties(ownership, leader, changes)
        brokers = BrokerAdmin(self._store, self._catalog, ownership, leader, duties, self._peer)
        self._admin = Admin(context, self._store, self._ledgers, brokers, duties, self._peer)
        leader.start()
        self._load.start()
        await self._server.start(context)
        self._housekeeper = asyncio.get_running_loop().create_task(self._housekeep(topics))
        self._housekeeper.add_done_callback(_housekeeper_ended)

    async def stop(self) -> None:
        """Finish what is under way, close every topic, give ownership back, hang up. Idempotent."""
        if self._housekeeper is not None:
            self._housekeeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._housekeeper
            self._housekeeper = None
        for part in (self._load, self._leader, self._policy_watch):
            if part is not None:
                await part.stop()
        if self._topics is not None:
            await self._topics.stop(self.config.shutdown_seconds_max)
        if self._ownership is not None:
            await self._ownership.stop()
        await self._server.stop()

    def statistics(self) -> dict[str, Any]:
        """What this broker does now and did since its start."""
        loaded = list(self.topics.loaded) if self._topics is not None else []
        return {
            "broker_id": self.config.broker_id,
            "service_url": self.service_url,
            "started_ms": self._started_ms,
            "connections": self._server.connections,
            "connections_total": self._server.connections_total,
            "bundles": len(self._ownership.owned) if self._ownership is not None else 0,
            "topics": len(loaded),
            "producers": sum(len(topic.producers) for topic in loaded),
            "subscriptions": sum(len(topic.subscriptions) for topic in loaded),
            "consumers": sum(len(s.consumers) for topic in loaded for s in topic.subscriptions.values()),
            "messages_in": sum(topic.messages_in for topic in loaded),
            "entries_in": sum(topic.ledger.entries_added for topic in loaded),
            "bytes_in": sum(topic.ledger.bytes_added for topic in loaded),
            "messages_out": sum(s.messages_out for topic in loaded for s in topic.subscriptions.values()),
            "bytes_out": sum(s.bytes_out for topic in loaded for s in topic.subscriptions.values()),
            "is_leader": self._leader is not None and self._leader.is_leader,
            "is_draining": self._ownership is not None and self._ownership.registration.is_draining,
            "bundle_moves_total": self._leader.moves_total if self._leader is not None else 0,
            "bundle_splits_total": self._load.splits_total if self._load is not None else 0,
            "orphans_deleted_total": self._orphans.deleted_total,
            "load": self._load.load if self._load is not None else 0.0,
            "publish_bytes_pending": self._publish_budget.bytes,
            "publishes_pending": sum(topic.ledger.pending for topic in loaded),
            "cache": self._cache.statistics(),
        }

    def _leaders_duties(self) -> list[Awaitable[None]]:
        duties: list[Awaitable[None]] = []
        if self.config.orphan_sweep_seconds > 0:
            duties.append(self._orphans.run(self.config.orphan_sweep_seconds))
        if self.config.tour_seconds > 0:
            tour = TopicTour(self._store, self._catalog, lambda name: self.admin.visit_topic(str(name)))
            duties.append(tour.run(self.config.tour_seconds))
        return duties

    async def _delete_idle(self, topic: Topic) -> None:
        log.info("%s is deleted: nobody uses it", topic.name)
        with contextlib.suppress(TopicBusyError, TopicNotFoundError):
            await delete_topic(
                topic.name, self.topics, self._catalog, self._store, self._ledgers, force=True, unless=is_in_use
            )
            if topic.name.partition < 0:
                await self.admin.forget_topic(topic.name)

    async def _housekeep(self, topics: Topics) -> None:
        while True:
            await asyncio.sleep(self.config.housekeeping_seconds)
            if self._tls is not None:
                self._tls.reload_if_changed()
            try:
                await topics.housekeep()
            except HeliographError as error:
                log.warning("housekeeping: %s", error)


def _housekeeper_ended(task: asyncio.Task[None]) -> None:
    """It ends by being cancelled, or by a broken promise of ours, after which nothing here is to be trusted."""
    if not task.cancelled() and (error := task.exception()) is not None:
        end_process(error)
