"""Which bookies are near: those of this machine, then those of its rack, as far as racks are known."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from types import SimpleNamespace

import pytest

from heliograph.cluster.labels import RACK
from heliograph.pipelines.reading import nearby
from heliograph.pipelines.reading.nearby import RACK_LABEL, RACK_VARIABLE, nearby_bookies

ADDRESSES = {"b1": "192.0.2.1:3181", "b2": "tls://192.0.2.2:3181", "b3": "127.0.0.1:3181"}
FAR = {name: address for name, address in ADDRESSES.items() if name != "b3"}
RACKS = {"b1": "left", "b2": "right", "b3": "left"}


@pytest.fixture(autouse=True)
def no_ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(RACK_VARIABLE, raising=False)
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setattr(nearby, "_is_near", lambda host: host == "127.0.0.1")
    nearby._rack_of_node.cache_clear()
    yield
    nearby._rack_of_node.cache_clear()


def near(addresses: Mapping[str, str], racks: Mapping[str, str] | None = None) -> list[set[str]]:
    return list(map(set, nearby_bookies(addresses, racks)))


def test_a_bookie_on_this_machine_tells_its_rack() -> None:
    assert near(ADDRESSES, RACKS) == [{"b3"}, {"b1", "b3"}]


def test_the_variable_tells_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RACK_VARIABLE, "right")
    assert near(ADDRESSES, RACKS) == [{"b3"}, {"b2"}]


def test_without_racks_or_with_one_all_others_are_equal() -> None:
    assert near(ADDRESSES) == [{"b3"}, set()]
    assert near(ADDRESSES, dict.fromkeys(RACKS, "default")) == [{"b3"}, set()]
    assert near(FAR, RACKS) == [set(), set()]


def test_the_node_of_ray_tells_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert RACK_LABEL == RACK
    nodes = [{"NodeID": "other", "Labels": {RACK: "left"}}, {"NodeID": "own", "Labels": {RACK: "right"}}]
    context = SimpleNamespace(get_node_id=lambda: "own")
    ray = SimpleNamespace(is_initialized=lambda: True, get_runtime_context=lambda: context, nodes=lambda: nodes)
    monkeypatch.setitem(sys.modules, "ray", ray)
    assert near(FAR, RACKS) == [set(), {"b2"}]


def test_a_ray_that_does_not_answer_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: True))
    assert near(FAR, RACKS) == [set(), set()]
