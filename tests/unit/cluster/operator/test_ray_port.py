"""The operator's view of a Ray that answers late: no error of Ray ends the operator."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest
import ray.exceptions

from heliograph.base.errors import ServiceNotReadyError
from heliograph.cluster.operator import ray_port
from heliograph.cluster.operator.ray_port import RayPort
from heliograph.ray import gcs

ERRORS = [
    ray.exceptions.GetTimeoutError("the GCS is slow"),
    ray.exceptions.RaySystemError(OSError("the socket was closed")),  # type: ignore[no-untyped-call]
    ConnectionError("no GCS"),
    RuntimeError("the GCS was not found"),
]


@pytest.fixture(params=ERRORS, ids=lambda error: type(error).__name__)
def late(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> RayPort:
    """Return the port of a Ray that finds no handle in time."""

    def existing(name: str, namespace: str) -> Any:
        raise request.param

    monkeypatch.setattr(ray_port, "existing", existing)
    return RayPort("heliograph", lambda name, roster: None)


def test_a_part_of_a_late_ray_tells_nothing(late: RayPort) -> None:
    assert asyncio.run(late.facts(frozenset({"bookie-1"}))) == {}


def test_a_part_of_the_previous_release_answers_with_what_it_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"version": "0.1.0", "python": "3.11", "node": "a", "node_address": "10.0.0.1", "open_files_max": 1_024}

    async def part_facts() -> dict[str, Any]:
        return {**told, "wall_ms": 5, "starts": 0, "failure": ""}

    handle = SimpleNamespace(part_facts=SimpleNamespace(remote=part_facts))
    monkeypatch.setattr(ray_port, "existing", lambda name, namespace: handle)
    port = RayPort("heliograph", lambda name, roster: None)
    found = asyncio.run(port.facts(frozenset({"bookie-1"})))["bookie-1"]
    assert (found.version, found.home, found.pid, found.installed) == ("0.1.0", "10.0.0.1", None, "")


def test_a_late_ray_is_asked_again_later(late: RayPort) -> None:
    with pytest.raises(ServiceNotReadyError, match="Ray does not answer"):
        asyncio.run(late.remove("bookie-1"))


def test_a_question_to_a_part_of_a_late_ray_is_refused(late: RayPort) -> None:
    with pytest.raises(ServiceNotReadyError, match="Ray does not answer"):
        asyncio.run(late.ask("auditor", "status"))


def test_a_card_that_names_no_gateway_is_given_one(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[bytes] = []
    monkeypatch.setattr(gcs, "value", lambda key, kind: b'{"secret": "s"}')
    monkeypatch.setattr(gcs, "keep", lambda key, value, kind: kept.append(value))
    asyncio.run(RayPort("heliograph", lambda name, roster: None).note_gateway("http://h:8080"))
    assert [json.loads(card) for card in kept] == [{"secret": "s", "gateway_url": "http://h:8080"}]
