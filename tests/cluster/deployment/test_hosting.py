"""Hosted actors start by themselves. The tests use a Ray without a cluster."""

from __future__ import annotations

import asyncio
import os
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
import ray.exceptions

from heliograph.base.errors import ClusterNotFoundError, ConflictError, ResourceError
from heliograph.client import discovery
from heliograph.cluster import diagnosis
from heliograph.cluster.hosting import hosted
from heliograph.cluster.labels import Place
from heliograph.cluster.logs.config import LogsConfig
from heliograph.cluster.removal import remove
from tests.cluster.support.live_cluster import LiveCluster, wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


class Thing:
    """An actor class that counts its starts in a file."""

    def __init__(self, notes: Path, broken: bool = False) -> None:
        self._notes = notes
        self._broken = broken
        self._is_started = False

    async def start(self) -> str:
        await asyncio.sleep(0.2)
        if self._broken:
            raise ResourceError("port 1 is taken")
        self._is_started = True
        self._note("start")
        return "address"

    async def stop(self) -> None:
        self._note("stop")

    async def is_started(self) -> bool:
        return self._is_started

    async def meet(self, name: str, namespace: str) -> bool:
        return await asyncio.to_thread(ray.get_actor, name, namespace) is not None

    def _note(self, word: str) -> None:
        with self._notes.open("a") as file:
            file.write(f"{word}\n")


@pytest.fixture
def namespace(cluster: LiveCluster) -> Iterator[str]:
    """Yield a Ray namespace that no cluster uses; its actors are removed at the end."""
    name = f"things-{uuid.uuid4().hex[:8]}"
    yield name
    try:
        remove(discovery.actor_names(name), name)
    except ClusterNotFoundError:
        return


def create(namespace: str, name: str, *arguments: Any, **options: Any) -> Any:
    settings = {"lifetime": "detached", "max_restarts": -1, "num_cpus": 0.1, **options}
    logs = LogsConfig(directory=arguments[0].parent / "logs")
    actor_class = ray.remote(hosted(Thing, part=name, logs=logs))
    return actor_class.options(name=name, namespace=namespace, **settings).remote(*arguments)


def test_an_actor_starts_once_by_itself_and_calls_wait_for_it(namespace: str, tmp_path: Path) -> None:
    thing = create(namespace, "bookie-1", tmp_path / "notes")
    assert ray.get(thing.is_started.remote(), timeout=120)
    assert ray.get([thing.start.remote() for _ in range(3)], timeout=120) == ["address"] * 3
    assert (tmp_path / "notes").read_text() == "start\n"


def test_a_killed_actor_starts_again_by_itself(namespace: str, tmp_path: Path) -> None:
    thing = create(namespace, "bookie-1", tmp_path / "notes")
    ray.get(thing.start.remote(), timeout=120)
    os.kill(ray.get(thing.pid.remote(), timeout=120), signal.SIGKILL)
    wait_for(lambda: (tmp_path / "notes").read_text() == "start\nstart\n", 120, "it did not start again")


def test_an_actor_that_got_the_handle_of_another_one_still_returns_its_own_log(namespace: str, tmp_path: Path) -> None:
    things = {name: create(namespace, name, tmp_path / "notes") for name in ("broker-1", "broker-2")}
    ray.get([thing.start.remote() for thing in things.values()], timeout=120)
    assert ray.get(things["broker-1"].meet.remote("broker-2", namespace), timeout=120)
    for name, thing in things.items():
        wait_for(lambda name=name: (tmp_path / "logs" / f"{name}.log").exists(), 60, "no log")  # type: ignore[misc]
        log = ray.get(thing.log_chunk.remote(None), timeout=120).data.decode()
        assert {line.split()[2] for line in log.splitlines()} == {name}


def test_a_failed_start_is_told_and_tried_again_in_a_new_process(namespace: str, tmp_path: Path) -> None:
    thing = create(namespace, "bookie-1", tmp_path / "notes", True)
    with pytest.raises(ray.exceptions.RayTaskError) as caught:
        ray.get(thing.start.remote(), timeout=120)
    where, _, why = diagnosis.reason(caught.value).partition(": ")
    assert where.startswith("on node ")
    assert why == "port 1 is taken"
    first = ray.get(thing.pid.remote(), timeout=120)

    def has_other_process() -> bool:
        try:
            return bool(ray.get(thing.pid.remote(), timeout=5) != first)
        except ray.exceptions.RayError:
            return False

    wait_for(has_other_process, 120, "the process was not replaced")


def test_an_actor_without_a_node_is_said_to_wait_for_its_label(namespace: str, tmp_path: Path) -> None:
    selector = {"heliograph.io/bookie": "bookie-77"}
    create(namespace, "bookie-77", tmp_path / "notes", label_selector=selector)
    why = diagnosis.why_not_running("bookie-77", Place(selector), namespace)
    assert why == "it is waiting for a node labelled heliograph.io/bookie=bookie-77"
    remove(["bookie-77"], namespace)  # without a wait for an answer that cannot come


def test_removed_actors_were_asked_to_stop_and_do_not_return(namespace: str, tmp_path: Path) -> None:
    thing = create(namespace, "bookie-1", tmp_path / "notes")
    ray.get(thing.start.remote(), timeout=120)
    remove(["bookie-1"], namespace)
    assert (tmp_path / "notes").read_text() == "start\nstop\n"
    with pytest.raises(ClusterNotFoundError, match="no Heliograph runs"):
        discovery.actor_names(namespace)


def test_a_process_can_be_in_one_ray_only(cluster: LiveCluster) -> None:
    with pytest.raises(ConflictError, match=r"ray\.shutdown"):
        discovery.attach(cluster.namespace, address="127.0.0.1:1")
