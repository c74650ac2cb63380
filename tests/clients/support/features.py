"""The rows of ``docs/clients.md``: what a user of a client or tool expects of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class FeatureTable:
    """One table of the page: its title, and the title of each row by the name that tests note it by."""

    title: str
    features: dict[str, str]


PULSAR = FeatureTable(
    "Pulsar clients",
    {
        "produce_consume": "publish, receive, acknowledge",
        "batching": "batches",
        "exclusive": "Exclusive subscriptions",
        "shared": "Shared subscriptions",
        "failover": "Failover subscriptions",
        "key_shared": "Key_Shared subscriptions",
        "key_ranges": "Key_Shared subscriptions with ranges that consumers name",
        "batch_receive": "receives of several messages at once",
        "listener": "listeners, paused and resumed",
        "no_receiver_queue": "consumers without a receiver queue",
        "several_topics": "consumers of several topics",
        "subscription_properties": "properties of subscriptions and consumers",
        "cumulative_ack": "cumulative acknowledgements",
        "batch_index_ack": "acknowledgements of single messages of a batch",
        "divided_batches": "batches divided among consumers (property `heliograph.takes-parts`)",
        "refused_alone": "one refused message of a batch comes again, and no other one of it",
        "buried_alone": "one message of a batch becomes a dead letter, and no other one of it",
        "keys_together": "keys of ordinary batches stay at one consumer each (Key_Shared, the same property)",
        "negative_ack": "negative acknowledgements",
        "ack_timeout": "acknowledgement time-out",
        "backoff": "pauses of redelivery that grow",
        "dead_letters": "dead letters",
        "retry_topics": "retry topics",
        "delayed": "delayed delivery",
        "chunking": "chunked messages",
        "codec_lz4": "compression: LZ4",
        "codec_zlib": "compression: ZLIB",
        "codec_zstd": "compression: ZSTD",
        "codec_snappy": "compression: SNAPPY",
        "reader": "readers",
        "seek_id": "seek to a message id",
        "seek_time": "seek to a time",
        "entry_metadata": "index and broker's time of messages",
        "table_view": "table views",
        "compaction": "reading a compacted topic",
        "partitions": "partitioned topics",
        "partition_growth": "partitions added under a running client",
        "regex": "subscriptions by a pattern of topics",
        "end_of_topic": "the end of a topic",
        "non_persistent": "non-persistent topics",
        "encryption": "encryption by the client",
        "access_modes": "access modes of producers",
        "deduplication": "deduplication by sequence ids",
        "schema_bytes": "schema: bytes",
        "schema_string": "schema: string",
        "schema_primitives": "schema: numbers, booleans, dates and times",
        "schema_json": "schema: JSON",
        "schema_avro": "schema: Avro",
        "schema_protobuf": "schema: Protobuf",
        "schema_key_value": "schema: key and value, in one and apart",
        "schema_auto": "schema: consume and publish with the topic's own",
        "schema_evolution": "schemas that evolve",
        "schema_incompatible": "an incompatible schema is refused",
        "token": "tokens",
        "token_refused": "a wrong, expired, blank or missing token is refused at the first operation",
        "token_renewed": "a token is renewed on the open connection",
        "rights": "a role without the right is refused; a revoked right ends",
        "tls": "TLS: the authority and the name of the host are checked",
        "tls_role": "TLS: the client's certificate is its role",
        "transactions": "transactions",
        "unload": "a topic is unloaded under a running client",
        "redirect": "a topic moves to another broker under a running client",
        "broker_death": "a broker is killed under a running client",
    },
)
ADMINISTRATION = FeatureTable(
    "Administration",
    {
        "tenants": "tenants",
        "clusters": "clusters",
        "brokers": "brokers",
        "bookies": "bookies",
        "namespaces": "namespaces: create, list, unload, delete",
        "topics": "topics: create, list, look up, terminate, delete",
        "partitioned_topics": "partitioned topics",
        "subscriptions": "subscriptions: create, skip, reset, expire, delete",
        "messages": "messages: peek, by id, examine",
        "schemas": "schemas",
        "stats": "statistics",
        "permissions": "permissions",
        "identity": "tokens: who shows none is refused, and who lacks the right",
        "not_offered": "what is not offered is refused with a reason",
        "perf_produce": "publishing at a rate",
        "perf_consume": "consuming at a rate",
        "perf_read": "reading at a rate",
    },
)
_POLICIES = {
    "message_ttl": "time to live of messages",
    "retention": "retention",
    "backlog_quota": "backlog quota",
    "persistence": "numbers of copies",
    "publish_rate": "rate of publishing",
    "dispatch_rate": "rate of delivery",
    "subscription_dispatch_rate": "rate of delivery of each subscription",
    "subscribe_rate": "rate of subscribing",
    "max_producers": "most producers of a topic",
    "max_consumers": "most consumers of a topic",
    "max_consumers_per_subscription": "most consumers of a subscription",
    "max_unacked_messages_per_consumer": "most unacknowledged messages of a consumer",
    "max_unacked_messages_per_subscription": "most unacknowledged messages of a subscription",
    "max_subscriptions_per_topic": "most subscriptions of a topic",
    "deduplication": "deduplication",
    "compaction_threshold": "compaction threshold",
    "delayed_delivery": "delayed delivery and its precision",
    "inactive_topic_policies": "deletion of inactive topics",
    "subscription_types_enabled": "types of subscriptions",
    "auto_subscription_creation": "creation of subscriptions by their first use",
    "schema_compatibility_strategy": "compatibility of schemas",
    "schema_validation_enforce": "producers without a schema",
}
NAMESPACE_POLICIES = FeatureTable(
    "Policies of namespaces: set, get, remove",
    {f"namespace:{name}": title for name, title in _POLICIES.items()}
    | {
        "namespace:max_topics_per_namespace": "most topics",
        "namespace:auto_topic_creation": "creation of topics by their first use",
        "namespace:subscription_expiration_time": "expiry of unused subscriptions",
        "namespace:is_allow_auto_update_schema": "schemas that producers bring",
        "namespace:properties": "properties",
        "namespace:whole": "all policies at once",
    },
)
TOPIC_POLICIES = FeatureTable(
    "Policies of topics: set, get, remove",
    {f"topic:{name}": title for name, title in _POLICIES.items()} | {"topic:max_message_size": "largest message"},
)
ZOOKEEPER = FeatureTable(
    "ZooKeeper clients, on `helio metadata serve`",
    {
        "zk_nodes": "nodes: create, read, change, delete; null data and empty data",
        "zk_sequence": "ephemeral and sequential nodes",
        "zk_containers": "container nodes",
        "zk_ttl": "nodes with a time to live",
        "zk_transactions": "transactions",
        "zk_acl": "access control lists",
        "zk_watches": "watches: one-time, persistent, recursive; their removal",
        "zk_caches": "caches of a node, its children and its tree",
        "zk_locks": "mutexes, read-write locks, semaphores",
        "zk_leaders": "leader election",
        "zk_barriers": "barriers",
        "zk_groups": "members of a group, discovery of services",
        "zk_queues": "queues",
        "zk_counters": "counters and values that are shared",
        "zk_reconnect": "a session continues after a broken connection",
        "zk_expiry": "an expired session loses its nodes, and the client begins another",
        "zk_endpoint_death": "a session continues at another endpoint",
        "zk_storage": "the metadata of a storage system: format, register, write, read",
        "zk_restart": "a server that keeps its state there is restarted",
    },
)
TABLES = (PULSAR, ADMINISTRATION, NAMESPACE_POLICIES, TOPIC_POLICIES, ZOOKEEPER)


def title_of(feature: str) -> str:
    """Return a feature's title; an unknown one is an error of the test."""
    for table in TABLES:
        if feature in table.features:
            return table.features[feature]
    raise AssertionError(f"{feature} is no row of docs/clients.md: add it to tests/clients/support/features.py")
