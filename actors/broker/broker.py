"""A broker without Ray: it puts the parts together and runs their periodic work."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Coroutine, Mapping
from typing import Any

from heliograph.actors.broker.admin.admin import AdminService
from heliograph.actors.broker.admin.brokers import BrokerAdminService, BrokerDuties
from heliograph.actors.broker.admin.forwarding import PeerOf
from heliograph.actors.broker.authorization import Authorizer
from heliograph.actors.broker.balance.bundle_changes import BundleChanges
from heliograph.actors.broker.balance.inactive_topic_scan import InactiveTopicScan
from heliograph.actors.broker.balance.leader import Leader
from heliograph.actors.broker.balance.load_watch import LoadWatch
from heliograph.actors.broker.balance.orphan_sweep import OrphanSweep
from heliograph.actors.broker.broker_context import BrokerContext
from heliograph.actors.broker.config import BrokerConfig
from heliograph.actors.broker.dynamic.live_config import LiveConfig
from heliograph.actors.broker.limits.publish_budget import PublishBudget
from heliograph.actors.broker.limits.rates import SAMPLE_SECONDS
from heliograph.actors.broker.listeners import AdvertisedListener, filled_in, parse_listeners
from heliograph.actors.broker.managed_ledger.tail_cache import TailCache
from heliograph.actors.broker.memory_bounds import memory_bounds
from heliograph.actors.broker.metrics import NOT_EXPORTED
from heliograph.actors.broker.namespaces.catalog import Catalog
from heliograph.actors.broker.namespaces.ownership import Ownership
from heliograph.actors.broker.namespaces.topic_lists import TopicLists
from heliograph.actors.broker.probe import Probe
from heliograph.actors.broker.protocol.server import PulsarServer
from heliograph.actors.broker.records.ledgers import LedgersPort
from heliograph.actors.broker.revocation import Revocation
from heliograph.actors.broker.schema.registry import SchemaRegistry
from heliograph.actors.broker.silence_watch import SilenceWatch
from heliograph.actors.broker.topic.deletion import delete_topic
from heliograph.actors.broker.topic.policy_watch import PolicyWatch
from heliograph.actors.broker.topic.series import COUNTED
from heliograph.actors.broker.topic.topic import BrokerTopic
from heliograph.actors.broker.topic.topics import Topics
from heliograph.actors.broker.upkeep.housekeeping import Housekeeping
from heliograph.actors.broker.upkeep.idle_topics import IdleTopics, is_in_use
from heliograph.auth.audit import AuditLog
from heliograph.auth.authenticator import Authenticator
from heliograph.base.clock import wall_ms
from heliograph.base.completion import end_task
from heliograph.base.errors import HeliographError, TopicBusyError, TopicNotFoundError
from heliograph.base.guard import memory
from heliograph.base.interval import Interval, until_tick
from heliograph.base.peer import host_and_port
from heliograph.base.processes import end_process
from heliograph.base.tls.contexts import ServerTls
from heliograph.metadata.codec import PIECES_VERSION, large_records
from heliograph.metadata.model import BrokerRegistration
from heliograph.metadata.recipes.revoked_tokens import RevokedTokens
from heliograph.metadata.store import MetadataStore
from heliograph.metrics.history import STEP_SECONDS
from heliograph.tracing import tracer as tracing
from heliograph.tracing.tracer import Tracer

log = logging.getLogger(__name__)


class Broker:
    """Serves the topics that it owns over Pulsar's binary protocol, and the administration of all topics.

    It serves through a silence of the metadata store, and in the next session of a store that renews its sessions
    (``metadata/session/renewing.py``). When the store is LOST it drops every topic and closes every connection, and
    cannot be used again.

    Args:
        ledgers: uses the same store. The caller closes both.
        peer: finds the admin interface of another broker by its actor name.
    """

    def __init__(
        self, config: BrokerConfig, store: MetadataStore, ledgers: LedgersPort, peer: PeerOf | None = None
    ) -> None:
        self.config = config  # replaced when a setting changes while the broker runs
        self._tls = None if config.tls is None else ServerTls(config.tls)
        self._server = PulsarServer(config, self._tls)
        self._store = store
        self._ledgers = ledgers
        self._peer = peer
        self._cache = TailCache(config.cache_bytes)
        self._publish_budget = PublishBudget(config.publish_bytes_max)
        self._limit_publishing(config)
        self._catalog = Catalog(store, config.policy_defaults)
        self._catalog.namespaces_per_tenant_max = config.namespaces_per_tenant_max
        self._live = LiveConfig(config, store)
        self._topic_lists = TopicLists(store, self._catalog)
        self._authorizer = Authorizer(config.auth, store, self._catalog)
        self.authenticator = Authenticator(config.auth)
        self._audit = AuditLog(config.audit, config.broker_id)
        self._authorizer.on_refused = self._audit.refusal
        self._authorizer.on_admin_read = self._audit.reading
        self.authenticator.on_refused = self._audit.login_refused
        self._revoked = RevokedTokens(store, self._close_revoked)
        self._revocation = Revocation(
            self._authorizer, lambda: self._server.open_connections, config.auth.refresh_check_seconds
        )
        self._ownership: Ownership | None = None
        self._topics: Topics | None = None
        self._upkeep: Housekeeping | None = None
        self._admin: AdminService | None = None
        self._changes: BundleChanges | None = None
        self._load: LoadWatch | None = None
        self._leader: Leader | None = None
        self._orphans = OrphanSweep(store, ledgers, config.orphan_grace_seconds)
        self._policy_watch: PolicyWatch | None = None
        self._silence: SilenceWatch | None = None
        self._context: BrokerContext | None = None
        self._probe = Probe(config.broker_id, store, ledgers, self._catalog)
        self._housekeeping = Interval(config.housekeeping_seconds)
        self._orphan_sweep = Interval(config.orphan_sweep_seconds)
        self._inactive_scan = Interval(config.inactive_topic_scan_seconds)
        self._tracer: Tracer | None = None
        self._duties: list[asyncio.Task[None]] = []
        self._started_ms = wall_ms()

    @property
    def _reached_at(self) -> str:
        return self.config.advertised_host or self.config.host

    @property
    def service_url(self) -> str:
        """The address without TLS, ``pulsar://host:port``; empty if the plain port is closed."""
        port = self._server.port
        return "" if port is None else f"pulsar://{host_and_port(self._reached_at, port)}"

    @property
    def service_url_tls(self) -> str:
        """The address for TLS, ``pulsar+ssl://host:port``; empty without TLS."""
        port = self._server.tls_port
        return "" if port is None else f"pulsar+ssl://{host_and_port(self._reached_at, port)}"

    @property
    def address(self) -> str:
        """The address that the broker is found at: that without TLS, if it has one."""
        return self.service_url or self.service_url_tls

    @property
    def leader(self) -> Leader:
        """This broker as a candidate for leader; only after ``start``."""
        assert self._leader is not None, "the broker was started"
        return self._leader

    @property
    def orphans(self) -> OrphanSweep:
        return self._orphans

    @property
    def admin(self) -> AdminService:
        """The administration; only after ``start``."""
        assert self._admin is not None, "the broker was started"
        return self._admin

    @property
    def topics(self) -> Topics:
        """The loaded topics; only after ``start``."""
        assert self._topics is not None, "the broker was started"
        return self._topics

    @property
    def upkeep(self) -> Housekeeping:
        """The housekeeping of the loaded topics; only after ``start``."""
        assert self._upkeep is not None, "the broker was started"
        return self._upkeep

    @property
    def ownership(self) -> Ownership:
        """The owned bundles; only after ``start``."""
        assert self._ownership is not None, "the broker was started"
        return self._ownership

    async def start(self) -> None:
        """Listen, register, then accept clients. The session of a predecessor is ended at once.

        Raises:
            ResourceError: the port is taken.
            ConnectionLossError, SessionExpiredError: metadata cannot be used.
        """
        await self._server.bind()
        memory.host(self.config.broker_id, memory_bounds(self.config))
        self._tracer = await asyncio.to_thread(tracing.start, self.config.tracing)
        registration = self._registration()
        ownership = self._ownership = Ownership(self._store, registration, self._catalog.known.bundle_of)
        topics = self._topics = Topics(self._store, self._ledgers, self._catalog, ownership, self._cache)
        drop_topics = ownership.on_lost

        def lost() -> None:
            drop_topics()
            self._server.hang_up()

        ownership.on_lost = lost
        policy_watch = self._policy_watch = PolicyWatch(self._store, self._catalog, topics)
        try:
            await ownership.start()
            await policy_watch.start()
            await self._live.start()
            await self._follow_rights()
        except BaseException:
            await self._server.stop()
            raise
        self._silence = SilenceWatch(self._store, ownership, topics)
        self._silence.start()
        config = self.config = self._live.current
        topics.entry_metadata = config.entry_metadata
        idle = IdleTopics(config.idle_topic_seconds)
        self._upkeep = Housekeeping(topics, topics.upkeep, idle, self._delete_idle)
        changes = self._changes = BundleChanges(self._catalog, ownership, topics, config.shutdown_seconds_max)
        leader = self._leader = Leader(
            self._store, ownership, self._peer, config.balance, config.balance_seconds, self._leader_duties
        )
        self._load = LoadWatch(self._store, ownership, topics, changes, config)
        context = BrokerContext(
            config,
            self._catalog,
            ownership,
            topics,
            SchemaRegistry(self._store),
            self._publish_budget,
            self._topic_lists,
            self._authorizer,
            self.authenticator,
            self._audit,
            f"{config.broker_id}-{self._started_ms:x}",
        )
        self._context = context
        duties = BrokerDuties(context, leader, changes)
        brokers = BrokerAdminService(self._store, self._catalog, ownership, leader, duties, self._peer)
        self._admin = AdminService(context, self._store, self._ledgers, brokers, duties, self._live, self._peer)
        self._configure()
        self._live.on_change = self._configure
        leader.start()
        self._load.start()
        self._probe.start()
        await self._server.start(context, self._admin.run)
        self._revocation.start()
        self._audit.publish = self._admin.publish
        self._audit.start()
        self._duties = [_begun(duty(topics)) for duty in (self._housekeep, self._sample_rates, self._keep_history)]

    async def _follow_rights(self) -> None:
        await self._authorizer.start()
        if self._authorizer.is_enabled:
            await self._revoked.start()

    def _close_revoked(self, token_ids: frozenset[str]) -> None:
        """Refuse revoked tokens, and close the connections of those who have shown one."""
        self.authenticator.revoke(token_ids)
        for connection in list(self._server.open_connections):
            if self.authenticator.is_revoked(connection.principal):
                log.info("%s: connection closed: the token of %s was revoked", connection.peer, connection.principal)
                connection.close()

    async def stop(self) -> None:
        """Confirm pending publishes, close every topic, release all bundles, close all connections. Idempotent."""
        for task in self._duties:
            await end_task(task)
        self._duties = []
        self._topic_lists.stop()
        self._authorizer.stop()
        await self._audit.stop()
        await self._revoked.stop()
        for part in (self._silence, self._live, self._revocation, self._load, self._leader, self._policy_watch):
            if part is not None:
                await part.stop()
        if self._topics is not None:
            await self._topics.stop(self.config.shutdown_seconds_max)
        if self._ownership is not None:
            await self._ownership.stop()
        await self._server.stop()
        await self._probe.stop()  # last: it may take seconds
        self.authenticator.close()
        tracer, self._tracer = self._tracer, None
        await asyncio.to_thread(tracing.stop, tracer)
        memory.leave(self.config.broker_id)

    def statistics(self, *, counts_topics: bool = True) -> dict[str, Any]:
        """Return the statistics of this broker, current ones and totals since its start.

        Args:
            counts_topics: False: what only the topics know is 0.
        """
        topics = self._topics
        counted: Mapping[str, int] = dict.fromkeys(COUNTED, 0)
        if topics is not None and counts_topics:
            counted = topics.history.sums.told()
        traffic = self._topics.setting.traffic if self._topics is not None else NOT_EXPORTED
        used = memory.memory()
        return {
            "broker_id": self.config.broker_id,
            "service_url": self.address,
            "started_ms": self._started_ms,
            "memory_bytes": used.used,
            "memory_budget_bytes": used.budget,
            "unsent_closed_total": self._server.unsent.dropped,
            "read_ahead_bytes": self._cache.read_budget.bytes,
            "connections": self._server.connections,
            "connections_total": self._server.connections_total,
            "connections_local_total": self._server.local.accepted,
            "connections_refused_total": self._server.guard.refused,
            "unfinished_bytes": self._server.guard.unfinished_bytes,
            "unfinished_closed_total": self._server.guard.unfinished_closed,
            "bundles": len(self._ownership.owned) if self._ownership is not None else 0,
            **counted,
            "probe_latency": self._probe.latency.told(),
            "probes": self._probe.rounds,
            "probes_failed": self._probe.failures,
            "is_probe_failing": self._probe.is_failing,
            "add_latency": {name: found.told() for name, found in self._ledgers.add_latencies.items()},
            **traffic.told(),
            "of_a_minute": traffic.of_a_minute(time.monotonic()),
            "certificate_end_timestamp_seconds": 0.0 if self._tls is None else self._tls.ends_at,
            "metadata_silent_seconds": round(self._store.silent_seconds, 1),
            "is_leader": self._leader is not None and self._leader.is_leader,
            "is_draining": self._ownership is not None and self._ownership.registration.is_draining,
            "bundle_moves_total": self._leader.moves_total if self._leader is not None else 0,
            "upkeep_looks_total": 0 if self._upkeep is None else self._upkeep.looks,
            "bundle_splits_total": self._load.splits_total if self._load is not None else 0,
            "orphans_deleted_total": self._orphans.deleted_total,
            "large_records": len(large_records()),
            "load": self._load.load if self._load is not None else 0.0,
            "audit_lines_dropped_total": self._audit.dropped_total,
            "rights_revoked_total": self._revocation.closed_total,
            "publish_bytes_pending": self._publish_budget.bytes,
            "cache": self._cache.statistics(),
        }

    def _configure(self) -> None:
        """Apply the settings that hold now to all parts that keep one."""
        assert self._context is not None, "the broker was started"
        assert self._load is not None, "the broker was started"
        assert self._changes is not None, "the broker was started"
        assert self._policy_watch is not None, "the broker was started"
        config = self.config = self._context.config = self._live.current
        self._server.guard.configure(config.listener)
        memory.host(config.broker_id, memory_bounds(config))
        self._cache.limit(config.cache_bytes)
        self._publish_budget.bytes_max = config.publish_bytes_max
        self._limit_publishing(config)
        if self.upkeep.idle.unload_seconds != config.idle_topic_seconds:
            self.upkeep.idle.unload_seconds = config.idle_topic_seconds
            self.upkeep.look_at_all()
        consumers = self.topics.setting.consumers
        consumers.failover_delay_seconds = config.failover_delay_seconds
        consumers.splits_keys = config.key_shared_splits_ranges
        consumers.deletions_kept_seconds = config.compacted_deletions_seconds
        self._load.configure(config)
        self._changes.seconds_max = config.shutdown_seconds_max
        self.leader.configure(config.balance, config.balance_seconds)
        self._housekeeping.set(config.housekeeping_seconds)
        self._probe.interval.set(config.probe_seconds)
        self._orphan_sweep.set(config.orphan_sweep_seconds)
        self._inactive_scan.set(config.inactive_topic_scan_seconds)
        self._catalog.namespaces_per_tenant_max = config.namespaces_per_tenant_max
        if self._catalog.defaults != config.policy_defaults:
            self._catalog.defaults = config.policy_defaults
            self._policy_watch.apply_again()

    def _registration(self) -> BrokerRegistration:
        """Return the registration by which other brokers and clients find this one: the addresses of its listeners."""
        config = self.config
        text = filled_in(
            config.advertised_listeners,
            broker_id=config.broker_id,
            host=self._reached_at,
            port=self._server.port,
            tls_port=self._server.tls_port,
        )
        ours = AdvertisedListener(self.service_url, self.service_url_tls)
        addresses = parse_listeners(text).get(config.internal_listener_name, ours)
        return BrokerRegistration(
            config.broker_id,
            addresses.url or self.service_url,
            config.actor_name,
            started_ms=self._started_ms,
            service_url_tls=addresses.url_tls,
            listeners=text,
            reads_records=PIECES_VERSION,
        )

    def _leader_duties(self) -> list[Awaitable[None]]:
        admin = self.admin
        scan = InactiveTopicScan(
            self._store, self._catalog, lambda name: admin.visit_topic(str(name)), admin.finish_deletions
        )
        return [self._orphans.run(self._orphan_sweep), scan.run(self._inactive_scan)]

    async def _delete_idle(self, topic: BrokerTopic) -> None:
        log.info("deleting %s: it is inactive", topic.name)
        with contextlib.suppress(TopicBusyError, TopicNotFoundError):
            await delete_topic(
                topic.name, self.topics, self._catalog, self._store, self._ledgers, force=True, unless=is_in_use
            )
            if topic.name.partition < 0:
                await self.admin.forget_topic(topic.name)
            else:
                await self.admin.forget_without_partitions(topic.name)

    def _limit_publishing(self, config: BrokerConfig) -> None:
        self._publish_budget.limit(
            config.publish_messages_per_second,
            config.publish_bytes_per_second,
            config.tenant_publish_bytes_per_second,
        )

    async def _housekeep(self, _: Topics) -> None:
        while True:
            await self._housekeeping.passes()
            try:
                await self.upkeep.round()
            except HeliographError as error:
                log.warning("housekeeping failed: %s", error)

    async def _sample_rates(self, topics: Topics) -> None:
        while True:
            await asyncio.sleep(SAMPLE_SECONDS)
            topics.setting.traffic.sample(time.monotonic())
            await topics.sample_rates()

    async def _keep_history(self, topics: Topics) -> None:
        while True:
            await topics.history.sample(self.statistics(counts_topics=False))
            await asyncio.sleep(until_tick(STEP_SECONDS))


def _begun(duty: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    task = asyncio.get_running_loop().create_task(duty)
    task.add_done_callback(_housekeeper_ended)
    return task


def _housekeeper_ended(task: asyncio.Task[None]) -> None:
    """End the process if the housekeeper failed: that is a broken promise of our own, and no state can be trusted."""
    if not task.cancelled() and (error := task.exception()) is not None:
        end_process(error)
