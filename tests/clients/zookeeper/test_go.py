"""go-zookeeper. One program runs all scenarios on a store; each of them is a test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.support.golang import build_module, required_version
from tests.clients.support.program import ProgramRun, run_program
from tests.clients.support.report import ClientMatrix
from tests.clients.zookeeper.served import STORE_PARAMETERS, endpoints, kill_or_start, serving

CLIENT = "go-zookeeper"
FOLDER = Path(__file__).parent / "go"
SECONDS_MAX = 180.0
SCENARIOS = {  # with their rows of docs/clients.md
    "nodes": "zk_nodes",
    "sequence": "zk_sequence",
    "containers": "zk_containers",
    "ttl": "zk_ttl",
    "multi": "zk_transactions",
    "acl": "zk_acl",
    "watches": "zk_watches",
    "locks": "zk_locks",
    "reconnect": "zk_reconnect",
    "expiry": "zk_expiry",
}


def run_go(connect: str, *scenarios: str, answer: Callable[[dict[str, Any]], Any] | None = None) -> ProgramRun:
    """Run scenarios to their ends."""
    return run_program(CLIENT, [str(build_module(FOLDER)), connect, *scenarios], seconds=SECONDS_MAX, answer=answer)


def version() -> str:
    return required_version(FOLDER, "github.com/go-zookeeper/zk")


@pytest.fixture(scope="module", params=STORE_PARAMETERS)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProgramRun]:
    """The run of all scenarios on one store. A real ZooKeeper shows that they expect what is true of it."""
    build_module(FOLDER)
    with serving(request.param, tmp_path_factory.mktemp("go")) as address:
        yield run_go(address, *SCENARIOS)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scenario(run: ProgramRun, scenario: str, matrix: ClientMatrix) -> None:
    matrix.check(run, scenario, CLIENT, version(), SCENARIOS[scenario])


def test_program_ends(run: ProgramRun) -> None:
    run.check_end()


@pytest.mark.parametrize("store", STORE_PARAMETERS[:2])
def test_session_continues_at_the_other_endpoint(store: str, tmp_path: Path, matrix: ClientMatrix) -> None:
    build_module(FOLDER)
    with endpoints(store, tmp_path, 2) as pair:
        found = run_go(",".join(one.address for one in pair), "endpoint_death", answer=kill_or_start(pair))
        matrix.check(found, "endpoint_death", CLIENT, version(), "zk_endpoint_death")
        found.check_end()
