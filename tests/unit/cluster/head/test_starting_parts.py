"""``helio up`` beside a part whose start fails: it waits while that passes, and tells other reasons at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import ray
from ray.exceptions import ActorUnavailableError, RayTaskError

from heliograph.base.errors import ConflictError, HeliographError, ResourceError, ServiceNotReadyError
from heliograph.base.home import ClusterHome
from heliograph.client import discovery
from heliograph.cluster import deployment
from heliograph.cluster.config import ClusterConfig
from heliograph.cluster.deployment import Deployed
from heliograph.cluster.labels import Node
from heliograph.cluster.parts import Part
from heliograph.metadata.errors import ConnectionLossError


class FakeHandle:
    """An actor whose starts have one outcome after the other; Ray's references are these outcomes."""

    def __init__(self, *outcomes: Exception | str) -> None:
        self.outcomes = list(outcomes)
        self.start = self

    def remote(self) -> Exception | str:
        return self.outcomes.pop(0)


def of_ray(error: HeliographError) -> BaseException:
    wrapped = RayTaskError("start", "traceback", error)  # type: ignore[no-untyped-call]
    raised: BaseException = wrapped.as_instanceof_cause()  # type: ignore[no-untyped-call]
    return raised


def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *outcomes: Any) -> Deployed:
    """Start one broker whose starts have these outcomes."""
    handle = FakeHandle(*outcomes)

    def outcome_of(reference: Any) -> Any:
        if isinstance(reference, BaseException):
            raise reference
        return reference

    monkeypatch.setattr(deployment, "_create", lambda *_: handle)
    monkeypatch.setattr(deployment, "existing", lambda *_: handle)
    monkeypatch.setattr(deployment, "NODE_POLL_SECONDS", 0)
    monkeypatch.setattr(discovery, "own_address", lambda: "10.0.0.1")
    monkeypatch.setattr(ray, "wait", lambda calls, **_: (calls[:1], calls[1:]))
    monkeypatch.setattr(ray, "get", outcome_of)
    made = Deployed("memory://")
    config = ClusterConfig(home=tmp_path)
    nodes = [Node("10.0.0.1", {})]
    deployment._start_group([Part("broker-1", "broker")], nodes, config, made, "", [], ClusterHome(tmp_path))
    assert handle.outcomes == [], "it is asked as often"
    return made


def test_a_start_that_failed_for_another_part_is_waited_for_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lost = of_ray(ConnectionLossError("the connection to the metadata server was lost"))
    ended = of_ray(ServiceNotReadyError("the part's process has ended: try again"))
    again = ActorUnavailableError("it is starting", None)
    made = started(monkeypatch, tmp_path, lost, ended, again, "pulsar://10.0.0.1:6650")
    assert made.addresses == {"broker-1": "pulsar://10.0.0.1:6650"}
    assert made.not_serving == {}


@pytest.mark.parametrize("error", [ResourceError("port 6650 is taken"), ConflictError("its disk is another's")])
def test_a_start_that_fails_for_its_own_reasons_is_told_at_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: HeliographError
) -> None:
    made = started(monkeypatch, tmp_path, of_ray(error))
    assert made.not_serving == {"broker-1": str(error)}
    assert made.addresses == {}
