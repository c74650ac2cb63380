"""The cluster's own settings: defaults, environment, and errors that name what contradicts."""

from pathlib import Path

import pytest

from heliograph.base.errors import BadRequestError, InvalidConfigError, InvalidQuorumError
from heliograph.cluster.config import ClusterConfig


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in list(os.environ):
        if name.startswith("HELIOGRAPH_"):
            monkeypatch.delenv(name)


def test_defaults_hold_together() -> None:
    config = ClusterConfig()
    assert (config.ensemble_size, config.write_quorum, config.ack_quorum) == (3, 3, 2)
    assert config.bookies >= config.ensemble_size
    assert config.home_directory == Path("~/.heliograph/heliograph").expanduser()
    assert config.data_root == config.home_directory / "data"


def test_environment_fills_in_and_arguments_win(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HELIOGRAPH_BOOKIES", "5")
    monkeypatch.setenv("HELIOGRAPH_BROKERS", "4")
    monkeypatch.setenv("HELIOGRAPH_STATE_ROOT", str(tmp_path))
    config = ClusterConfig(brokers=1, namespace="test")
    assert (config.bookies, config.brokers) == (5, 1)
    assert config.home_directory == tmp_path / "test"


def test_every_setting_says_what_it_is() -> None:
    for name, field in ClusterConfig.model_fields.items():
        assert field.description or name == "host", name


@pytest.mark.parametrize(
    ("settings", "kind", "field"),
    [
        ({"bookies": 2}, InvalidQuorumError, "bookies"),
        ({"ack_quorum": 4}, InvalidQuorumError, "ensemble_size,write_quorum,ack_quorum"),
        ({"ack_quorum": 0}, InvalidQuorumError, "ensemble_size,write_quorum,ack_quorum"),
        ({"write_quorum": 1}, InvalidQuorumError, "ensemble_size,write_quorum,ack_quorum"),
        ({"bookies": 0}, InvalidConfigError, "bookies"),
        ({"brokers": "many"}, InvalidConfigError, "brokers"),
        ({"gateway_port": 70_000}, InvalidConfigError, "gateway_port"),
        ({"gateway_port": 6650}, InvalidConfigError, "gateway_port"),
        ({"max_message_bytes": 6 << 20}, InvalidConfigError, "max_message_bytes"),
        ({"namespace": "no spaces"}, InvalidConfigError, "namespace"),
        ({"metadata_url": "mysql://x"}, InvalidConfigError, "metadata_url"),
        ({"actor_cpus": -1}, InvalidConfigError, "actor_cpus"),
        ({"colour": "red"}, InvalidConfigError, "colour"),
        ({"tls_key_file": "k.pem"}, InvalidConfigError, "tls_certificate_file,tls_key_file"),
        ({"gateway_tls": True}, InvalidConfigError, "tls_certificate_file"),
        ({"tls_require_client_certificate": True}, InvalidConfigError, "tls_ca_file"),
        (
            {"tls_certificate_file": "c.pem", "tls_key_file": "k.pem", "broker_tls_port": 6650},
            InvalidConfigError,
            "broker_tls_port",
        ),
    ],
)
def test_a_bad_setting_is_named(settings: dict[str, object], kind: type[BadRequestError], field: str) -> None:
    with pytest.raises(kind) as caught:
        ClusterConfig(**settings)
    assert caught.value.field == field
    assert field.split(",")[0].replace("_", " ") in str(caught.value).replace("_", " ")


def test_a_bad_environment_is_named_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HELIOGRAPH_BOOKIES", "0")
    with pytest.raises(InvalidConfigError) as caught:
        ClusterConfig()
    assert caught.value.field == "bookies"
    assert caught.value.limit == ">= 1"


def test_free_ports_do_not_collide() -> None:
    assert ClusterConfig(metadata_port=0, broker_port=0, gateway_port=0, dashboard_port=0).broker_port == 0


def test_the_password_of_the_metadata_store_is_kept_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HELIOGRAPH_METADATA_PASSWORD", "hunter2")
    config = ClusterConfig(metadata_url="etcds://me@h1:2379,h2:2379/p")
    assert config.metadata_password is not None
    assert config.metadata_password.get_secret_value() == "hunter2"
    assert "hunter2" not in repr(config)
    with pytest.raises(InvalidConfigError, match="metadata_password"):
        ClusterConfig(metadata_url="etcd://me:hunter2@h1/p")
    with pytest.raises(InvalidConfigError, match="metadata_password"):
        ClusterConfig(metadata_url="zk://me:hunter2@h1/p")
    with pytest.raises(InvalidConfigError, match="etcd://"):
        ClusterConfig(metadata_url="redis://h1")
