"""The commands of pulsar-admin on clusters, tenants, namespaces, topics, subscriptions, messages and schemas."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest

from tests.clients.admin.conftest import VERSION
from tests.clients.admin.session import AdminSession
from tests.clients.support.report import ClientMatrix, Outcome
from tests.clients.support.stack import ClientsStack
from tests.cluster.support.broker_cluster import wait_for

TOOL = "pulsar-admin"


@pytest.fixture(scope="module")
def client(stack: ClientsStack) -> Iterator[pulsar.Client]:
    with stack.cluster.client() as found:
        yield found


def lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def test_clusters(admin: AdminSession, matrix: ClientMatrix) -> None:
    assert lines(admin("clusters", "list")) == ["standalone"]
    assert "serviceUrl" in admin("clusters", "get", "standalone")
    matrix.note(TOOL, VERSION, "clusters")


def test_tenants(admin: AdminSession, matrix: ClientMatrix) -> None:
    name = f"tenant-{uuid.uuid4().hex[:8]}"
    admin("tenants", "create", name, "--admin-roles", "one", "--allowed-clusters", "standalone")
    assert name in lines(admin("tenants", "list"))
    assert admin.json("tenants", "get", name)["adminRoles"] == ["one"]
    admin("tenants", "update", name, "--admin-roles", "two", "--allowed-clusters", "standalone")
    assert admin.json("tenants", "get", name)["adminRoles"] == ["two"]
    admin("tenants", "delete", name)
    assert name not in lines(admin("tenants", "list"))
    assert "no tenant" in admin.refused("tenants", "get", name)
    matrix.note(TOOL, VERSION, "tenants")


def test_brokers(admin: AdminSession, matrix: ClientMatrix) -> None:
    found = lines(admin("brokers", "list", "standalone"))
    assert found
    assert all(":" in line for line in found)
    admin("brokers", "healthcheck")
    assert admin("brokers", "version")
    assert admin.json("brokers", "leader-broker")["serviceUrl"]
    admin("brokers", "get-runtime-config")
    admin("broker-stats", "load-report")
    matrix.note(TOOL, VERSION, "brokers")


def test_dynamic_configuration(admin: AdminSession, stack: ClientsStack) -> None:
    assert "brokerMaxConnections" in admin("brokers", "list-dynamic-config")
    admin("brokers", "update-dynamic-config", "--config", "brokerMaxConnections", "--value", "9000")
    try:
        brokers = [running.broker for running in stack.cluster.brokers if not running.is_gone]
        wait_for(lambda: all(broker.config.connections_max == 9000 for broker in brokers), "the setting at all brokers")
        assert "9000" in admin("brokers", "get-all-dynamic-config")
        assert "nearest name" in admin.refused(
            "brokers", "update-dynamic-config", "--config", "brokerMaxConnection", "--value", "1"
        )
    finally:
        admin("brokers", "delete-dynamic-config", "--config", "brokerMaxConnections")
    wait_for(lambda: all(broker.config.connections_max == 10_000 for broker in brokers), "the reset at all brokers")


def test_bookies(admin: AdminSession, stack: ClientsStack, matrix: ClientMatrix) -> None:
    assert "bookie-0" in admin("bookies", "list-bookies")
    assert "bookie-1" in admin("bookies", "racks-placement")
    address = stack.cluster.bookies[1].address
    admin("bookies", "set-bookie-rack", "--bookie", address, "--rack", "r2", "--group", "g", "--hostname", "h")
    try:
        assert admin.json("bookies", "get-bookie-rack", "--bookie", address) == {"rack": "r2", "hostname": "h"}
        assert "r2" in admin("bookies", "racks-placement")
    finally:
        admin("bookies", "delete-bookie-rack", "--bookie", address)
    assert admin.json("bookies", "get-bookie-rack", "--bookie", address)["rack"] == "default"
    matrix.note(TOOL, VERSION, "bookies")


def test_namespaces(admin: AdminSession, namespace: str, matrix: ClientMatrix) -> None:
    assert namespace in lines(admin("namespaces", "list", "public"))
    topic = f"persistent://{namespace}/t"
    admin("topics", "create", topic)
    assert topic in lines(admin("namespaces", "topics", namespace))
    assert admin.json("namespaces", "bundles", namespace)["numBundles"] >= 1
    admin("topics", "create-subscription", "-s", "s", topic)
    admin("namespaces", "clear-backlog", "--force", namespace)
    admin("namespaces", "unsubscribe", "-s", "s", namespace)
    assert lines(admin("topics", "subscriptions", topic)) == []
    admin("namespaces", "unload", namespace)
    admin("topics", "delete", topic)
    admin("namespaces", "delete", namespace)
    assert namespace not in lines(admin("namespaces", "list", "public"))
    matrix.note(TOOL, VERSION, "namespaces")


def test_permissions(admin: AdminSession, namespace: str, matrix: ClientMatrix) -> None:
    admin("namespaces", "grant-permission", "--role", "r", "--actions", "produce,consume", namespace)
    shown = admin("namespaces", "permissions", namespace)
    assert all(word in shown for word in ("r", "produce", "consume"))
    admin("namespaces", "revoke-permission", "--role", "r", namespace)
    assert "produce" not in admin("namespaces", "permissions", namespace)
    topic = f"persistent://{namespace}/granted"
    admin("topics", "create", topic)
    admin("topics", "grant-permission", "--role", "r", "--actions", "consume", topic)
    assert "consume" in admin("topics", "permissions", topic)
    admin("topics", "revoke-permission", "--role", "r", topic)
    assert "consume" not in admin("topics", "permissions", topic)
    assert "not set at the topic level" in admin.refused("topics", "revoke-permission", "--role", "r", topic)
    admin("namespaces", "grant-subscription-permission", "--subscription", "s", "--roles", "r,q", namespace)
    assert "r" in admin("namespaces", "subscription-permission", namespace)
    admin("namespaces", "revoke-subscription-permission", "--subscription", "s", "--role", "r", namespace)
    assert "q" in admin("namespaces", "subscription-permission", namespace)
    admin("namespaces", "set-subscription-auth-mode", "--subscription-auth-mode", "Prefix", namespace)
    assert "Prefix" in admin("namespaces", "get-subscription-auth-mode", namespace)
    admin("topics", "delete", topic)
    matrix.note(TOOL, VERSION, "permissions")


def test_topics(admin: AdminSession, topic: str, client: pulsar.Client, matrix: ClientMatrix) -> None:
    assert topic in lines(admin("topics", "list", "public/default"))
    assert admin("topics", "lookup", topic).startswith("pulsar://")
    assert "0x" in admin("topics", "bundle-range", topic)
    admin("topics", "unload", topic)
    producer = client.create_producer(topic)
    for number in range(3):
        producer.send(f"m{number}".encode())
    last = admin("topics", "last-message-id", topic)
    assert "ledgerId" in last or ":" in last
    admin("topics", "terminate", topic)
    with pytest.raises(pulsar.TopicTerminated):
        producer.send(b"late")
    admin("topics", "delete", "-f", topic)
    assert topic not in lines(admin("topics", "list", "public/default"))
    matrix.note(TOOL, VERSION, "topics")


def test_partitioned_topics(admin: AdminSession, client: pulsar.Client, matrix: ClientMatrix) -> None:
    topic = f"persistent://public/default/parts-{uuid.uuid4().hex[:8]}"
    admin("topics", "create-partitioned-topic", "-p", "2", topic)
    assert topic in lines(admin("topics", "list-partitioned-topics", "public/default"))
    admin("topics", "update-partitioned-topic", "-p", "3", topic)
    assert admin.json("topics", "get-partitioned-topic-metadata", topic)["partitions"] == 3
    producer = client.create_producer(topic)
    for number in range(6):
        producer.send(f"m{number}".encode())
    assert admin.json("topics", "partitioned-stats", topic)["msgInCounter"] == 6
    assert f"{topic}-partition-2" in admin("topics", "partitioned-lookup", topic)
    producer.close()
    admin("topics", "delete-partitioned-topic", "-f", topic)
    assert topic not in lines(admin("topics", "list-partitioned-topics", "public/default"))
    matrix.note(TOOL, VERSION, "partitioned_topics")


def backlog(admin: AdminSession, topic: str) -> int:
    return int(admin.json("topics", "stats", topic)["subscriptions"]["s"]["msgBacklog"])


def test_subscriptions(admin: AdminSession, topic: str, client: pulsar.Client, matrix: ClientMatrix) -> None:
    admin("topics", "create-subscription", "-s", "s", topic)
    assert lines(admin("topics", "subscriptions", topic)) == ["s"]
    producer = client.create_producer(topic)
    for number in range(10):
        producer.send(f"m{number}".encode())
    assert backlog(admin, topic) == 10
    admin("topics", "skip", "-s", "s", "-n", "4", topic)
    assert backlog(admin, topic) == 6
    admin("topics", "clear-backlog", "-s", "s", topic)
    assert backlog(admin, topic) == 0
    admin("topics", "reset-cursor", "-s", "s", "-t", "1h", topic)
    assert backlog(admin, topic) == 10
    admin("topics", "reset-cursor", "-s", "s", "-m", "latest", topic)
    assert backlog(admin, topic) == 0
    admin("topics", "unsubscribe", "-s", "s", topic)
    assert lines(admin("topics", "subscriptions", topic)) == []
    matrix.note(TOOL, VERSION, "subscriptions")


@pytest.mark.parametrize("compression", [pulsar.CompressionType.NONE, pulsar.CompressionType.LZ4], ids=["plain", "lz4"])
def test_messages(
    admin: AdminSession, topic: str, client: pulsar.Client, compression: pulsar.CompressionType, matrix: ClientMatrix
) -> None:
    with matrix.noting(TOOL, VERSION, "messages"):
        admin("topics", "create-subscription", "-s", "s", topic)
        producer = client.create_producer(
            topic, compression_type=compression, batching_enabled=True, batching_max_publish_delay_ms=60_000
        )
        ids: list[pulsar.MessageId] = []
        for number in range(3):
            body = f"together-{number}".encode()
            producer.send_async(body, lambda _, sent: ids.append(sent), properties={"n": str(number)})
        producer.flush()
        alone = client.create_producer(topic, compression_type=compression, batching_enabled=False)
        last = alone.send(b"alone", partition_key="k", properties={"n": "3"})
        assert {(one.ledger_id(), one.entry_id()) for one in ids} == {(ids[0].ledger_id(), ids[0].entry_id())}
        peeked = admin("topics", "peek-messages", "-s", "s", "-n", "4", topic)
        assert [f"together-{number}" in peeked for number in range(3)] == [True, True, True]
        assert "alone" in peeked
        for message, text in ((ids[0], "together-0"), (last, "alone")):
            place = ["-l", str(message.ledger_id()), "-e", str(message.entry_id())]
            assert text in admin("topics", "get-message-by-id", *place, topic)
        assert "together-0" in admin("topics", "examine-messages", "-i", "earliest", "-m", "1", topic)
        assert "alone" in admin("topics", "examine-messages", "-i", "latest", "-m", "1", topic)
        assert backlog(admin, topic) == 2  # entries


def test_schemas(admin: AdminSession, topic: str, tmp_path: Path, matrix: ClientMatrix) -> None:
    record = {"type": "record", "name": "r", "fields": [{"name": "a", "type": "int"}]}
    file = tmp_path / "schema.json"
    file.write_text(json.dumps({"type": "AVRO", "schema": json.dumps(record), "properties": {}}))
    admin("schemas", "upload", "-f", str(file), topic)
    assert "AVRO" in admin("schemas", "get", topic)
    assert "AVRO" in admin("schemas", "get", "-v", "0", topic)
    admin("schemas", "compatibility", "-f", str(file), topic)
    admin("schemas", "metadata", topic)
    admin("schemas", "delete", topic)
    assert "no such schema" in admin.refused("schemas", "get", topic)
    matrix.note(TOOL, VERSION, "schemas")


def test_statistics(admin: AdminSession, topic: str, client: pulsar.Client, matrix: ClientMatrix) -> None:
    consumer = client.subscribe(topic, "s", consumer_name="c")
    producer = client.create_producer(topic, producer_name="p")
    for number in range(5):
        producer.send(f"m{number}".encode())
    stats = admin.json("topics", "stats", "--get-precise-backlog", "--get-subscription-backlog-size", topic)
    assert stats["msgInCounter"] == 5
    assert [publisher["producerName"] for publisher in stats["publishers"]] == ["p"]
    assert stats["subscriptions"]["s"]["consumers"][0]["consumerName"] == "c"
    internal = admin.json("topics", "stats-internal", topic)
    assert internal["ledgers"]
    assert "s" in internal["cursors"]
    consumer.close()
    matrix.note(TOOL, VERSION, "stats")


@pytest.mark.parametrize(
    "words",
    [
        ("functions", "list", "--tenant", "public", "--namespace", "default"),
        ("packages", "list", "--type", "function", "public/default"),
        ("resourcegroups", "list"),
        ("namespaces", "set-entry-filters", "--entry-filters-name", "f", "public/default"),
    ],
    ids=lambda words: words[0],
)
def test_what_is_not_offered_is_refused_with_a_reason(
    admin: AdminSession, words: tuple[str, ...], matrix: ClientMatrix
) -> None:
    reason = admin.refused(*words)
    assert "501" in reason or "not" in reason, reason
    assert "no resource at" not in reason
    matrix.note(TOOL, VERSION, "not_offered", Outcome.WORKS)
