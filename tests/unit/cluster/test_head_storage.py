"""Ray's state on disk: when a head has it, what is recorded beside it, and when it is given up."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from heliograph.base.errors import ResourceError
from heliograph.base.home import ClusterHome, ClusterState
from heliograph.cluster import ports
from heliograph.cluster.config import ClusterConfig
from heliograph.cluster.head import starting
from heliograph.cluster.head.storage import RECONNECT_VARIABLE, RayStorage
from tests.unit.cluster.test_safety import ray_of

SETTINGS = {"bookies": 3, "data_directory": "/d"}


@pytest.fixture
def storage(tmp_path: Path) -> RayStorage:
    home = ClusterHome(tmp_path / "home")
    made = RayStorage.of(home)
    made.environment()
    return made


def served(storage: RayStorage) -> None:
    storage.keep_port(20_123)
    storage.keep_origin(SETTINGS, by_one_start=True)


def test_nothing_is_known_before_the_first_head(tmp_path: Path) -> None:
    storage = RayStorage(tmp_path / "none")
    assert (storage.port, storage.is_served, storage.has_origin(SETTINGS)) == (0, False, False)


def test_port_and_origin_are_kept_until_the_state_is_deleted(storage: RayStorage) -> None:
    served(storage)
    again = RayStorage(storage.directory)
    assert (again.port, again.is_served) == (20_123, True)
    assert again.has_origin(SETTINGS)
    assert not again.has_origin({**SETTINGS, "bookies": 4})
    assert storage.directory.stat().st_mode & 0o077 == 0
    again.delete()
    assert (storage.port, storage.is_served) == (0, False)


def test_actors_of_several_starts_have_the_origin_of_none(storage: RayStorage) -> None:
    served(storage)
    storage.keep_origin(SETTINGS, by_one_start=False)
    assert storage.has_origin(SETTINGS), "nothing was changed"
    changed = {**SETTINGS, "bookies": 4}
    storage.keep_origin(changed, by_one_start=False)
    assert storage.is_served
    assert not storage.has_origin(changed)
    assert not storage.has_origin(SETTINGS)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"port": "20123"}', '{"port": 70000}'])
def test_a_record_that_cannot_be_read_is_none(storage: RayStorage, text: str) -> None:
    (storage.directory / "record.json").write_text(text)
    assert (storage.port, storage.is_served) == (0, False)


def test_a_head_that_other_machines_can_join_has_its_state_on_disk(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started = ray_of(monkeypatch, tmp_path, "0.0.0.0")
    environment = started["env"]
    assert environment["RAY_gcs_storage"] == "rocksdb"
    assert Path(environment["RAY_gcs_storage_path"]).is_relative_to(tmp_path / "home")
    assert int(environment[RECONNECT_VARIABLE]) > 60
    assert "--port=0" in started["command"]
    RayStorage.of(ClusterHome(tmp_path / "home")).keep_port(port := ports.pick_free())
    assert f"--port={port}" in ray_of(monkeypatch, tmp_path, "0.0.0.0")["command"]


def test_a_port_that_another_program_took_is_named(monkeypatch: pytest.MonkeyPatch, storage: RayStorage) -> None:
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        storage.keep_port(taken.getsockname()[1])
        with pytest.raises(ResourceError, match="--ray-port"):
            ray_of(monkeypatch, storage.directory.parents[1], "0.0.0.0")


def test_a_head_on_loopback_has_no_state_on_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert "RAY_gcs_storage" not in ray_of(monkeypatch, tmp_path, "127.0.0.1")["env"]


def test_a_state_that_no_head_starts_with_is_kept(monkeypatch: pytest.MonkeyPatch, storage: RayStorage) -> None:
    served(storage)
    home = ClusterHome(storage.directory.parent)
    config = ClusterConfig(home=home.directory, host="0.0.0.0", insecure=True, broker_port=0, gateway_port=0)

    def start(config: ClusterConfig, home: ClusterHome) -> ClusterState:
        raise ResourceError("it does not start")

    monkeypatch.setattr(starting, "_start_head", start)
    with pytest.raises(ResourceError, match=f"it does not start; .*{storage.directory} may be damaged"):
        starting.start_ray(config, home, lambda _: None)
    assert storage.is_served, "a machine that is busy gives up nothing"


def test_a_failed_start_keeps_the_state_of_an_earlier_one_with_its_secret(storage: RayStorage) -> None:
    home = ClusterHome(storage.directory.parent)
    home.keep_secret("secret")
    served(storage)
    home.save(ClusterState("n", "a:1", ""))
    assert starting.stop_failed(home, None)
    assert (storage.is_served, home.secret()) == (True, "secret")
    storage.delete()
    home.save(ClusterState("n", "a:1", ""))
    assert starting.stop_failed(home, None)
    assert home.secret() is None
    assert not starting.stop_failed(home, None)


def test_a_failed_start_leaves_alone_what_its_home_had_noted_before(storage: RayStorage) -> None:
    """The home may have noted a cluster in another Ray, which cannot be reached for a moment."""
    home, earlier = ClusterHome(storage.directory.parent), ClusterState("n", "a:1", "")
    home.keep_secret("secret")
    home.save(earlier)
    assert not starting.stop_failed(home, home.load())
    assert (home.load(), home.secret()) == (earlier, "secret")
