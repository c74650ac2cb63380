"""Kafka in ZooKeeper mode: a broker that has its metadata behind the endpoint, and a user of that broker."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from heliograph.cluster.ports import pick_free
from tests.clients.support.maven import JavaProject, build
from tests.clients.support.program import ProgramRun, run_program
from tests.clients.support.report import ClientMatrix
from tests.clients.zookeeper.served import STORE_PARAMETERS, Server, serving

CLIENT, VERSION = "Kafka", "3.9.1"
HEAP = ("-Xmx320m",)
QUIET = ("-Dorg.slf4j.simpleLogger.defaultLogLevel=error",)
LOUD = ("-Dorg.slf4j.simpleLogger.defaultLogLevel=info",)
SECONDS_MAX = 300.0
EXPIRY_SECONDS_MAX = 120.0  # of a session of 18 s
# The page of one index file is what Kafka maps by default for each segment; small ones are enough here.
SETTINGS = """
broker.id=1
listeners=PLAINTEXT://127.0.0.1:{port}
zookeeper.connect={connect}/kafka
zookeeper.session.timeout.ms=18000
log.dirs={directory}
log.index.size.max.bytes=65536
num.network.threads=2
num.io.threads=2
offsets.topic.num.partitions=2
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=2
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
controlled.shutdown.enable=true
"""


@cache
def project() -> JavaProject:
    return build(Path(__file__).parent / "kafka")


class KafkaBroker:
    """One broker. ``start`` again after ``stop`` or ``kill`` serves the same data at the same port."""

    def __init__(self, connect: str, folder: Path) -> None:
        self._folder = folder
        self._connect = connect
        self.port = pick_free()
        self._settings = folder / "server.properties"
        directory = folder / "kafka-logs"
        self._settings.write_text(SETTINGS.format(port=self.port, connect=connect, directory=directory))
        self.server: Server | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        command = project().command("kafka.Kafka", str(self._settings), options=(*HEAP, *LOUD))
        self.server = Server("kafka", command, self._folder)
        self.server.wait_for("[KafkaServer id=1] started")

    def stop(self) -> None:
        server, self.server = self.server, None
        assert server is not None, "the broker is started"
        server.stop()

    def kill(self) -> None:
        server, self.server = self.server, None
        assert server is not None, "the broker is started"
        server.kill()

    def wait_for_expiry(self) -> None:
        """Wait until the session of a killed broker has ended. A broker that starts before that ends itself."""
        client = KazooClient(self._connect)
        client.start()
        try:
            deadline = time.monotonic() + EXPIRY_SECONDS_MAX
            while client.exists("/kafka/brokers/ids/1") is not None:
                assert time.monotonic() < deadline, "the session of the killed broker does not expire"
                time.sleep(0.5)
        finally:
            client.stop()
            client.close()

    def use(self, when: str) -> ProgramRun:
        """Run the user's program before or after the restart."""
        command = project().command("heliograph.kafka.RoundTrip", self.address, when, options=QUIET)
        run = run_program(CLIENT, command, seconds=SECONDS_MAX)
        if self.server is not None:
            run.lines.append(f"the broker's log: {self.server.log[-3_000:]}")
        return run


@contextmanager
def kafka_broker(store: str, folder: Path) -> Iterator[KafkaBroker]:
    project()
    with serving(store, folder) as connect:
        broker = KafkaBroker(connect, folder)
        try:
            broker.start()
            yield broker
        finally:
            if broker.server is not None:
                broker.server.kill()


@pytest.mark.parametrize("store", STORE_PARAMETERS)
def test_a_broker_serves_and_is_restarted(store: str, tmp_path: Path, matrix: ClientMatrix) -> None:
    with kafka_broker(store, tmp_path) as broker:
        run = broker.use("before")
        for scenario in ("create_topic", "produce_consume", "transactional_producer", "administer"):
            matrix.check(run, scenario, CLIENT, VERSION, "zk_storage")
        run.check_end()
        broker.stop()
        broker.start()
        matrix.check(broker.use("after"), "restarted", CLIENT, VERSION, "zk_restart")


@pytest.mark.full
@pytest.mark.parametrize("store", ["embedded", "etcd"])
def test_a_killed_broker_comes_back_after_its_session_has_expired(store: str, tmp_path: Path) -> None:
    with kafka_broker(store, tmp_path) as broker:
        broker.use("before").check("produce_consume")
        broker.kill()
        broker.wait_for_expiry()
        broker.start()
        broker.use("after").check("restarted")
