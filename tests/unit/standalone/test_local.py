"""``heliograph.local``: a cluster in the process of the test."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest

import heliograph
from heliograph.base.clock import aware_time
from heliograph.base.errors import AlreadyClosedError, ClusterNotFoundError, ConflictError, ResourceError
from heliograph.base.home import ClusterHome, ClusterState
from heliograph.base.processes import ProcessName
from heliograph.base.system.processes import boot_id
from heliograph.client.admin.admin import AdminSync
from heliograph.errors import InvalidConfigError, TopicNotFoundError

pytestmark = pytest.mark.slow

RECEIVE_SECONDS = 60
UNITS_OF_MOMENTS = ("_ms", "Ms", "Timestamp", "TimeStamp")


def values(client: heliograph.Client, topic: str, number: int) -> list[bytes]:
    with client.reader(topic, start="earliest") as reader:
        return [reader.receive(timeout=RECEIVE_SECONDS).value for _ in range(number)]


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=RECEIVE_SECONDS) as answer:
        return json.load(answer)


def test_messages_come_back_from_a_temporary_cluster_that_leaves_nothing() -> None:
    with heliograph.local() as cluster:
        directory = cluster.directory
        with cluster.connect() as client:
            client.producer("orders").send(b"one")
            assert values(client, "orders", 1) == [b"one"]
        assert directory.exists()
    assert not directory.exists()
    cluster.stop()  # a second time does nothing
    with pytest.raises(AlreadyClosedError):
        cluster.connect()


def test_the_next_cluster_on_a_directory_has_the_data(tmp_path: Path) -> None:
    for number in range(3):
        with heliograph.local(tmp_path / "data", bookies=3) as cluster, cluster.connect() as client:
            client.producer("orders").send(b"%d" % number)
            assert values(client, "orders", number + 1) == [b"%d" % each for each in range(number + 1)]


def test_fewer_bookies_than_before_serve_the_data_of_all(tmp_path: Path) -> None:
    with heliograph.local(tmp_path, bookies=2, replication=1) as cluster, cluster.connect() as client:
        for topic in ("a", "b", "c"):
            client.producer(topic).send(topic.encode())
    with heliograph.local(tmp_path) as cluster, cluster.connect() as client:
        assert [values(client, topic, 1) for topic in ("a", "b", "c")] == [[b"a"], [b"b"], [b"c"]]


def test_a_second_one_on_the_same_directory_is_refused_and_named(tmp_path: Path) -> None:
    with heliograph.local(tmp_path) as cluster:
        with pytest.raises(ConflictError, match=r"process \d+ has a cluster on .*: use that one"):
            heliograph.local(tmp_path)
        cluster.connect().close()


def test_a_directory_of_a_running_cluster_of_ray_is_refused(tmp_path: Path) -> None:
    this = ProcessName.of(os.getpid())
    assert this is not None
    state = ClusterState(
        "heliograph", "1.2.3.4:5", "", ray_pid=this.pid, ray_start_ticks=this.start_ticks, boot_id=boot_id()
    )
    ClusterHome(tmp_path).save(state)
    with pytest.raises(ConflictError, match="helio down"):
        heliograph.local(tmp_path)
    assert ClusterHome(tmp_path).load() is not None


@pytest.mark.parametrize("setting", ["port", "http_port"])
def test_a_taken_port_is_named_and_nothing_is_left(tmp_path: Path, setting: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ResourceError, match=f"port {port} on 127.0.0.1 is in use") as caught:
            heliograph.local(tmp_path, **{setting: port})
        assert caught.value.field == setting
    heliograph.local(tmp_path, **{setting: port}).stop()


def test_settings_are_checked() -> None:
    with pytest.raises(InvalidConfigError, match="bookies"):
        heliograph.local(bookies=0)
    with pytest.raises(InvalidConfigError, match="nobody_knows"):
        heliograph.local(broker={"nobody_knows": 1})
    with pytest.raises(InvalidConfigError, match="insecure"):
        heliograph.local(host="0.0.0.0")


def test_a_wrong_setting_is_named_though_the_port_is_taken(tmp_path: Path) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(InvalidConfigError, match=r"broker\.nosuch"),
    ):
        heliograph.local(tmp_path / "home", port=taken.getsockname()[1], broker={"nosuch": 2})


def test_settings_reach_the_broker(tmp_path: Path) -> None:
    with heliograph.local(tmp_path, broker={"max_message_bytes": 2_000}) as cluster, cluster.connect() as client:
        client.producer("orders").send(bytes(3_000))
        assert client.admin.topic_internal_stats("orders")["numberOfEntries"] == 2, "it is stored in chunks"


def test_stock_clients_and_http_use_it() -> None:
    with heliograph.local() as cluster:
        stock = pulsar.Client(cluster.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        try:
            consumer = stock.subscribe("orders", "all", initial_position=pulsar.InitialPosition.Earliest)
            stock.create_producer("orders").send(b"stock")
            message = consumer.receive(RECEIVE_SECONDS * 1_000)
            assert message.data() == b"stock"
            consumer.acknowledge(message)
        finally:
            stock.close()
        topics = get(f"{cluster.http_url}/admin/v2/persistent/public/default")
        assert topics == ["persistent://public/default/orders"]


def test_a_client_without_an_address_finds_the_one_of_the_default_home(state_root: Path) -> None:
    with heliograph.local(state_root / "heliograph"), heliograph.connect() as client:
        client.producer("orders").send(b"one")
        admin = AdminSync()
        assert [topic["name"] for topic in admin.list_topics()] == ["persistent://public/default/orders"]
        with pytest.raises(TopicNotFoundError):
            admin.topic_stats("no-such-topic")
        admin.namespaces.create("public/other")
        assert "public/other" in admin.namespaces.list("public")
    with pytest.raises(ClusterNotFoundError):
        heliograph.connect()


def numbers(answer: Any) -> Iterator[tuple[dict[str, Any], str, int]]:
    """Return the numbers of an answer, each with its dictionary and its name."""
    for each in answer if isinstance(answer, list | tuple) else [answer] if isinstance(answer, dict) else []:
        if isinstance(each, dict):
            yield from ((each, name, value) for name, value in each.items() if type(value) is int)
            for value in each.values():
                yield from numbers(value)


def test_each_moment_of_an_answer_becomes_a_datetime() -> None:
    with heliograph.local() as cluster, cluster.connect() as client:
        client.producer("orders").send(b"one")
        with client.consumer("orders", "s", initial_position="earliest") as consumer:
            consumer.ack(consumer.receive(RECEIVE_SECONDS))
            admin = client.admin
            answers = [
                *(admin.topic_record("orders"), admin.topic_stats("orders"), admin.topic_internal_stats("orders")),
                *(admin.cursors.examine("orders", "earliest", 1), admin.brokers.list(), admin.brokers.loads()),
            ]
        moments = 0
        for holder, name, value in numbers(heliograph.with_times(answers)):
            if value > 1 << 40:  # ms since the epoch
                assert any(holder.get(name.removesuffix(unit)) == aware_time(value) for unit in UNITS_OF_MOMENTS), name
                moments += 1
        assert moments > 5


def test_a_client_loads_neither_ray_nor_a_web_framework() -> None:
    script = """
import sys, heliograph
with heliograph.local() as cluster, cluster.connect() as client:
    client.producer("orders").send(b"one")
print(sorted({"ray", "fastapi", "uvicorn", "pydantic_settings", "avro", "cryptography", "typer"} & set(sys.modules)))
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=False)
    assert (ran.returncode, ran.stdout.strip()) == (0, "[]"), ran.stderr


def test_the_parts_load_no_client_and_no_web_framework_before_the_gateway_is_used() -> None:
    script = """
import sys, heliograph.standalone.parts
loaded = {"heliograph.client.aio"} & set(sys.modules)
import heliograph.standalone.security
print(sorted(loaded | {"fastapi", "starlette", "heliograph.gateway.ports"} & set(sys.modules)))
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=False)
    assert (ran.returncode, ran.stdout.strip()) == (0, "[]"), ran.stderr


def test_a_process_that_ends_without_stop_leaves_its_data_and_no_temporary_directory(tmp_path: Path) -> None:
    script = f"""
import heliograph
kept, gone = heliograph.local({str(tmp_path / "kept")!r}), heliograph.local()
with kept.connect() as client:
    client.producer("orders").send(b"one")
print(gone.directory)
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr
    assert not Path(ran.stdout.strip()).exists()
    with heliograph.local(tmp_path / "kept") as cluster, cluster.connect() as client:
        assert values(client, "orders", 1) == [b"one"]
