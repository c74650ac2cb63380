"""Discovery of the Ray cluster to join and of the brokers in it, with a fake Ray."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray.exceptions
import ray.util

from heliograph.base.addressing.part_handle import NamedActors, named_actors
from heliograph.base.backoff import Attempts, Backoff
from heliograph.base.errors import (
    ClusterNotFoundError,
    ConflictError,
    ConnectionLostError,
    InvalidConfigError,
    ServiceNotReadyError,
)
from heliograph.base.home import ClusterHome, ClusterState
from heliograph.client import access, discovery, ray_release
from heliograph.client.access import client_options


class FakeRay:
    """The part of Ray that discovery uses."""

    exceptions = ray.exceptions

    def __init__(self) -> None:
        self.joined: dict[str, Any] | None = None
        self.actors: dict[tuple[str, str], Any] = {}
        self.util = SimpleNamespace(
            list_named_actors=lambda all_namespaces: [{"name": n, "namespace": s} for n, s in self.actors]
        )

    def is_initialized(self) -> bool:
        return self.joined is not None

    def init(self, **options: Any) -> None:
        self.joined = options

    def get_runtime_context(self) -> Any:
        assert self.joined is not None
        return SimpleNamespace(gcs_address=self.joined["address"])

    def get_actor(self, name: str, namespace: str) -> Any:
        try:
            return self.actors[name, namespace]
        except KeyError:
            raise ValueError(f"no actor {name}") from None

    def wait(self, calls: list[Any], num_returns: int, timeout: float) -> tuple[list[Any], list[Any]]:
        return [Answer(call) for call in calls if call is not None], [call for call in calls if call is None]

    def cancel(self, call: Any) -> None:
        assert call is None


class Answer:
    """The reference of a call that has ended; ``ray.get`` is not used, because it warns in async actors."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def future(self) -> Future[Any]:
        found: Future[Any] = Future()
        if isinstance(self._value, BaseException):
            found.set_exception(self._value)
        else:
            found.set_result(self._value)
        return found


def broker(answer: Any) -> Any:
    return SimpleNamespace(service_url=SimpleNamespace(remote=lambda: answer), part_facts=None, log_chunk=None)


def stranger() -> Any:
    """An actor of another program: a call of it fails the test."""
    return SimpleNamespace(predict=None, part_facts=None)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeRay:
    fake = FakeRay()
    monkeypatch.setattr(discovery, "_import_ray", lambda: fake)
    monkeypatch.setattr(ray, "init", fake.init)
    monkeypatch.setattr(ray, "get_actor", lambda name, namespace: fake.get_actor(name, namespace))
    monkeypatch.setattr(ray.util, "list_named_actors", fake.util.list_named_actors)
    monkeypatch.setattr(discovery, "use_token_if_local", lambda address, *, is_known: None)
    monkeypatch.setattr(ray_release, "dashboard_url", lambda: "http://127.0.0.1:8265")
    for name in ("RAY_ADDRESS", "HELIOGRAPH_HOME", "HELIOGRAPH_NAMESPACE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HELIOGRAPH_STATE_ROOT", str(tmp_path))
    return fake


@pytest.fixture
def listening() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def test_nothing_to_join_says_what_to_do(fake: FakeRay) -> None:
    with pytest.raises(ClusterNotFoundError, match="helio up"):
        discovery.attach()


def test_what_ray_says_at_the_end_is_no_part_of_a_result(
    fake: FakeRay, listening: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ray prints the lines of its nodes that repeat when a process leaves it, from the thread that leaves."""
    fake.init(address=listening)
    monkeypatch.setattr(fake, "shutdown", lambda: print("(raylet) it cannot be made [repeated 3x]"), raising=False)
    discovery.detach()
    print("{}")
    shown = capsys.readouterr()
    assert shown.out == "{}\n"
    assert "repeated 3x" in shown.err


def test_a_ray_that_does_not_answer_is_an_error_of_the_tree(
    fake: FakeRay, listening: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(name: str, namespace: str) -> Any:
        raise ray.exceptions.GetTimeoutError("Get timed out")

    fake.actors = {("broker-1", "mine"): None}
    fake.init(address=listening)
    monkeypatch.setattr(fake, "get_actor", late)
    with pytest.raises(ClusterNotFoundError, match="does not answer"):
        discovery.actor("broker-1", "mine")
    with pytest.raises(ClusterNotFoundError):
        discovery.service_urls("mine")


def test_the_recorded_address_is_joined(fake: FakeRay, listening: str, tmp_path: Path) -> None:
    home = ClusterHome(tmp_path / "mine")
    home.prepare()
    home.save(ClusterState("mine", listening, "token"))
    discovery.attach("mine")
    assert fake.joined is not None
    assert fake.joined["address"] == listening
    assert "namespace" not in fake.joined  # what this program names is not among the parts


def test_the_namespace_is_given_or_set_or_recorded(
    fake: FakeRay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert discovery.namespace_or_noted(None) == "heliograph"
    home = ClusterHome(tmp_path / "anywhere")
    home.prepare()
    monkeypatch.setenv("HELIOGRAPH_HOME", str(home.directory))
    assert discovery.namespace_or_noted(None) == "heliograph"
    home.save(ClusterState("noted", "127.0.0.1:1", "token"))
    assert discovery.namespace_or_noted(None) == "noted"
    assert discovery.noted_state("noted") == home.load()
    monkeypatch.setenv("HELIOGRAPH_NAMESPACE", "set")
    assert discovery.namespace_or_noted(None) == "set"
    assert discovery.namespace_or_noted("given") == "given"


@pytest.mark.parametrize("address", ["nonsense", "host:", ":6379", "host:port"])
def test_text_that_is_not_an_address_is_refused_with_the_right_form(fake: FakeRay, address: str) -> None:
    with pytest.raises(ClusterNotFoundError, match="the form is host:port"):
        discovery.attach(address=address)


def test_the_environment_overrides_the_record(
    fake: FakeRay, listening: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = ClusterHome(tmp_path / "mine")
    home.prepare()
    home.save(ClusterState("mine", "127.0.0.1:1", "token"))
    monkeypatch.setenv("RAY_ADDRESS", listening)
    discovery.attach("mine")
    assert discovery.ray_addresses() == (listening, "http://127.0.0.1:8265")


def test_an_address_where_nothing_listens_fails_at_once(fake: FakeRay) -> None:
    with pytest.raises(ClusterNotFoundError, match=r"no Ray answers at 127\.0\.0\.1:1 "):
        discovery.attach(address="127.0.0.1:1")
    assert not discovery.can_reach("127.0.0.1:1")


def test_a_process_that_joined_a_ray_cluster_stays_in_it(fake: FakeRay) -> None:
    fake.joined = {"address": "1.2.3.4:5"}
    discovery.attach()
    discovery.attach(address="1.2.3.4:5")
    with pytest.raises(ConflictError, match=r"1\.2\.3\.4:5 already"):
        discovery.attach(address="9.9.9.9:9")


def test_brokers_that_answer_are_named_in_order(fake: FakeRay) -> None:
    fake.joined = {"address": "1.2.3.4:5"}
    fake.actors = {
        ("broker-2", "n"): broker("pulsar://b:2"),
        ("broker-1", "n"): broker(ray.exceptions.ActorUnavailableError("restarting", None)),
        ("broker-3", "n"): broker(ServiceNotReadyError("starting")),
        ("broker-9", "other"): broker("pulsar://z:9"),
        ("bookie-1", "n"): broker("not asked"),
        ("broker-4", "n"): broker(None),
    }
    assert discovery.broker_names("n") == ["broker-1", "broker-2", "broker-3", "broker-4"]
    assert discovery.service_urls("n") == ["pulsar://b:2"]


def test_actors_of_other_programs_are_no_parts_whatever_their_names(fake: FakeRay) -> None:
    fake.joined = {"address": "1.2.3.4:5"}
    fake.actors = {
        ("broker-1", "n"): broker("pulsar://b:1"),
        ("broker-2", "n"): stranger(),
        ("gateway", "n"): stranger(),
        ("broker-x", "n"): broker("not asked"),
        ("model", "n"): broker("not asked"),
    }
    assert discovery.actor_names("n") == ["broker-1"]
    assert discovery.service_urls("n") == ["pulsar://b:1"]
    assert named_actors("n").strangers == {"broker-2", "gateway"}
    assert named_actors("n", ["broker-2", "broker-9"]) == NamedActors(
        frozenset({"broker-1", "broker-2"}), frozenset({"gateway"})
    )
    for name in ("broker-2", "gateway"):
        with pytest.raises(ClusterNotFoundError, match=f"no actor '{name}'"):
            discovery.actor(name, "n")


def test_an_actor_that_ended_or_has_no_class_any_more_is_no_part(
    fake: FakeRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.joined = {"address": "1.2.3.4:5"}
    fake.actors = {("broker-1", "n"): broker("pulsar://b:1"), ("broker-2", "n"): None, ("broker-3", "n"): None}

    def get_actor(name: str, namespace: str) -> Any:
        if name == "broker-2":
            raise ValueError("it ended since it was listed")
        if name == "broker-3":
            raise TypeError("the JSON object must be str, bytes or bytearray, not NoneType")
        return fake.get_actor(name, namespace)

    monkeypatch.setattr(ray, "get_actor", get_actor)
    assert named_actors("n") == NamedActors(frozenset({"broker-1"}), frozenset({"broker-3"}))


def test_a_ray_cluster_without_heliograph_and_one_without_brokers_have_their_own_messages(fake: FakeRay) -> None:
    fake.joined = {"address": "1.2.3.4:5"}
    with pytest.raises(ClusterNotFoundError, match="no Heliograph runs in Ray namespace 'n'"):
        discovery.service_urls("n")
    fake.actors = {("bookie-1", "n"): broker(None)}
    with pytest.raises(ConnectionLostError, match="has no broker"):
        discovery.service_urls("n")
    with pytest.raises(ClusterNotFoundError, match="no actor 'gateway'"):
        discovery.gateway_url("n")
    fake.actors = {("broker-1", "n"): broker(ServiceNotReadyError("starting"))}
    with pytest.raises(ConnectionLostError, match="none of broker-1 answers"):
        discovery.service_urls("n")


def test_connecting_asks_ray_again_for_brokers_that_are_restarting(
    fake: FakeRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.joined = {"address": "1.2.3.4:5"}
    fake.actors = {("bookie-1", "n"): broker(None)}
    pauses = [
        {("broker-1", "n"): broker(ServiceNotReadyError("starting"))},
        {("broker-1", "n"): broker("pulsar://b:1")},
    ]
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=lambda _: fake.actors.update(pauses.pop(0)))
    monkeypatch.setattr(access, "time", clock)  # not for the threads that earlier tests left
    attempts = Attempts(60, Backoff(1, 1), time.monotonic)
    assert client_options(None, "n", {}, attempts).service_urls == ("pulsar://b:1",)
    assert not pauses
    fake.actors = {("bookie-1", "n"): broker(None)}
    with pytest.raises(ConnectionLostError):
        client_options(None, "n", {}, Attempts(0, Backoff(1, 1), time.monotonic))
    with pytest.raises(ClusterNotFoundError):  # there is nothing to wait for
        client_options(None, "elsewhere", {}, attempts)


def test_only_addresses_of_this_machine_are_given_the_token() -> None:
    assert discovery.is_this_machine("127.0.0.1")
    assert not discovery.is_this_machine("203.0.113.9")


def test_addresses_of_tls_are_those_of_the_brokers_that_have_one(fake: FakeRay) -> None:
    fake.joined = {"address": "127.0.0.1:1"}
    for number, url in ((1, "pulsar+ssl://b1:6651"), (2, "")):
        actor = broker(f"pulsar://b{number}:6650")
        actor.service_url_tls = SimpleNamespace(remote=lambda url=url: url)
        fake.actors[f"broker-{number}", "mine"] = actor
    assert discovery.service_urls("mine", encrypted=True) == ["pulsar+ssl://b1:6651"]
    assert discovery.service_urls("mine") == ["pulsar://b1:6650", "pulsar://b2:6650"]
    del fake.actors["broker-1", "mine"]
    with pytest.raises(ConnectionLostError, match="address of TLS"):
        discovery.service_urls("mine", encrypted=True)


def test_clients_that_are_found_addresses_of_tls_use_the_files_of_this_machine(
    fake: FakeRay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []

    def service_urls(namespace: str, *, encrypted: bool) -> list[str]:
        asked.append(encrypted)
        return ["pulsar+ssl://b1:6651", "pulsar+ssl://b2:6651"]

    monkeypatch.setattr(discovery, "service_urls", service_urls)
    home = ClusterHome(tmp_path / "mine")
    home.prepare()
    home.save(ClusterState("mine", "127.0.0.1:1", "token", tls_ca_file="noted.pem"))
    assert client_options(None, "mine", {}).tls_ca_file == "noted.pem"
    assert client_options(None, "other", {}).tls_ca_file is None
    assert client_options("pulsar+ssl://elsewhere", "mine", {}).tls_ca_file is None  # of another cluster, perhaps
    monkeypatch.setenv("HELIOGRAPH_CLIENT_CA_FILE", "named.pem")
    assert client_options(None, "mine", {}).tls_ca_file == "named.pem"
    assert client_options("pulsar+ssl://elsewhere", "mine", {}).tls_ca_file == "named.pem"
    assert client_options(None, "mine", {"tls_ca_file": "given.pem"}).tls_ca_file == "given.pem"
    assert asked == [False, False, False, True]  # a file of TLS asks for addresses of TLS
    with pytest.raises(InvalidConfigError, match="an address is of none"):
        client_options("pulsar://elsewhere", None, {"tls_enabled": True})


def test_a_program_without_ray_takes_the_recorded_brokers_while_that_ray_answers(
    fake: FakeRay, listening: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def through_ray(name: str, *, encrypted: bool) -> list[str]:
        return ["pulsar+ssl://ray:1" if encrypted else "pulsar://ray:1"]

    monkeypatch.setattr(discovery, "service_urls", through_ray)

    def found(**options: Any) -> tuple[str, ...]:
        return client_options(None, "mine", options).service_urls

    def note(ray_address: str, service_url: str) -> None:
        home = ClusterHome(tmp_path / "mine")
        home.prepare()
        home.save(ClusterState("mine", ray_address, "token", service_url=service_url))

    brokers = f"pulsar://127.0.0.1:1,{listening}"
    note(listening, brokers)
    assert found() == ("pulsar://ray:1",)  # this process has imported Ray
    monkeypatch.delitem(sys.modules, "ray")
    assert found() == (f"pulsar://{listening}",)
    assert found(tls_enabled=True) == ("pulsar+ssl://ray:1",)  # the record has no address of TLS
    note("127.0.0.1:1", brokers)
    assert found() == ("pulsar://ray:1",)  # that cluster has ended
    note(listening, "pulsar://127.0.0.1:1")
    assert found() == ("pulsar://ray:1",)
    note(listening, brokers)
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert found() == ("pulsar://ray:1",)
