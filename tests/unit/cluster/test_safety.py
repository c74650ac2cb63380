"""What keeps strangers out of a new cluster: its address, its files, and the ports of its Ray."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from heliograph.actors.bookie.disk.disk import RealDisk
from heliograph.base.errors import InvalidConfigError, ResourceError
from heliograph.base.home import LOGS, ClusterHome, ClusterState, private_files
from heliograph.base.peer import is_loopback, is_wildcard
from heliograph.base.processes import ProcessName
from heliograph.base.tls.authority import CertificateAuthority
from heliograph.base.tls.contexts import ClientTls, ServerTls
from heliograph.cli.app import app
from heliograph.cluster import lifecycle
from heliograph.cluster.config import ClusterConfig
from heliograph.cluster.head import launch
from heliograph.cluster.setting_report import given
from heliograph.cluster.settings.tls import INTERNAL_TLS
from heliograph.metadata.backends.embedded.server.directory import ServerDirectory
from heliograph.ray.process import PROGRAM
from heliograph.standalone.directory import StandaloneDirectory

OTHER_UID = 65_534


@pytest.fixture(autouse=True)
def _home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HELIOGRAPH_STATE_ROOT", str(tmp_path / "root"))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "2001:db8::1", "broker.example.org"])
def test_an_open_address_needs_authentication(host: str) -> None:
    with pytest.raises(InvalidConfigError, match=r"auth\.enabled, or give --insecure") as raised:
        lifecycle.up(ClusterConfig(host=host))
    assert raised.value.field == "host"
    lifecycle.check_exposure(ClusterConfig(host=host, insecure=True))
    lifecycle.check_exposure(ClusterConfig(host=host, auth={"enabled": True, "token_secret_key": "k" * 44}))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_loopback_needs_none(host: str) -> None:
    lifecycle.check_exposure(ClusterConfig(host=host))
    assert is_loopback(host)


def test_addresses_are_told_apart() -> None:
    assert [is_wildcard(host) for host in ("0.0.0.0", "::", "[::]", "", "127.0.0.1", "a.b")] == [True] * 4 + [False] * 2
    assert not is_loopback("")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def usual_umask() -> Iterator[None]:
    """Let others read what is not private, whatever the umask of the caller is."""
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.mark.usefixtures("usual_umask")
def test_files_and_directories_are_private(tmp_path: Path) -> None:
    home = ClusterHome(tmp_path / "home")
    with home.locked():
        (home.directory / "cluster.json.new").touch(mode=0o644)  # of an attempt before
        home.save(ClusterState("n", "a", "token"))
    assert mode(home.directory) == 0o700
    assert mode(home.directory / "cluster.json") == 0o600
    (tmp_path / "metadata").mkdir(mode=0o755)  # of an older version
    directory = ServerDirectory(tmp_path / "metadata", 0)
    assert mode(directory.path) == 0o700
    assert mode(directory.path / "lock") == 0o600
    with private_files():
        (tmp_path / "new").write_text("")
    (tmp_path / "after").write_text("")
    assert mode(tmp_path / "new") == 0o600
    assert mode(tmp_path / "after") != 0o600


def test_a_bookie_closes_its_directories(tmp_path: Path) -> None:
    (tmp_path / "journal").mkdir(mode=0o755)
    RealDisk().make_directory(tmp_path / "journal")
    assert mode(tmp_path / "journal") == 0o700


def test_an_existing_home_is_closed_to_others(tmp_path: Path) -> None:
    home = ClusterHome(tmp_path / "home")
    for directory in (home.directory, home.directory / LOGS, home.failed_start):
        directory.mkdir()
        directory.chmod(0o777)
    home.prepare()
    assert [mode(each) for each in (home.directory, home.directory / LOGS, home.failed_start)] == [0o700] * 3


def test_a_home_that_users_share_is_refused(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o1777)
    with pytest.raises(ResourceError, match="is shared by all users") as raised:
        ClusterHome(tmp_path / "shared").prepare()
    assert raised.value.field == "home"
    assert mode(tmp_path / "shared") == 0o1777


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make a directory of another user")
@pytest.mark.parametrize("make", [lambda path: ClusterHome(path).prepare(), StandaloneDirectory])
def test_a_home_of_another_user_is_refused(tmp_path: Path, make: Callable[[Path], object]) -> None:
    (tmp_path / "other").mkdir(mode=0o700)
    os.chown(tmp_path / "other", OTHER_UID, -1)
    with pytest.raises(ResourceError, match=f"belongs to another user .uid {OTHER_UID}."):
        make(tmp_path / "other")


def test_logs_of_a_failed_start_are_closed_to_others(tmp_path: Path) -> None:
    logs = tmp_path / "ray" / launch.RAY_FILES / "session_latest" / "logs"
    logs.mkdir(parents=True)
    logs.chmod(0o777)
    (logs / "gcs.log").touch()
    with subprocess.Popen([sys.executable, "-c", "pass"], start_new_session=True) as child:
        name = ProcessName.of(child.pid)
        assert name is not None
        launch.stop_ray(name, str(tmp_path / "ray"), keep_logs=tmp_path / "kept")
    assert (tmp_path / "kept" / "gcs.log").exists()
    assert mode(tmp_path / "kept") == 0o700
    assert not (tmp_path / "ray").exists()


def ray_of(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, host: str, *, lean: bool = False) -> dict[str, Any]:
    """Return how Ray would be started."""
    started: dict[str, Any] = {}

    class Child:
        pid = 1

        def __init__(self, command: list[str], **options: Any) -> None:
            started.update(options, command=command)

    monkeypatch.setattr(subprocess, "Popen", Child)
    monkeypatch.setattr(launch, "_children", {})
    monkeypatch.setenv("RAY_AUTH_TOKEN", "t")
    home = ClusterHome(tmp_path / "home")
    home.prepare()
    head = launch.spawn_ray(ClusterConfig(host=host, insecure=True, dashboard_port=0, lean=lean), home)
    started["dashboard_url"] = head.dashboard_url
    assert mode(home.ray_log) == 0o600
    assert mode(head.temporary_directory) == 0o700, "Ray opens its own folder to all users"
    head.temporary_directory.rmdir()
    return started


def test_ray_of_a_loopback_cluster_chooses_its_address(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    started = ray_of(monkeypatch, tmp_path, "127.0.0.1")
    assert not [word for word in started["command"] if "node-ip-address" in word]
    assert started["umask"] == 0o077
    [folder] = [Path(word.partition("=")[2]) for word in started["command"] if word.startswith("--temp-dir=")]
    assert len(f"{folder}/session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store") <= 107


def test_ray_of_an_open_cluster_has_the_address_of_the_configuration(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started = ray_of(monkeypatch, tmp_path, "10.1.2.3")
    assert "--node-ip-address=10.1.2.3" in started["command"]
    assert "--dashboard-host=127.0.0.1" in started["command"]
    assert not [word for word in ray_of(monkeypatch, tmp_path, "0.0.0.0")["command"] if "node-ip-address" in word]


def test_a_lean_ray_lacks_what_an_option_leaves_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    lean = ray_of(monkeypatch, tmp_path, "127.0.0.1", lean=True)
    assert {"--include-dashboard=false", "--include-log-monitor=false", "--no-monitor"} < set(lean["command"])
    assert lean["dashboard_url"] == ""
    whole = ray_of(monkeypatch, tmp_path, "127.0.0.1")
    assert not [word for word in whole["command"] if "--include" in word], "a dashboard that fails would end the head"
    assert whole["dashboard_url"].startswith("http://127.0.0.1:")
    for found in (lean, whole):  # Ray's own program; another Ray of this machine may have its usual ports
        assert found["command"][1:6] == [*PROGRAM, "start", "--head", "--block"]
        names = {word.partition("=")[0] for word in found["command"]}
        assert {"--port", "--ray-client-server-port", "--dashboard-port", "--dashboard-agent-listen-port"} <= names
        agents = {"--dashboard-agent-grpc-port", "--runtime-env-agent-port", "--metrics-export-port"}
        assert agents <= names, "the raylet waits for no file"


def test_tls_auto_names_the_files_of_the_own_authority(tmp_path: Path) -> None:
    config = ClusterConfig(home=tmp_path / "home", tls="auto")
    said: list[str] = []
    lifecycle._make_certificates(config, said.append)
    assert said[0] == "made certificates: parts, client"
    assert str(tmp_path / "home" / "certificates" / "ca.pem") in said[1]
    assert config.gateway_tls
    peer = config.peer_tls
    assert peer is not None
    ServerTls(peer.as_server)
    broker = config.broker_config("broker-1", tls_port=0)
    assert broker.tls is not None
    ServerTls(broker.tls)
    assert broker.ledgers.tls == config.bookie_config("b", tmp_path).tls == peer
    assert config.auditor_config().ledgers.tls == peer
    assert config.gateway_config().tls_certificate_file == peer.certificate
    own = ClusterConfig(home=tmp_path / "home", tls="auto", gateway_tls=False)
    assert not own.gateway_tls
    assert ClusterConfig().peer_tls is None


def test_etcd_members_have_certificates_where_callers_are_authenticated(tmp_path: Path) -> None:
    home = tmp_path / "home"
    etcd: dict[str, Any] = {"home": home, "metadata_kind": "etcd"}
    made = ClusterConfig(**etcd, auth={"enabled": True})
    assert made.tls == "parts"
    assert made.peer_tls is not None
    assert made.peer_tls.ca == str(home / "certificates" / "ca.pem")
    assert made.outer_tls is None, "clients are not concerned"
    assert not made.gateway_tls
    assert not {"internal_tls_certificate_file", "internal_tls_key_file"} & set(given(made))
    assert ClusterConfig(**etcd).peer_tls is None
    own = dict.fromkeys(INTERNAL_TLS, home / "own.pem")
    assert ClusterConfig(**etcd, auth={"enabled": True}, **own).tls == "files"
    ClusterHome(home).keep_members({"members": [1]})  # of an earlier release, without certificates
    assert ClusterConfig(**etcd, auth={"enabled": True}).peer_tls is None
    (home / "certificates").mkdir()
    assert ClusterConfig(**etcd, auth={"enabled": True}).peer_tls is not None


def test_one_word_makes_a_cluster_secure(tmp_path: Path) -> None:
    made = ClusterConfig(home=tmp_path, secure="true")
    assert (made.tls, made.tls_only, made.gateway_tls) == ("auto", True, True)
    assert made.auth_config().is_enabled
    assert made.broker_config("broker-1").audit.file == str(tmp_path / "logs" / "audit-{broker_id}.json")
    assert made.gateway_config().audit_file == str(tmp_path / "logs" / "audit-gateway.json")
    lifecycle.check_exposure(ClusterConfig(home=tmp_path, secure=True, host="node"))
    files = {"tls_certificate_file": tmp_path / "own.pem", "tls_key_file": tmp_path / "own.key"}
    own = ClusterConfig(home=tmp_path, secure=True, **files)
    assert (own.tls, own.tls_certificate_file) == ("parts", tmp_path / "own.pem")
    assert own.peer_tls is not None
    assert ClusterConfig(home=tmp_path).broker_config("broker-1").audit.file == ""


@pytest.mark.parametrize(
    "contrary",
    [
        {"insecure": True},
        {"tls_only": False},
        {"gateway_tls": "no"},
        {"auth": {"enabled": False}},
        {"auth": {"anonymous_role": "guest"}},
    ],
)
def test_a_secure_cluster_has_no_setting_that_says_the_contrary(tmp_path: Path, contrary: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfigError, match="says the contrary") as raised:
        ClusterConfig(home=tmp_path, secure=True, **contrary)
    assert raised.value.field is not None
    assert raised.value.field.startswith("secure,")


def test_a_secure_cluster_leaves_no_part_without_tls(tmp_path: Path) -> None:
    outer = {"tls_certificate_file": tmp_path / "own.pem", "tls_key_file": tmp_path / "own.key"}
    with pytest.raises(InvalidConfigError, match="bookies and the metadata store without TLS") as raised:
        ClusterConfig(home=tmp_path, secure=True, tls="files", **outer)
    assert raised.value.field == "secure,tls"
    inner = {f"internal_{name}": path for name, path in outer.items()} | {"internal_tls_ca_file": tmp_path / "ca.pem"}
    assert ClusterConfig(home=tmp_path, secure=True, tls="files", **outer, **inner).peer_tls is not None


def test_a_gateway_has_a_port_for_https_beside_the_plain_one(tmp_path: Path) -> None:
    both = ClusterConfig(home=tmp_path, tls="auto", gateway_tls_port=8443)
    assert not both.gateway_tls
    made = both.gateway_config()
    assert (made.tls_port, made.tls_certificate_file) == (8443, str(tmp_path / "certificates" / "parts.pem"))
    for contrary in ({"tls": "auto", "gateway_tls": True}, {"secure": True}, {"tls": "auto", "tls_only": True}, {}):
        with pytest.raises(InvalidConfigError):
            ClusterConfig(home=tmp_path, gateway_tls_port=8443, **contrary)


MUTUAL: dict[str, Any] = {"tls": "auto", "tls_require_client_certificate": True, "tls_only": True}


@pytest.mark.parametrize(
    ("given", "doors"),
    [
        ({"tls_only": False}, [r"plain port of the brokers \(tls_only\)"]),
        ({"tls_only": False, "gateway_tls": False}, [r"brokers \(tls_only\)", r"the gateway \(gateway_tls\)"]),
        (dict.fromkeys(INTERNAL_TLS), ["the bookies", "the embedded metadata store"]),
        ({**dict.fromkeys(INTERNAL_TLS), "metadata_url": "etcd://h:1/p"}, ["can use the bookies .internal_tls"]),
    ],
)
def test_required_certificates_leave_no_door_open(tmp_path: Path, given: dict[str, Any], doors: list[str]) -> None:
    with pytest.raises(InvalidConfigError, match=".*".join(doors)) as raised:
        lifecycle.up(ClusterConfig(home=tmp_path / "home", **{**MUTUAL, **given}))
    assert raised.value.field == "tls_require_client_certificate"
    assert not (tmp_path / "home").exists()


def test_required_certificates_are_enough_where_every_door_asks_for_them(tmp_path: Path) -> None:
    lifecycle.check_doors(ClusterConfig(home=tmp_path, **MUTUAL))
    lifecycle.check_doors(ClusterConfig(home=tmp_path, **{**MUTUAL, "gateway": False, "gateway_tls": False}))
    lifecycle.check_doors(ClusterConfig(home=tmp_path, tls="auto"))  # they are not required


@pytest.mark.parametrize("given", [{}, {"tls": "auto", "gateway_tls": False}])
def test_plain_ports_are_closed_only_where_there_are_others(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfigError) as raised:
        ClusterConfig(tls_only=True, **given)
    assert raised.value.field == "tls_only"


def test_the_gateway_of_a_cluster_asks_trusts_and_shows_what_brokers_do(tmp_path: Path) -> None:
    config = ClusterConfig(home=tmp_path / "home", **MUTUAL)
    lifecycle._make_certificates(config, lambda _: None)
    gateway, broker = config.gateway_config(), config.broker_config("broker-1", tls_port=0)
    assert gateway.tls == broker.tls
    assert broker.tls_only
    assert gateway.broker_tls is not None
    ClientTls(gateway.broker_tls)
    assert (gateway.broker_tls.ca, gateway.broker_tls.certificate) == (
        gateway.tls_ca_file,
        gateway.tls_certificate_file,
    )
    own = ClusterConfig(home=tmp_path / "home", tls="auto", tls_trust_file=tmp_path / "public.pem").gateway_config()
    assert own.broker_ca_file == str(tmp_path / "public.pem")
    plain = ClusterConfig().gateway_config()
    assert (plain.tls, plain.broker_tls) == (None, None)


def test_tls_between_the_parts_takes_all_three_files() -> None:
    with pytest.raises(InvalidConfigError, match="give internal_tls_certificate_file, internal_tls_key_file"):
        ClusterConfig(internal_tls_ca_file="ca.pem")


def test_certificates_are_shown_and_renewed(tmp_path: Path) -> None:
    CertificateAuthority(tmp_path / "certificates").ensure()
    shown = CliRunner().invoke(app, ["certs", "show", "--home", str(tmp_path), "--json"])
    before = json.loads(shown.stdout)["certificates"]
    assert [one["subject"] for one in before][1:] == ["CN=cluster", "CN=admin"]
    renewed = CliRunner().invoke(app, ["certs", "renew", "--home", str(tmp_path), "--host", "b.example.org", "--json"])
    after = json.loads(renewed.stdout)["certificates"]
    assert "b.example.org" in after[1]["names"]
    assert before[0] == after[0]
