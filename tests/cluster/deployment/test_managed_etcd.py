"""A cluster that runs etcd itself: a member that ends, a disk that is lost, a stop, and the way there and back."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import heliograph
from heliograph.base.home import ClusterHome
from heliograph.base.processes import ProcessName
from heliograph.client import discovery
from heliograph.cluster.lifecycle import down, up
from heliograph.metadata.backends.etcd.wire.address import EtcdAddress
from heliograph.metadata.etcd_member.survey import Survey, survey
from tests.cluster.deployment.test_cli import helio, helio_json
from tests.cluster.deployment.test_lost_bookie import status_of
from tests.cluster.metadata.members.member_world import free_run
from tests.cluster.support.live_cluster import LiveCluster, start, wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

SECONDS = 240.0
MEMBERS = ("metadata-1", "metadata-2", "metadata-3")


@contextmanager
def cluster_with_members(directory: Path, **settings: Any) -> Iterator[LiveCluster]:
    """Run a small cluster with three members of etcd on this machine."""
    small = {"bookies": 1, "brokers": 1, "ensemble_size": 1, "write_quorum": 1, "ack_quorum": 1}
    parts = {"gateway": False, "auditor": False, "metadata_kind": "etcd", "metadata_members": 3}
    name = f"etcd-{uuid.uuid4().hex[:8]}"
    cluster = start(directory, name, **{**small, **parts, "etcd_port": free_run(6), **settings})
    try:
        yield cluster
    finally:
        if ClusterHome(cluster.home).load() is not None:
            cluster.stop()


def asked(cluster: LiveCluster) -> Survey:
    return asyncio.run(survey(EtcdAddress.parse(cluster.state.metadata_url)))


def leader_of(cluster: LiveCluster) -> str:
    return next(member.name for member in asked(cluster).members if member.is_leader)


def all_serve(cluster: LiveCluster) -> bool:
    return all(member.is_serving for member in asked(cluster).members)


def test_publishing_goes_on_while_the_leader_of_etcd_ends_and_comes_back(tmp_path: Path) -> None:
    with cluster_with_members(tmp_path) as cluster:
        leader = leader_of(cluster)
        processes = {name: ProcessName.of(cluster.call(name, "etcd_pid")) for name in MEMBERS}
        client = heliograph.connect(namespace=cluster.namespace)
        with client.producer("before") as producer:
            producer.send(b"1")
            actor = cluster.pid(leader)
            os.kill(cluster.call(leader, "etcd_pid"), signal.SIGKILL)
            producer.send(b"2")
            with client.producer("after") as other:  # a new topic, which the next leader has to store
                other.send(b"3")
        cluster.wait_back(leader, actor)
        wait_for(lambda: all_serve(cluster), SECONDS, f"{leader} does not serve again")
        found = {
            member["name"]: member for member in helio_json("metadata", "status", "--home", cluster.home)["members"]
        }
        assert sorted(found) == sorted(MEMBERS)
        assert status_of(cluster).is_healthy
        client.close()
        processes[leader] = ProcessName.of(cluster.call(leader, "etcd_pid"))
        down(ClusterHome(cluster.home))
        assert not any(process.is_alive() for process in processes.values() if process is not None)


@pytest.mark.full
def test_a_member_whose_disk_is_lost_says_so_and_is_replaced_and_a_stop_changes_nothing(tmp_path: Path) -> None:
    with cluster_with_members(tmp_path, operator=True) as cluster:
        name = leader_of(cluster)
        client = heliograph.connect(namespace=cluster.namespace)
        with client.producer("kept") as producer:
            producer.send(b"1")
            shutil.rmtree(cluster.config.data_root / name)
            os.kill(cluster.call(name, "etcd_pid"), signal.SIGKILL)

            def is_told() -> bool:
                return any("is empty" in actor.note for actor in status_of(cluster).parts if actor.name == name)

            wait_for(is_told, SECONDS, "helio status does not say why")
            producer.send(b"2")
            here = ("--home", cluster.home, "--namespace", cluster.namespace)
            assert helio_json("metadata", "replace", name, "--empty-disk", *here)["is_serving"]
        client.close()
        assert all_serve(cluster)
        down(ClusterHome(cluster.home))
        cluster.state = up(cluster.config)
        assert helio_json("metadata", "status", "--home", cluster.home)["has_quorum"]
        client = heliograph.connect(namespace=cluster.namespace)
        with client.reader("kept", "earliest") as reader:
            assert [reader.receive(60).value for _ in range(2)] == [b"1", b"2"]
        client.close()


@pytest.mark.full
def test_metadata_moves_from_the_embedded_store_to_etcd_and_back(tmp_path: Path) -> None:
    with cluster_with_members(tmp_path, metadata_kind="embedded", metadata_members=1) as cluster:
        discovery.detach()  # a program that has joined Ray ends with it
        here = ("--home", cluster.home, "--namespace", cluster.namespace)
        embedded, second = cluster.config.data_root / "metadata", tmp_path / "second"
        helio("produce", "kept", "1", *here)
        for source, target, kind in ((embedded, "etcd", "etcd"), ("etcd", second, "embedded")):
            helio("down", *here)
            helio("metadata", "migrate", "--from", source, "--to", target, *here)
            if target == second:  # moved to where that kind of store has its directory
                shutil.rmtree(embedded)
                second.rename(embedded)
            helio("config", "set", "metadata_kind", kind, *here)
            helio("up", *here)
            helio("produce", "kept", "2", *here)
        assert helio("consume", "kept", "--from", "earliest", "-n", "3", *here).split() == ["1", "2", "2"]
        helio("down", *here)


@pytest.mark.full
def test_members_join_and_leave_while_messages_flow(tmp_path: Path) -> None:
    with cluster_with_members(tmp_path, metadata_members=1, etcd_port=free_run(10), operator=True) as cluster:
        discovery.detach()  # a program that has joined Ray ends with it
        here = ("--home", cluster.home, "--namespace", cluster.namespace)

        def members(count: int) -> list[str]:
            found = helio_json("metadata", "members", str(count), *here)
            assert found["done"]
            assert found["leftover"] == {}
            serving = helio_json("metadata", "status", *here)["members"]
            assert all(member["is_serving"] for member in serving)
            helio("produce", "kept", str(count), *here)
            return sorted(member["name"] for member in serving)

        helio("produce", "kept", "0", *here)
        assert members(3) == list(MEMBERS)
        assert members(5) == [*MEMBERS, "metadata-4", "metadata-5"]
        assert members(1) == ["metadata-1"]
        left = [path.name for path in cluster.config.data_root.glob("metadata-*") if any(path.iterdir())]
        assert left == ["metadata-1"]
        helio("down", *here)
        helio("up", *here)
        assert members(3) == list(MEMBERS)
        assert helio("consume", "kept", "--from", "earliest", "-n", "5", *here).split() == ["0", "3", "5", "1", "3"]
        helio("down", *here)
