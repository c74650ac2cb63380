"""Curator's recipes. One program runs all of them on a store; each of them is a test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.clients.support.maven import JavaProject, build
from tests.clients.support.program import ProgramRun, run_program
from tests.clients.support.report import ClientMatrix
from tests.clients.zookeeper.served import STORE_PARAMETERS, endpoints, kill_or_start, serving

CLIENT, VERSION = "Curator", "5.9.0"
MAIN_CLASS = "heliograph.curator.Main"
SECONDS_MAX = 300.0
QUIET = ("-Dorg.slf4j.simpleLogger.defaultLogLevel=off",)
# By row of docs/clients.md: the scenarios of it.
SCENARIOS = {
    "zk_locks": (
        "mutex", "revocable_mutex", "semaphore_mutex", "multi_lock", "read_write_lock", "semaphore",
        "semaphore_of_shared_count",
    ),
    "zk_expiry": ("mutex_of_expired_session", "curator_cache_of_expired_session"),
    "zk_leaders": ("leader_latch", "leader_selector"),
    "zk_barriers": ("barrier", "double_barrier"),
    "zk_groups": ("group_member", "service_discovery", "persistent_node"),
    "zk_queues": ("simple_queue", "queue", "queue_with_lock", "priority_queue", "delay_queue"),
    "zk_counters": ("atomic_long", "shared_values"),
    "zk_caches": ("path_children_cache", "node_cache", "tree_cache", "curator_cache"),
    "zk_watches": ("persistent_watcher", "remove_watches"),
    "zk_ttl": ("persistent_ttl_node", "ttl_modes"),
    "zk_containers": ("containers_go",),
    "zk_transactions": ("transactions",),
    "zk_nodes": ("null_data", "background", "create_or_set"),
    "zk_sequence": ("protected_sequence",),
    "zk_acl": ("acl",),
}  # fmt: skip
CASES = [(feature, scenario) for feature, scenarios in SCENARIOS.items() for scenario in scenarios]
NewRun = Callable[[str], ProgramRun]


@cache
def project() -> JavaProject:
    return build(Path(__file__).parent / "curator")


def run_curator(connect: str, *scenarios: str, answer: Callable[[dict[str, Any]], Any] | None = None) -> ProgramRun:
    """Run scenarios to their ends."""
    command = project().command(MAIN_CLASS, connect, *scenarios, options=QUIET)
    return run_program(CLIENT, command, seconds=SECONDS_MAX, answer=answer)


@pytest.fixture(scope="module", params=STORE_PARAMETERS)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProgramRun]:
    """The run of all scenarios on one store. A real ZooKeeper shows that they expect what is true of it."""
    project()
    with serving(request.param, tmp_path_factory.mktemp("curator")) as address:
        yield run_curator(address, *(scenario for _, scenario in CASES))


@pytest.mark.parametrize(("feature", "scenario"), CASES, ids=[scenario for _, scenario in CASES])
def test_recipe(run: ProgramRun, feature: str, scenario: str, matrix: ClientMatrix) -> None:
    matrix.check(run, scenario, CLIENT, VERSION, feature)


def test_program_ends(run: ProgramRun) -> None:
    run.check_end()


@pytest.mark.parametrize("store", STORE_PARAMETERS[:2])
def test_session_continues_at_the_other_endpoint(store: str, tmp_path: Path, matrix: ClientMatrix) -> None:
    project()
    with endpoints(store, tmp_path, 2) as pair:
        connect = ",".join(endpoint.address for endpoint in pair)
        found = run_curator(connect, "endpoint_death", answer=kill_or_start(pair))
        matrix.check(found, "endpoint_death", CLIENT, VERSION, "zk_endpoint_death")
        found.check_end()
