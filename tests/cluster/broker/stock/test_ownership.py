"""Bundles that move and split, draining brokers, growing topics, policy changes and TLS, with a stock client."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pulsar
import pytest
import trustme

import heliograph
from heliograph.actors.broker.config import BalanceLimits, SplitLimits
from heliograph.actors.broker.namespaces.bundles import bundle_path
from heliograph.base import errors
from heliograph.base.tls.contexts import TlsFiles
from heliograph.metadata import codec, paths
from heliograph.metadata.model import BrokerLoad, BundleLoad
from heliograph.protocol.topic_name import TopicName
from tests.cluster.support.broker_cluster import (
    WAIT_SECONDS_MAX,
    BrokerCluster,
    RunningBroker,
    broker_cluster,
    wait_for,
)

RECEIVE_MS = 60_000


@dataclass
class Certificates:
    """The certificates of one authority: the broker's, a client's, and the authority's own."""

    ca: str
    broker: TlsFiles
    client_certificate: str
    client_key: str


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    folder = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    for name, identity in (("broker", "127.0.0.1"), ("client", "client@example.org")):
        issued = authority.issue_cert(identity)
        issued.private_key_pem.write_to_path(str(folder / f"{name}.key"))
        for number, part in enumerate(issued.cert_chain_pems):
            part.write_to_path(str(folder / f"{name}.pem"), append=number > 0)
    ca = str(folder / "ca.pem")
    files = TlsFiles(str(folder / "broker.pem"), str(folder / "broker.key"), ca)
    return Certificates(ca, files, str(folder / "client.pem"), str(folder / "client.key"))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, certificates: Certificates) -> Iterator[BrokerCluster]:
    with broker_cluster(tmp_path_factory.mktemp("ownership"), brokers=0) as running:
        for number in range(2):
            running.start_broker(
                f"broker-{number}",
                tls_port=0,
                tls=certificates.broker,
                load_report_seconds=0.2,
                split=SplitLimits(topics=0),
                balance_seconds=0.0,
            )
        yield running


def bundle_of(cluster: BrokerCluster, topic: str) -> tuple[str, str]:
    """Return namespace and name of a topic's bundle."""
    name = TopicName.parse(topic)
    policies = cluster.run(cluster.brokers[0].broker._catalog.policies(name))
    return name.namespace, bundle_path(name, policies).rpartition("/")[2]


class Traffic:
    """A stock producer and consumer that go on while things change; every message is accounted for."""

    def __init__(self, cluster: BrokerCluster, topic: str) -> None:
        self._cluster, self._topic = cluster, topic
        self._stop = threading.Event()
        self.sent: list[int] = []
        self.failed: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Traffic:
        with self._cluster.client() as client:
            client.subscribe(self._topic, "audit").close()
        self._thread.start()
        self.advance(20)
        return self

    def advance(self, messages: int) -> None:
        """Wait for so many more messages to be confirmed."""
        target = len(self.sent) + messages
        wait_for(lambda: bool(self.failed) or len(self.sent) >= target, "messages to be confirmed")
        assert not self.failed

    def __exit__(self, *_: Any) -> None:
        self._stop.set()
        self._thread.join(120)
        assert not self._thread.is_alive()

    def received(self) -> list[int]:
        """Return what the subscription receives, up to the last confirmed message."""
        found: list[int] = []
        with self._cluster.client() as client:
            consumer = client.subscribe(self._topic, "audit")
            while not found or found[-1] < self.sent[-1]:
                message = consumer.receive(RECEIVE_MS)
                found.append(int(message.data()))
                consumer.acknowledge(message)
        return found

    def _run(self) -> None:
        try:
            with self._cluster.client() as client:
                producer = client.create_producer(self._topic)
                number = 0
                while not self._stop.is_set():
                    producer.send(b"%d" % number)
                    self.sent.append(number)
                    number += 1
        except BaseException as error:
            self.failed.append(error)


def assert_nothing_lost_or_reordered(traffic: Traffic) -> None:
    found = traffic.received()
    first_sight = list(dict.fromkeys(found))  # what was sent again after a hand-over may come twice
    assert first_sight == sorted(first_sight)
    assert set(traffic.sent) <= set(first_sight)


def test_unload_and_split_under_load_lose_and_reorder_nothing(cluster: BrokerCluster) -> None:
    with Traffic(cluster, "moving") as traffic:
        for _ in range(3):
            namespace, bundle = bundle_of(cluster, "moving")
            assert cluster.run(cluster.admin.brokers.unload_bundle(namespace, bundle))
            traffic.advance(20)
            owner = cluster.owner_of("moving").broker.config.broker_id
            halves = cluster.run(cluster.admin.brokers.split_bundle(namespace, bundle))
            assert bundle_of(cluster, "moving")[1] in halves
            assert cluster.owner_of("moving").broker.config.broker_id == owner  # it serves both halves
            traffic.advance(20)
        cluster.run(cluster.admin.unload_topic("moving"))
        traffic.advance(20)
        assert cluster.run(cluster.admin.brokers.unload_namespace("public/default")) >= 1
        traffic.advance(20)
    assert_nothing_lost_or_reordered(traffic)
    with pytest.raises(errors.NotFoundError):
        cluster.run(cluster.admin.brokers.split_bundle(namespace, bundle))  # it was split
    table = cluster.run(cluster.admin.brokers.bundles("public/default"))
    assert len(table["bundles"]) == len(table["boundaries"]) - 1 == 11
    assert table["boundaries"][0] == "0x00000000"
    assert table["boundaries"][-1] == "0xffffffff"


def test_a_broker_drains_and_its_topics_move(cluster: BrokerCluster) -> None:
    with Traffic(cluster, "draining") as traffic:
        leaving = cluster.owner_of("draining")
        name = leaving.broker.config.broker_id
        assert cluster.run(cluster.admin.brokers.drain(name)) >= 1
        traffic.advance(20)
        assert cluster.owner_of("draining") is not leaving
        assert leaving.broker.ownership.owned == frozenset()
        rows = {row["broker_id"]: row for row in cluster.run(cluster.admin.brokers.list())}
        assert rows[name]["is_draining"]
        assert sum(row["is_leader"] for row in rows.values()) == 1
        cluster.run(cluster.admin.brokers.undrain(name))
        traffic.advance(5)
    assert_nothing_lost_or_reordered(traffic)
    with pytest.raises(errors.NotFoundError):
        cluster.run(cluster.admin.brokers.drain("nobody"))


def test_the_leader_assigns_to_the_least_loaded_and_sheds_from_the_busy(cluster: BrokerCluster) -> None:
    """The test writes the load reports: brokers in one process would all measure the same."""
    leader = next(running for running in cluster.brokers if running.broker.leader.is_leader)
    other = next(running for running in cluster.brokers if running is not leader)

    async def pretend(busy: RunningBroker, idle: RunningBroker) -> None:
        for running, share in ((busy, 0.95), (idle, 0.05)):
            await running.broker._load.stop()  # type: ignore[union-attr]
            owned = sorted(running.broker.ownership.owned)
            bundles = tuple(BundleLoad(path, 1, 10.0, 1000.0) for path in owned)
            name = running.broker.config.broker_id
            report = BrokerLoad(name, cpu_share=share, bundles_owned=len(owned), bundles=bundles)
            await running.store.set(paths.broker_load(name), codec.encode(report))

    cluster.run(cluster.admin.run("namespaces.create", {"namespace": "public/fresh", "bundles": 16}))
    cluster.run(pretend(other, leader))
    for number in range(12):
        cluster.run(cluster.admin.create_topic(f"public/fresh/t{number}"))
        for running in cluster.brokers:
            assert cluster.run(running.broker.admin.lookup(f"public/fresh/t{number}"))["broker_id"] == (
                leader.broker.config.broker_id
            )
    cluster.run(pretend(leader, other))
    before = len(leader.broker.ownership.owned)
    moves = []
    for _ in range(4):
        moves += cluster.run(leader.broker.leader.balance())
    assert 1 <= len(moves) <= 2 * BalanceLimits().moves_max  # in the third round and the fourth
    assert {(move.giver, move.receiver) for move in moves} == {
        (leader.broker.config.broker_id, other.broker.config.broker_id)
    }
    assert len(leader.broker.ownership.owned) == before - len(moves)
    for move in moves:  # the next lookup finds them where the leader assigned them
        topics = [f"public/fresh/t{number}" for number in range(12)]
        policies = cluster.run(leader.broker._catalog.policies(TopicName.parse(topics[0])))
        for topic in topics:
            if bundle_path(TopicName.parse(topic), policies) == move.path:
                assert cluster.owner_of(topic) is other
    for running in cluster.brokers:
        cluster.run(_start_load_watch(running))


async def _start_load_watch(running: RunningBroker) -> None:
    assert running.broker._load is not None
    running.broker._load.start()


def test_policies_act_on_topics_that_are_loaded(cluster: BrokerCluster) -> None:
    run, admin = cluster.run, cluster.admin
    for method, arguments in (
        ("namespaces.create_tenant", {"name": "acme"}),
        ("namespaces.create", {"namespace": "acme/live", "policies": {"ledger_entries_max": 1_000}}),
    ):
        run(admin.run(method, arguments))
    topic = "acme/live/events"
    with cluster.client() as client:
        producer = client.create_producer(topic)
        consumer = client.subscribe(topic, "s")
        for number in range(30):
            producer.send(b"%d" % number)
        loaded = cluster.owner_of(topic).broker.topics.find(TopicName.parse(topic))
        assert loaded is not None
        assert len(loaded.ledger.chain.ledger_ids) == 1
        run(admin.run("namespaces.set_policies", {"namespace": "acme/live", "values": {"ledger_entries_max": 10}}))
        wait_for(lambda: loaded.policies.ledger_entries_max == 10, "the namespace's policy to arrive")
        values = {"retention_seconds": 0, "retention_bytes": 0}
        run(admin.run("namespaces.set_topic_policies", {"topic": topic, "values": values}))
        wait_for(lambda: loaded.policies.retention_seconds == 0, "the topic's policy to arrive")
        for number in range(30, 60):
            producer.send(b"%d" % number)
        for number in range(60):
            message = consumer.receive(RECEIVE_MS)
            assert message.data() == b"%d" % number
            consumer.acknowledge(message)
        wait_for(lambda: len(loaded.ledger.chain.ledger_ids) <= 2, "retention to delete ledgers")
        applied = run(admin.run("namespaces.topic_policies", {"topic": topic, "applied": True}))
        assert (applied["ledger_entries_max"], applied["retention_seconds"]) == (10, 0)
        assert run(admin.run("namespaces.topic_policies", {"topic": topic})) == values
        run(admin.run("namespaces.remove_topic_policies", {"topic": topic, "names": ["retention_seconds"]}))
        wait_for(lambda: loaded.policies.retention_seconds == -1, "the namespace's policy to hold again")
    with pytest.raises(errors.ConflictError):
        run(admin.run("namespaces.delete", {"namespace": "acme/live"}))
    run(admin.run("namespaces.delete", {"namespace": "acme/live", "force": True}))
    assert list(run(admin.namespaces.list("acme"))) == []
    with pytest.raises(errors.NamespaceNotFoundError):
        run(cluster.admin.create_topic(topic))
    run(admin.run("namespaces.delete_tenant", {"name": "acme"}))


def test_inactive_topics_are_deleted_where_policies_say_so(cluster: BrokerCluster) -> None:
    run, admin = cluster.run, cluster.admin
    policies = {"inactive_delete_seconds": 1, "inactive_delete_mode": "delete_when_subscriptions_caught_up"}
    run(admin.run("namespaces.create", {"namespace": "public/brief", "policies": policies}))
    with cluster.client() as client:
        consumer = client.subscribe("public/brief/read", "s")
        for name in ("read", "unread"):
            client.create_producer(f"public/brief/{name}").send(b"x")
        run(cluster.admin.create_subscription("public/brief/unread", "s", "earliest"))
        consumer.acknowledge(consumer.receive(RECEIVE_MS))
    left = ["persistent://public/brief/unread"]
    wait_for(
        lambda: [found["name"] for found in run(cluster.admin.list_topics("public/brief"))] == left, "it to be deleted"
    )


def test_a_partitioned_topic_grows_with_its_subscriptions(cluster: BrokerCluster) -> None:
    run = cluster.run
    run(cluster.admin.create_topic("grown", 2))
    run(cluster.admin.create_subscription("grown", "s"))
    run(cluster.admin.update_partitions("grown", 5))
    with cluster.client() as client:
        assert len(client.get_topic_partitions("grown")) == 5
        producer = client.create_producer("grown")
        for number in range(50):
            producer.send(b"%d" % number, partition_key=str(number))
        consumer = client.subscribe("grown", "s", pulsar.ConsumerType.Shared)
        found = {int(consumer.receive(RECEIVE_MS).data()) for _ in range(50)}
        assert found == set(range(50))  # the subscription was on the new partitions before the producer was
    stats = run(cluster.admin.topic_stats("grown"))
    assert (len(stats["partitions"]), stats["msgInCounter"]) == (5, 50)
    for wrong in (4, 0):
        with pytest.raises(errors.BadRequestError):
            run(cluster.admin.update_partitions("grown", wrong))
    with pytest.raises(errors.TopicNotFoundError):
        run(cluster.admin.update_partitions("never-made", 3))
    run(cluster.admin.delete_topic("grown-partition-3", force=True))
    assert run(cluster.admin.create_missing_partitions("grown")) == 1
    run(cluster.admin.delete_topic("grown", force=True))


def test_our_own_handles_follow_a_topic_that_grows(cluster: BrokerCluster) -> None:
    cluster.run(cluster.admin.create_topic("followed", 1))
    with heliograph.connect(cluster.brokers[0].broker.service_url, partitions_update_ms=50) as client:
        consumer = client.consumer("followed", "s", type="shared")
        with client.producer("followed") as producer, client.reader("followed", "latest") as reader:
            producer.send(b"0")
            cluster.run(cluster.admin.update_partitions("followed", 3))
            sent, used = 1, set[int]()
            deadline = time.monotonic() + WAIT_SECONDS_MAX
            while used != {0, 1, 2}:
                assert time.monotonic() < deadline
                used.add(producer.send(b"%d" % sent).partition)
                sent += 1
            found = [int(consumer.receive(timeout=60).value) for _ in range(sent)]
            assert sorted(found) == list(range(sent))
            assert sorted(int(reader.receive(timeout=60).value) for _ in range(sent)) == list(range(sent))
        consumer.close()


def test_a_topic_is_made_with_partitions_where_the_namespace_says_so(cluster: BrokerCluster) -> None:
    policies = {"auto_create_partitions": 3}
    cluster.run(cluster.admin.run("namespaces.create", {"namespace": "public/parts", "policies": policies}))
    with cluster.client() as client:
        client.create_producer("public/parts/t").send(b"x")
        assert len(client.get_topic_partitions("public/parts/t")) == 3
    assert cluster.run(cluster.admin.partitions("public/parts/t")) == 3


def tls_url(cluster: BrokerCluster) -> str:
    return cluster.brokers[0].broker.service_url_tls


def test_a_stock_client_over_tls(cluster: BrokerCluster, certificates: Certificates) -> None:
    """The broker that is asked drains: it answers with the other one's address for TLS."""
    url = tls_url(cluster)
    assert url.startswith("pulsar+ssl://")
    client = pulsar.Client(
        url,
        tls_trust_certs_file_path=certificates.ca,
        tls_validate_hostname=True,
        authentication=pulsar.AuthenticationTLS(certificates.client_certificate, certificates.client_key),
        logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
    )
    asked = cluster.brokers[0].broker.config.broker_id
    cluster.run(cluster.admin.brokers.drain(asked))
    try:
        for number in range(3):
            consumer = client.subscribe(f"secret-{number}", "s")
            client.create_producer(f"secret-{number}").send(b"x" * 200_000)
            assert len(consumer.receive(RECEIVE_MS).data()) == 200_000
            assert cluster.owner_of(f"secret-{number}") is cluster.brokers[1]
    finally:
        cluster.run(cluster.admin.brokers.undrain(asked))
        client.close()


def test_our_own_client_over_tls(cluster: BrokerCluster, certificates: Certificates) -> None:
    with heliograph.connect(tls_url(cluster), tls_ca_file=certificates.ca) as client:
        with client.producer("own-secret") as producer:
            producer.send(b"x")
        consumer = client.consumer("own-secret", "s", initial_position="earliest")
        assert consumer.receive(timeout=60).value == b"x"
        consumer.close()
    with pytest.raises(errors.ConnectionLostError):
        heliograph.connect(tls_url(cluster))  # the machine does not trust that authority


def test_a_broker_may_ask_for_certificates(tmp_path: Path, certificates: Certificates) -> None:
    with broker_cluster(tmp_path, brokers=0) as cluster:
        files = replace(certificates.broker, is_client_certificate_required=True)
        url = cluster.start_broker("strict", tls_port=0, tls=files).broker.service_url_tls
        options = {"tls_ca_file": certificates.ca}
        with pytest.raises(errors.ConnectionLostError):
            heliograph.connect(url, operation_timeout_ms=1_000, **options)
        own = {"tls_certificate_file": certificates.client_certificate, "tls_key_file": certificates.client_key}
        with heliograph.connect(url, **options, **own) as client, client.producer("t") as producer:
            producer.send(b"x")
