"""What actors are created with is pickled by names, so that another release can read it, and is small."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, fields, make_dataclass
from pathlib import Path
from typing import Any

import pytest
from ray import cloudpickle

from heliograph.actors.bookie.config import BookieConfig
from heliograph.base.settings import Portable, portable, restored
from heliograph.cluster.config import ClusterConfig

ARGUMENT_BYTES_MAX = 100 << 10  # above that, Ray keeps what an actor is created with outside the actor


@dataclass(frozen=True, slots=True)
class Inner:
    size: int = 1


@dataclass(frozen=True, slots=True)
class Outer:
    name: str
    inner: Inner = Inner()
    several: tuple[Inner, ...] = ()
    by_name: Any = None


def test_what_was_packed_comes_back() -> None:
    given = Outer("a", Inner(7), (Inner(8), Inner(9)), {"x": [Inner(3)]})
    assert restored(pickle.loads(pickle.dumps(portable(given)))) == given
    config = BookieConfig("bookie-1", (Path("/a"),), (Path("/b"),), read_threads=7)
    assert restored(pickle.loads(pickle.dumps(portable(config)))) == config


def test_fields_of_another_release_are_left_out_or_have_defaults() -> None:
    packed = portable(Outer("a", Inner(7)))
    assert isinstance(packed, Portable)
    packed.kind = make_dataclass("Later", [("added", int, 5), ("name", str, "")], frozen=True, slots=True)
    made = restored(packed)
    assert {item.name: getattr(made, item.name) for item in fields(made)} == {"added": 5, "name": "a"}


def config(directory: Path) -> ClusterConfig:
    return ClusterConfig(
        home=directory, bookies=3, bookie={"read_threads": 7}, broker={"balance": {"shed_gap": 0.3}}, logs={}
    ).with_auth({"superuser_roles": ("admin",)})


def test_the_configuration_comes_back_and_is_small(tmp_path: Path) -> None:
    given = config(tmp_path)
    packed = cloudpickle.dumps(given)  # type: ignore[no-untyped-call]
    assert len(packed) < ARGUMENT_BYTES_MAX / 4
    made = pickle.loads(packed)
    assert made == given
    assert made.model_fields_set == given.model_fields_set
    assert made.broker_config("broker-1") == given.broker_config("broker-1")
    assert made.auth_config() == given.auth_config()


def test_a_configuration_of_another_release_is_read(tmp_path: Path) -> None:
    remake, (kind, values, given) = config(tmp_path).__reduce__()
    values["gone"] = 1
    del values["actor_cpus"]
    values["sections"]["bookie"]["gone"] = 1
    values["sections"]["gone"] = {"x": 1}
    made = remake(kind, values, {*given, "gone"})
    assert made == config(tmp_path)


@pytest.mark.parametrize("value", ["text", 1, None, Path("/a"), {1, 2}])
def test_other_values_stay_as_they_are(value: Any) -> None:
    assert portable(value) is value
    assert restored(value) is value
