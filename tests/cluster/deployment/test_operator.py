"""The operator of a whole cluster: more bookies and fewer, and a restart of every part while clients go on."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import heliograph
from heliograph.metadata.connect import connect_store
from tests.cluster.support.bookie_metadata import all_ledgers
from tests.cluster.support.live_cluster import LiveCluster, start, wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

WAIT_SECONDS = 600.0
HELIO = (sys.executable, "-c", "import sys; from heliograph.cli.app import main; sys.exit(main())")


@pytest.fixture(scope="module", params=["apart", pytest.param("together", marks=pytest.mark.full)])
def operated(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    """Three bookies, two brokers and an operator, each with a process of its own, or all in one."""
    running = start(
        tmp_path_factory.mktemp("operated"),
        f"operated-{uuid.uuid4().hex[:8]}",
        bookies=3,
        operator=True,
        gateway=False,
        ensemble_size=2,
        write_quorum=2,
        ack_quorum=2,
        parts=request.param,
    )
    try:
        yield running
    finally:
        running.stop()


def helio(cluster: LiveCluster, *arguments: str, code: int = 0) -> dict[str, Any]:
    command = [*HELIO, *arguments, "--json", "--home", str(cluster.home), "--namespace", cluster.namespace]
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=WAIT_SECONDS, check=False)
    assert done.returncode == code, f"{done.stdout[-2000:]} {done.stderr[-2000:]}"
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def bookies_of(cluster: LiveCluster) -> set[str]:
    async def read() -> set[str]:
        store = await connect_store(cluster.metadata_url)
        try:
            ledgers = await all_ledgers(store)
        finally:
            await store.close()
        return {bookie for one in ledgers if not one.is_closed for part in one.segments for bookie in part.bookies}

    return asyncio.run(read())


def test_bookies_are_added_used_and_taken_out(operated: LiveCluster, topic: str) -> None:
    operated.attach()
    refused = helio(operated, "scale", "bookies", "1", code=1)
    assert "ensemble of 2" in refused["error"]["message"]
    assert helio(operated, "scale", "bookies", "4")["done"]
    with heliograph.connect(namespace=operated.namespace) as client:
        number = 0
        while "bookie-4" not in bookies_of(operated):  # chosen at random for new ledgers
            assert number < 64, "the new bookie is not used"
            with client.producer(f"{topic}-{number}") as producer:
                producer.send(b"x")
            number += 1
        assert helio(operated, "scale", "bookies", "3")["done"]
        status = operated.report()
        assert status.bookies_available == ("bookie-1", "bookie-2", "bookie-3")
        assert tuple(part.name for part in status.parts if part.kind == "bookie") == status.bookies_available
        assert status.identity
        for each in range(number):
            with client.reader(f"{topic}-{each}", "earliest") as reader:
                assert reader.receive(60).value == b"x"


def test_a_bookie_is_moved_to_another_directory(operated: LiveCluster, topic: str) -> None:
    operated.attach()
    disk = operated.home / "disk"  # which lasts as long as the cluster: the next test starts the bookie there
    wait_for(lambda: operated.report().is_healthy, 120, "not healthy")
    with heliograph.connect(namespace=operated.namespace) as client, client.producer(topic) as producer:
        for number in range(100):
            producer.send(b"%d" % number)
    old = operated.call("bookie-2", "directories")
    refused = helio(operated, "bookies", "move", "bookie-2", "--to", "here", code=2)
    assert "not absolute" in refused["error"]["message"]
    moved = helio(operated, "bookies", "move", "bookie-2", "--to", str(disk), "--wait", "300")
    assert moved["serving"]
    assert moved["files"] > 0
    found = operated.call("bookie-2", "directories")
    assert found["journal"] == [str(disk / "bookie-2" / "journal")]
    assert found["data"] == [str(disk / "bookie-2" / "ledgers")]
    assert not any(Path(path).exists() for path in (*old["journal"], *old["data"]))
    assert all(Path(path).exists() for path in moved["old_directories"])
    wait_for(lambda: operated.report().is_healthy, 120, "not healthy")
    operated.wait_back("bookie-2", operated.sigkill("bookie-2"))  # the place outlives the process
    assert operated.call("bookie-2", "directories") == found
    wait_for(lambda: operated.report().is_healthy, 120, "not healthy")
    with heliograph.connect(namespace=operated.namespace) as client, client.reader(topic, "earliest") as reader:
        assert [reader.receive(60).value for _ in range(100)] == [b"%d" % number for number in range(100)]


def test_a_bookie_is_held_and_placed_on_a_copy_by_hand(operated: LiveCluster, topic: str) -> None:
    operated.attach()
    wait_for(lambda: operated.report().is_healthy, 120, "not healthy")
    (node,) = helio(operated, "nodes")["nodes"]
    assert (node["state"], {"bookie-3", "broker-1"} <= {*node["parts"]}) == ("ALIVE", True)
    with heliograph.connect(namespace=operated.namespace) as client, client.producer(topic) as producer:
        for number in range(100):
            producer.send(b"%d" % number)
    place = ("bookies", "place", "bookie-3", "--node", node["address"])
    assert "serves where it is" in helio(operated, *place, code=1)["error"]["message"]
    old = operated.call("bookie-3", "directories")
    assert helio(operated, "bookies", "hold", "bookie-3")["stopped"]
    copies = operated.home / "by-hand"
    for path in map(Path, (*old["journal"], *old["data"])):
        shutil.copytree(path, copies / "bookie-3" / path.name)
        shutil.rmtree(path)
    assert helio(operated, *place, "--at", str(copies))["serving"]
    found = operated.call("bookie-3", "directories")
    assert [*found["journal"], *found["data"]] == [str(copies / "bookie-3" / name) for name in ("journal", "ledgers")]
    wait_for(lambda: operated.report().is_healthy, 120, "not healthy")
    with heliograph.connect(namespace=operated.namespace) as client, client.reader(topic, "earliest") as reader:
        assert [reader.receive(60).value for _ in range(100)] == [b"%d" % number for number in range(100)]


@pytest.mark.full
def test_a_rolling_restart_of_all_parts_is_not_noticed_by_clients(operated: LiveCluster, topic: str) -> None:
    operated.attach()
    pids = {name: operated.pid(name) for name in ("bookie-1", "bookie-2", "bookie-3", "broker-1", "broker-2")}
    stop = threading.Event()
    sent: list[bytes] = []
    errors: list[BaseException] = []

    def publish() -> None:
        try:
            while not stop.is_set():
                producer.send(b"%d" % len(sent))
                sent.append(b"%d" % len(sent))
        except BaseException as error:
            errors.append(error)

    with heliograph.connect(namespace=operated.namespace) as client:
        operated.admin.create_topic(topic)
        operated.admin.namespaces.set_topic_policies(topic, {"deduplication": True})
        with client.producer(topic, name="one", send_timeout_ms=0) as producer:
            thread = threading.Thread(target=publish)
            thread.start()
            try:
                assert helio(operated, "restart", "--rolling")["done"]
            finally:
                stop.set()
                thread.join(WAIT_SECONDS)
        assert not errors
        with client.reader(topic, "earliest") as reader:
            assert [reader.receive(60).value for _ in sent] == sent
    for name, pid in pids.items():
        assert operated.pid(name) != pid
    wait_for(lambda: operated.report().is_healthy, 120, "not healthy")
