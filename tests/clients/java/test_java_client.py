"""Pulsar's Java client, as a Java user writes it. One program runs a group of scenarios; each of them is a test."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from tests.clients.support.maven import JavaProject, build
from tests.clients.support.program import ProgramRun, run_program
from tests.clients.support.report import ClientMatrix
from tests.clients.support.stack import ClientsStack

CLIENT = "Java client"
VERSIONS = ["4.2.4"]
GROUPS = {
    "Delivery": ("produce_consume",),
}
CASES = [(group, scenario) for group, scenarios in GROUPS.items() for scenario in scenarios]
GROUP_SECONDS_MAX = 240.0


@cache
def _project(version: str) -> JavaProject:
    return build(Path(__file__).parent, pulsar_version=version)


_runs: dict[tuple[str, str], ProgramRun] = {}


def run_of(group: str, version: str, stack: ClientsStack) -> ProgramRun:
    """Return the run of a group's program, which the first of its tests starts."""
    if (group, version) not in _runs:
        command = _project(version).command(f"heliograph.clients.{group}", stack.service_url, stack.web_url)
        _runs[group, version] = run_program(group, command, seconds=GROUP_SECONDS_MAX, answer=stack.answer)
    return _runs[group, version]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("group", "scenario"), CASES, ids=[scenario for _, scenario in CASES])
def test_scenario(group: str, scenario: str, version: str, stack: ClientsStack, matrix: ClientMatrix) -> None:
    run = run_of(group, version, stack)
    matrix.check(run, scenario, CLIENT, version)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("group", GROUPS)
def test_program_ends(group: str, version: str, stack: ClientsStack) -> None:
    run_of(group, version, stack).check_end()
