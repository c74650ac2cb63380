"""Where the parts of a cluster of several machines listen, and how others reach them."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
import ray
import ray.exceptions

from heliograph.actors.bookie.actor import BookieActor
from heliograph.actors.bookie.config import BookieConfig
from heliograph.actors.broker.actor import BrokerActor
from heliograph.actors.broker.config import BrokerConfig
from heliograph.base.errors import ResourceError
from heliograph.base.home import ClusterHome
from heliograph.base.peer import ListenAddress, host_and_port
from heliograph.base.tls import authority as authorities
from heliograph.base.tls.authority import CertificateAuthority
from heliograph.base.tls.contexts import ServerTls, TlsFiles
from heliograph.cluster.config import ClusterConfig
from heliograph.cluster.hosting import _after
from heliograph.cluster.labels import Node
from heliograph.cluster.lifecycle import with_secret
from heliograph.cluster.parts import parts_of
from heliograph.cluster.ports import Machine
from heliograph.cluster.settings import placed
from heliograph.gateway.config import GatewayConfig

SECRET = "a secret of thirty-two characters"
HERE = Machine("127.0.0.1", "east-1")
NAMED = Machine("127.0.0.1", "east-1", "storage-1.example")


def bookie(**settings: str) -> BookieConfig:
    paths = (Path("j"),)
    return BookieConfig("bookie-1", paths, paths, cluster_secret=SECRET, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("machine", "settings", "bound", "reached_at"),
    [
        (HERE, {"host": "127.0.0.1"}, "127.0.0.1", ""),
        (HERE, {"host": "node"}, "127.0.0.1", "127.0.0.1"),
        (HERE, {"host": "0.0.0.0"}, "0.0.0.0", "127.0.0.1"),
        (HERE, {"host": "0.0.0.0", "advertised_host": "{hostname}.example"}, "0.0.0.0", "east-1.example"),
        (HERE, {"host": "node", "advertised_host": "a-{address}"}, "127.0.0.1", "a-127.0.0.1"),
        (NAMED, {"host": "node"}, "127.0.0.1", "storage-1.example"),
        (NAMED, {"host": "node", "advertised_host": "mine"}, "127.0.0.1", "mine"),
    ],
)
def test_a_part_binds_on_its_machine_and_says_how_that_is_reached(
    machine: Machine, settings: dict[str, str], bound: str, reached_at: str
) -> None:
    made: BookieConfig = machine.listening(bookie(**settings), "bookie-1")
    assert (made.host, made.advertised_host or "") == (bound, reached_at)


def test_a_free_port_is_the_same_after_a_restart_and_differs_between_parts() -> None:
    config = BrokerConfig(broker_id="b", actor_name="b", host="node")
    ports = [HERE.listening(config, key).port for key in ("c/broker-1", "c/broker-1", "c/broker-2", "d/broker-1")]
    assert ports[0] == ports[1]
    assert len(set(ports)) == 3
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", ports[0]))
        assert HERE.listening(config, "c/broker-1").port != ports[0]


def test_given_ports_stay() -> None:
    made = HERE.listening(GatewayConfig(port=8080, host="node"), "gateway")
    assert (made.port, made.advertised_host) == (8080, "127.0.0.1")


def test_the_metadata_store_keeps_the_port_of_its_first_start() -> None:
    made = HERE.listening(ListenAddress("node"), "metadata")
    assert (made.host, made.port, made.advertised_host) == ("127.0.0.1", 0, "127.0.0.1")
    assert made.first_port > 0


def test_ports_of_numbered_parts_follow_the_first() -> None:
    node = Node("10.0.0.1", {"heliograph.io/bookie": "true", "heliograph.io/broker": "true"})
    parts = {part.name: part for part in parts_of(ClusterConfig(bookie_port=3181, brokers=3), [node], {})}
    assert [parts[f"bookie-{number}"].port for number in (1, 2, 3)] == [3181, 3182, 3183]
    assert [(parts[f"broker-{n}"].port, parts[f"broker-{n}"].tls_port) for n in (1, 3)] == [(6650, 6651), (6654, 6655)]
    free = parts_of(ClusterConfig(broker_port=0, brokers=3), [node], {})
    assert {part.port for part in free if part.kind == "broker"} == {0}


@pytest.mark.parametrize("host", ["127.0.0.1", "node"])
def test_every_cluster_has_a_secret(tmp_path: Path, host: str) -> None:
    home = ClusterHome(tmp_path)
    home.prepare()
    config = ClusterConfig(home=tmp_path, host=host)
    made = with_secret(config, home, is_running=False).secrets
    assert made is not None
    assert len(made) == 64
    home.keep_secret(made)
    assert with_secret(config, home, is_running=True).secrets == made, "what runs keeps its own"
    given = ClusterConfig(home=tmp_path, host=host, cluster_secret=SECRET)
    assert with_secret(given, home, is_running=False).secrets == SECRET


def test_a_cluster_that_an_earlier_release_started_without_a_secret_goes_on(tmp_path: Path) -> None:
    home = ClusterHome(tmp_path)
    home.prepare()
    assert with_secret(ClusterConfig(home=tmp_path), home, is_running=True).secrets is None


def test_an_ipv6_address_is_written_with_brackets() -> None:
    assert [host_and_port(host, 1) for host in ("::1", "[::1]", "h")] == ["[::1]:1", "[::1]:1", "h:1"]


@pytest.mark.parametrize("kind", ["bookie", "broker"])
async def test_a_port_that_is_taken_is_named_with_its_node_and_the_way_out(tmp_path: Path, kind: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        url = f"memory://taken-port-of-{kind}"
        part: BookieActor | BrokerActor
        if kind == "bookie":
            part = BookieActor(BookieConfig("b1", (tmp_path / "j",), (tmp_path / "d",), port=port), url)
        else:
            part = BrokerActor(BrokerConfig(broker_id="b", actor_name="b", port=port), url)
        with pytest.raises(ResourceError) as refused:
            await _after(0.0, part.start)
        said = str(refused.value)
        assert f"on node {socket.gethostname()}" in said
        assert f"127.0.0.1:{port}" in said
        assert "choose another" in said
        await part.stop()


def test_a_part_has_a_certificate_that_names_what_it_is_reached_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = tmp_path / "head"
    CertificateAuthority(authority).ensure()
    signed: list[bytes] = []

    class Task:
        """A task of Ray that runs at once, on the machine of the authority."""

        def options(self, **places: Any) -> Task:
            assert places == {"num_cpus": 0, "resources": {"node:10.0.0.1": 0.001}}
            return self

        def remote(self, directory: str, request: bytes) -> tuple[bytes, bytes]:
            assert Path(directory).parent == tmp_path
            signed.append(request)
            return placed._sign(str(authority), request)

    monkeypatch.setattr(placed, "_certified", {})
    monkeypatch.setattr(placed, "_start_renewal", lambda: None)
    monkeypatch.setattr(placed, "_this_machine", lambda: Machine("10.0.0.2", "two", "two.example.org"))
    monkeypatch.setattr(ray, "remote", lambda function: Task())
    monkeypatch.setattr(ray, "get", lambda value, timeout: value)
    given = BrokerConfig(broker_id="broker-1", host="node", advertised_host="{hostname}.outside", port=1)
    for _ in range(2):
        on = placed.on_this_node("broker-1", "n", {}, given, certificates=str(tmp_path / "node"), signed_at="10.0.0.1")
    assert on.advertised_host == "two.outside"
    found = CertificateAuthority(tmp_path / "node").facts_of("parts.pem")
    assert found is not None
    assert {"10.0.0.2", "two", "two.example.org", "two.outside", "127.0.0.1"} <= {*found.names}
    assert len(signed) == 1
    shown = ServerTls(TlsFiles(str(tmp_path / "node" / "parts.pem"), str(tmp_path / "node" / "parts.key")))
    assert placed.renew_certificates()
    assert len(signed) == 1, "it lasts a year"
    monkeypatch.setattr(authorities, "CERTIFICATE_DAYS", 20)
    (tmp_path / "node" / "parts.pem").unlink()
    assert placed.renew_certificates()
    soon = CertificateAuthority(tmp_path / "node").facts_of("parts.pem")
    assert soon is not None
    assert (soon.ends < found.ends, soon.names) == (True, found.names)
    monkeypatch.setattr(ray, "get", _unreachable)
    assert not placed.renew_certificates()
    monkeypatch.setattr(placed, "_certified", {})
    again = placed.on_this_node("broker-1", "n", {}, given, certificates=str(tmp_path / "node"), signed_at="10.0.0.1")
    assert again.advertised_host == "two.outside", "what has not ended yet is used while the authority is away"
    monkeypatch.setattr(ray, "get", lambda value, timeout: value)
    monkeypatch.setattr(authorities, "CERTIFICATE_DAYS", 365)
    assert placed.renew_certificates()
    renewed = CertificateAuthority(tmp_path / "node").facts_of("parts.pem")
    assert renewed is not None
    assert renewed.ends > soon.ends
    assert shown.reload_if_changed(), "a listener shows it without a restart"
    monkeypatch.setattr(ray, "get", _unreachable)
    monkeypatch.setattr(placed, "_certified", {})
    with pytest.raises(ResourceError, match=r"no certificate from the authority at 10\.0\.0\.1"):
        placed.on_this_node("auditor", "n", {}, "url", certificates=str(tmp_path / "third"), signed_at="10.0.0.1")


def _unreachable(value: object, timeout: float) -> None:
    raise ray.exceptions.GetTimeoutError("no answer")
