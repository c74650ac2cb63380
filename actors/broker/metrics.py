"""The metrics that a broker exports. Names are Pulsar's where Pulsar has the metric."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BrokerMetric:
    """One exported number; ``key`` is its name in ``Broker.statistics``."""

    name: str
    key: str
    meaning: str


METRICS = (
    BrokerMetric(
        "heliograph_broker_memory_bytes", "memory_bytes", "memory of the process, without programs and libraries"
    ),
    BrokerMetric(
        "heliograph_broker_memory_budget_bytes",
        "memory_budget_bytes",
        "memory that the process may use, with all parts in it",
    ),
    BrokerMetric(
        "heliograph_broker_unsent_closed_total",
        "unsent_closed_total",
        "connections closed because they did not read what they were sent",
    ),
    BrokerMetric("heliograph_broker_read_ahead_bytes", "read_ahead_bytes", "entries read ahead for subscriptions"),
    BrokerMetric("pulsar_topics_count", "topics", "loaded topics"),
    BrokerMetric("pulsar_subscriptions_count", "subscriptions", "subscriptions of the loaded topics"),
    BrokerMetric("pulsar_producers_count", "producers", "connected producers"),
    BrokerMetric("pulsar_consumers_count", "consumers", "connected consumers"),
    BrokerMetric("pulsar_active_connections", "connections", "open connections"),
    BrokerMetric(
        "heliograph_broker_connections_local_total",
        "connections_local_total",
        "connections accepted over the Unix socket of this machine",
    ),
    BrokerMetric(
        "heliograph_broker_connections_refused_total",
        "connections_refused_total",
        "connections refused because all, an address or a role had as many as they may",
    ),
    BrokerMetric(
        "heliograph_broker_unfinished_bytes", "unfinished_bytes", "bytes held of frames that are not complete"
    ),
    BrokerMetric(
        "heliograph_broker_unfinished_closed_total",
        "unfinished_closed_total",
        "connections closed because a frame did not arrive in its time, or there was no room for it",
    ),
    BrokerMetric("pulsar_in_messages_total", "messages_in", "messages published to the loaded topics"),
    BrokerMetric("pulsar_in_bytes_total", "bytes_in", "bytes published to the loaded topics"),
    BrokerMetric("pulsar_out_messages_total", "messages_out", "messages sent to consumers of the loaded topics"),
    BrokerMetric("pulsar_out_bytes_total", "bytes_out", "bytes sent to consumers of the loaded topics"),
    BrokerMetric("heliograph_broker_bundles", "bundles", "bundles that the broker owns"),
    BrokerMetric("heliograph_broker_entries_in_total", "entries_in", "entries stored for the loaded topics"),
    BrokerMetric("heliograph_broker_publishes_pending", "publishes_pending", "entries sent to bookies, not confirmed"),
    BrokerMetric("heliograph_broker_load", "load", "load as load balancing sees it; see `broker.balance`"),
    BrokerMetric(
        "heliograph_broker_large_records",
        "large_records",
        "records in metadata, written by the broker, that are above half of their limit",
    ),
    BrokerMetric("heliograph_broker_is_leader", "is_leader", "1 while the broker is the elected leader"),
    BrokerMetric("heliograph_broker_bundle_moves_total", "bundle_moves_total", "bundles that the leader moved"),
    BrokerMetric("heliograph_broker_bundle_splits_total", "bundle_splits_total", "bundles that the broker split"),
    BrokerMetric(
        "heliograph_broker_audit_lines_dropped_total",
        "audit_lines_dropped_total",
        "lines of the audit log that could not be kept",
    ),
    BrokerMetric(
        "heliograph_broker_rights_revoked_total",
        "rights_revoked_total",
        "producers, consumers and watchers closed because their role lost the right",
    ),
    BrokerMetric(
        "heliograph_broker_orphans_deleted_total", "orphans_deleted_total", "deleted ledgers that no record named"
    ),
)
