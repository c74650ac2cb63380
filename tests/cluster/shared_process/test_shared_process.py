"""A cluster whose parts share one process: it is killed, and comes back with every part and every message."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray

import heliograph
from heliograph.base.errors import HeliographError
from heliograph.base.processes import session_members
from heliograph.client import discovery
from heliograph.cluster.head.clocks import resting_clocks
from tests.cluster.support.live_cluster import LiveCluster, start, wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

BACK_SECONDS = 240.0
USERS_OWN = ("RAY_kill_idle_workers_interval_ms", "900")
PARTS = ["auditor", "bookie-1", "bookie-2", "broker-1", "broker-2", "gateway", "metadata", "operator"]


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    """All parts in one process, on a Ray without a dashboard."""
    discovery.detach()  # from the Ray of other tests, which ``start`` would use
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv(*USERS_OWN)
        running = start(
            tmp_path_factory.mktemp("together"),
            f"together-{uuid.uuid4().hex[:8]}",
            bookies=2,
            ensemble_size=2,
            write_quorum=2,
            ack_quorum=2,
            operator=True,
            lean=True,
        )
    try:
        yield running
    finally:
        running.stop()


def test_a_killed_process_comes_back_with_all_parts_and_messages(together: LiveCluster, topic: str) -> None:
    together.attach()
    assert discovery.actor_names(together.namespace) == PARTS
    assert len({together.pid(name) for name in PARTS}) == 1
    assert [each["name"] for each in ray.util.list_named_actors(all_namespaces=True)] == ["shared-process"]
    sent = [b"%d" % number for number in range(200)]
    with heliograph.connect(namespace=together.namespace) as client:
        with client.producer(topic) as producer:
            for value in sent[:100]:
                producer.send(value)
            old = together.sigkill("bookie-2")
            for value in sent[100:]:  # to the process that Ray starts
                producer.send(value)
        for name in PARTS:
            together.wait_back(name, old)
        with client.reader(topic, "earliest") as reader:
            received: list[bytes] = []
            while not received or received[-1] != sent[-1]:
                received.append(reader.receive(BACK_SECONDS).value)
        assert list(dict.fromkeys(received)) == sent  # what was under way may be there twice
    wait_for(lambda: together.report().is_healthy, BACK_SECONDS, "not healthy")


def test_rays_processes_look_around_less_often_but_as_often_as_the_user_says(together: LiveCluster) -> None:
    together.attach()
    ray_process = together.state.ray_process
    assert ray_process is not None
    [raylet] = [each.pid for each in session_members(ray_process) if program_of(each.pid) == "raylet"]
    pairs = (item.partition("=") for item in Path(f"/proc/{raylet}/environ").read_text().split("\0"))
    found = {name: value for name, _, value in pairs}
    expected = resting_clocks(is_only_node=True, is_lean=True) | dict([USERS_OWN])
    assert {name: found.get(name) for name in expected} == expected


def program_of(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()


def test_each_part_has_its_own_log(together: LiveCluster) -> None:
    logs = {name: (together.home / "logs" / f"{name}.log").read_text() for name in [*PARTS, "shared-process"]}
    for name, text in logs.items():
        assert text, name
        assert all(f" {name} " in line for line in text.splitlines() if not line.startswith(" ")), name
    for name in PARTS:
        assert "serves as" in logs[name]


def test_a_part_is_asked_for_what_it_has_not(together: LiveCluster) -> None:
    together.attach()
    with pytest.raises(AttributeError):
        together.call("bookie-1", "no_such_method")
    with pytest.raises(HeliographError, match="no actor 'bookie-9'"):
        together.call("bookie-9", "pid")
