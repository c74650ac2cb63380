"""A broker as a Ray actor: lifecycle, admin calls, metrics. Messages go over its socket; ``publish`` is for those who
have the actor's handle and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.metrics import Gauge

from actors.broker.admin import Admin
from actors.broker.config import BrokerConfig
from actors.broker.session import BrokerSessions
from heliograph.errors import HeliographError, ServiceNotReadyError

Json = dict[str, Any]

METRICS_SECONDS = 5.0
FORWARD_SECONDS_MAX = 30.0  # of a call at another broker
# Pulsar's names where it has one; the value is the key in ``Broker.statistics``.
GAUGES = {
    "pulsar_topics_count": "topics",
    "pulsar_subscriptions_count": "subscriptions",
    "pulsar_producers_count": "producers",
    "pulsar_consumers_count": "consumers",
    "pulsar_active_connections": "connections",
    "pulsar_in_messages_total": "messages_in",
    "pulsar_in_bytes_total": "bytes_in",
    "pulsar_out_messages_total": "messages_out",
    "pulsar_out_bytes_total": "bytes_out",
    "heliograph_broker_bundles": "bundles",
    "heliograph_broker_entries_in_total": "entries_in",
    "heliograph_broker_publishes_pending": "publishes_pending",
    "heliograph_broker_load": "load",
    "heliograph_broker_is_leader": "is_leader",
    "heliograph_broker_bundle_moves_total": "bundle_moves_total",
    "heliograph_broker_bundle_splits_total": "bundle_splits_total",
    "heliograph_broker_orphans_deleted_total": "orphans_deleted_total",
}


class RayPeer:
    """Another broker, reached through its actor; an AdminApi."""

    def __init__(self, ray_namespace: str, actor_name: str) -> None:
        self._ray_namespace = ray_namespace
        self._actor_name = actor_name

    async def forwarded(self, method: str, arguments: Json) -> Any:
        """See AdminApi.

        Raises:
            ServiceNotReadyError: the actor is gone or does not answer; its topics go to another broker.
        """
        return await self._call("forwarded", method, arguments)

    async def asked(self, method: str, arguments: Json) -> Any:
        """See AdminApi; raises as ``forwarded``."""
        return await self._call("asked", method, arguments)

    async def _call(self, way: str, method: str, arguments: Json) -> Any:
        try:
            handle = await asyncio.to_thread(ray.get_actor, self._actor_name, self._ray_namespace)
            call = getattr(handle, way).remote(method, arguments)
            return await asyncio.wait_for(call, FORWARD_SECONDS_MAX)
        except RayTaskError as error:
            if isinstance(error.cause, HeliographError):
                raise error.cause from error
            raise
        except (RayError, ValueError, TimeoutError) as error:
            raise ServiceNotReadyError(f"broker {self._actor_name} cannot be reached: {error}") from error


class BrokerActor:
    """One broker in a process of its own.

    Every method may be called again. A call that failed with advice RETRY or REFRESH, or whose reply was lost, may
    have happened. Admin methods work on any broker: those that need a topic's owner are forwarded to it.
    """

    def __init__(self, config: BrokerConfig, metadata_url: str) -> None:
        if not __debug__:
            raise RuntimeError("a broker relies on its assertions: do not start it with -O")
        self._config = config
        self._sessions = BrokerSessions(config, metadata_url, partial(RayPeer, config.ray_namespace))
        self._service_url = ""
        self._starting = asyncio.Lock()
        self._metrics: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def __repr__(self) -> str:
        return f"Broker({self._config.broker_id})"

    async def start(self) -> str:
        """Start, if that did not happen yet; returns the service URL, ``pulsar://host:port``.

        Raises:
            ResourceError: the port is taken.
            ConnectionLossError: the metadata store cannot be reached.
        """
        async with self._starting:
            if not self._service_url:
                self._loop = asyncio.get_running_loop()
                self._service_url = await self._sessions.start()
                self._metrics = self._loop.create_task(self._export_metrics())
            return self._service_url

    async def service_url(self) -> str:
        """``pulsar://host:port``, empty before ``start``."""
        return self._service_url

    async def pid(self) -> int:
        """Of this process."""
        return os.getpid()

    async def stop(self) -> None:
        """Finish what is under way and give every topic back. Idempotent."""
        async with self._starting:
            if self._metrics is not None:
                self._metrics.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await self._metrics
                self._metrics = None
            await self._sessions.stop()
            self._service_url = ""

    async def statistics(self) -> Json:
        """What this broker does now and did since its start; also the processor seconds of its process."""
        return {**self._sessions.broker.statistics(), "cpu_seconds": time.process_time()}

    async def lookup(self, topic: str) -> Json:
        """``broker_id``, ``service_url`` and ``actor_name`` of the broker that serves a topic."""
        return await self._admin.lookup(topic)

    async def create_topic(self, topic: str, partitions: int = 0, persistence: Json | None = None) -> None:
        """See ``Admin.create_topic``."""
        await self._admin.create_topic(topic, partitions, persistence)

    async def delete_topic(self, topic: str, force: bool = False) -> None:
        """See ``Admin.delete_topic``."""
        await self._admin.delete_topic(topic, force)

    async def list_topics(self, namespace: str = "public/default") -> list[Json]:
        """``name`` and ``partitions`` of each topic of a namespace."""
        return await self._admin.list_topics(namespace)

    async def partitions(self, topic: str, may_create: bool = False) -> int:
        """See ``Admin.partitions``."""
        return await self._admin.partitions(topic, may_create)

    async def topic_stats(self, topic: str) -> Json:
        """See ``Admin.topic_stats``."""
        return await self._admin.topic_stats(topic)

    async def topic_internal_stats(self, topic: str) -> Json:
        """See ``Admin.topic_internal_stats``."""
        return await self._admin.topic_internal_stats(topic)

    async def subscriptions(self, topic: str) -> list[str]:
        """Names of a topic's subscriptions."""
        return await self._admin.subscriptions(topic)

    async def create_subscription(self, topic: str, name: str, position: str = "latest") -> None:
        """See ``Admin.create_subscription``."""
        await self._admin.create_subscription(topic, name, position)

    async def delete_subscription(self, topic: str, name: str, force: bool = False) -> None:
        """See ``Admin.delete_subscription``."""
        await self._admin.delete_subscription(topic, name, force)

    async def unload_topic(self, topic: str) -> None:
        """See ``Admin.unload_topic``."""
        await self._admin.unload_topic(topic)

    async def terminate_topic(self, topic: str) -> dict[str, str]:
        """See ``Admin.terminate_topic``."""
        return await self._admin.terminate_topic(topic)

    async def compact_topic(self, topic: str) -> None:
        """See ``Admin.compact_topic``."""
        await self._admin.compact_topic(topic)

    async def compaction_status(self, topic: str) -> Json:
        """See ``Admin.compaction_status``."""
        return await self._admin.compaction_status(topic)

    async def ledger_ranges(self, topic: str) -> list[Json]:
        """See ``Admin.ledger_ranges``."""
        return await self._admin.ledger_ranges(topic)

    async def publish(
        self, topic: str, payloads: Sequence[bytes], keys: Sequence[str | None] | None = None
    ) -> list[str]:
        """See ``Admin.publish``. Give it many payloads at once: a call costs about a millisecond."""
        return await self._admin.publish(topic, payloads, keys)

    async def get_schema(self, topic: str, version: int | None = None) -> Json:
        """See ``SchemaAdmin.get``."""
        return await self._admin.schemas.get(topic, version)

    async def schema_versions(self, topic: str) -> list[Json]:
        """See ``SchemaAdmin.versions``."""
        return await self._admin.schemas.versions(topic)

    async def put_schema(self, topic: str, schema: Json) -> int:
        """See ``SchemaAdmin.put``."""
        return await self._admin.schemas.put(topic, schema)

    async def check_schema(self, topic: str, schema: Json) -> Json:
        """See ``SchemaAdmin.check``."""
        return await self._admin.schemas.check(topic, schema)

    async def schema_version(self, topic: str, schema: Json) -> int | None:
        """See ``SchemaAdmin.version_of``."""
        return await self._admin.schemas.version_of(topic, schema)

    async def delete_schema(self, topic: str) -> int:
        """See ``SchemaAdmin.delete``."""
        return await self._admin.schemas.delete(topic)

    async def forwarded(self, method: str, arguments: Json) -> Any:
        """For other brokers: see ``AdminApi.forwarded``."""
        return await self._admin.forwarded(method, arguments)

    async def asked(self, method: str, arguments: Json) -> Any:
        """For other brokers: see ``AdminApi.asked``."""
        return await self._admin.asked(method, arguments)

    async def administer_namespaces(self, method: str, arguments: Json) -> Any:
        """Tenants, namespaces and policies: a method of ``NamespaceRecords`` by name, or ``delete``."""
        return await self._admin.namespaces.run(method, arguments)

    async def administer_brokers(self, method: str, arguments: Json) -> Any:
        """Brokers and bundles: a method of ``BrokerAdmin`` by name."""
        return await self._admin.brokers.run(method, arguments)

    async def administer_cursors(self, method: str, arguments: Json) -> Any:
        """Subscriptions and their messages: a method of ``CursorAdmin`` by name."""
        return await self._admin.cursors.run(method, arguments)

    async def update_partitions(self, topic: str, partitions: int) -> None:
        """See ``Admin.update_partitions``."""
        await self._admin.update_partitions(topic, partitions)

    async def create_missing_partitions(self, topic: str) -> int:
        """See ``Admin.create_missing_partitions``."""
        return await self._admin.create_missing_partitions(topic)

    @property
    def _admin(self) -> Admin:
        return self._sessions.broker.admin

    async def _export_metrics(self) -> None:
        gauges = {key: Gauge(name, tag_keys=("broker",)) for name, key in GAUGES.items()}
        tags = {"broker": self._config.broker_id}
        while True:
            with contextlib.suppress(ServiceNotReadyError):
                statistics = self._sessions.broker.statistics()
                for key, gauge in gauges.items():
                    gauge.set(float(statistics[key]), tags)
            await asyncio.sleep(METRICS_SECONDS)
