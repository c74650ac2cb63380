"""Sections of the cluster's configuration: every setting of every part can be set, from each source, and arrives."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from heliograph.actors.bookie.config import BookieConfig
from heliograph.actors.broker.policy_defaults import DELETE_MODES, QUOTA_ACTIONS, SCHEMA_COMPATIBILITIES
from heliograph.base.errors import InvalidConfigError
from heliograph.base.settings import default_of
from heliograph.cli.operations.cluster import up
from heliograph.cluster.config import ClusterConfig
from heliograph.cluster.deployment import _class_and_arguments
from heliograph.cluster.parts import Part
from heliograph.cluster.settings import declared
from heliograph.cluster.settings.declared import default_brokers, usable_cores
from heliograph.cluster.settings.location import FILE_NAME
from heliograph.cluster.settings.sections import SECTIONS
from heliograph.gateway.actor import GatewayActor
from heliograph.pipelines.reading.range_reader import _ledger_config

pytestmark = pytest.mark.slow

SETTINGS = {declared.name: declared for section in SECTIONS.values() for declared in section.settings()}
DECIDED = {name: section.decided() for name, section in SECTIONS.items()}
PHRASE = "the cluster setting "


LISTENER = "inside=pulsar://inside:6650"
COMPANIONS = {  # what has to be set with a setting
    "broker.internal_listener_name": ("advertised_listeners", LISTENER),
    "auth.token_audience": ("token_audience_claim", "aud"),
    "auth.token_audience_claim": ("token_audience", "here"),
}
PLACED = ("bookie.journal_directories", "bookie.data_directories")  # below which each bookie gets its own
NESTED = {
    "ledger": {"broker", "auditor"},
    "auth": {"broker", "gateway"},
}  # sections within others, which do not set them


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.startswith("HELIOGRAPH_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HELIOGRAPH_STATE_ROOT", str(tmp_path / "state"))


def table(full: str, value: Any) -> dict[str, Any]:
    """``broker.balance.rounds`` as nested tables."""
    section, _, rest = full.partition(".")
    for name in reversed(rest.split(".")):
        value = {name: value}
    return {section: {**value, **dict([COMPANIONS[full]] if full in COMPANIONS else [])}}


def candidates(default: Any) -> Iterator[Any]:
    if isinstance(default, bool):
        yield not default
    elif isinstance(default, int):
        yield from (default + 1, default - 1, 2 * default)
    elif isinstance(default, float):
        yield from (default * 0.97 or 1.0, default + 1.0, default + 0.01)
    elif isinstance(default, tuple):
        yield from (("one", "two"), ("https://one.example", "https://two.example"), ("10.0.0.1", "10.0.0.2"))
    else:
        yield from ("random", LISTENER, "inside", "both", "json", "DEBUG", "partitioned")
        yield from (*QUOTA_ACTIONS[1:], *DELETE_MODES[1:], *SCHEMA_COMPATIBILITIES[1:])


def other_value(full: str) -> Any:
    """A valid value of a setting that is not its default."""
    for value in candidates(SETTINGS[full].default):
        try:
            ClusterConfig(**table(full, value))
        except InvalidConfigError:
            continue
        return value
    raise AssertionError(f"no other value of {full} is valid")


def arrived(config: ClusterConfig, full: str) -> list[Any]:
    """The setting as the configurations have it that the actors get."""
    section, *path = full.split(".")
    values = []
    for kind in sorted(NESTED.get(section, {section})):
        found: Any
        if kind == "endpoint":  # no part of the cluster: `helio metadata serve` starts it
            found = config.endpoint_limits(container_check_ms=1)
        elif kind == "etcd":  # of every member
            found = config.etcd_config()
        elif kind == "logs":  # of every part
            found = config.logs_config()
        else:
            part = Part(f"{kind}-1", kind, directory=Path("/data"))
            found = _class_and_arguments(part, config, "memory://none", "")[1][2 if kind == "metadata" else 0]
        if section in NESTED:
            found = found.ledgers if section == "ledger" else getattr(found, section)
        for name in path:
            found = getattr(found, name)
        values.append(found)
    return values


def toml(full: str, value: Any) -> str:
    section, _, name = full.rpartition(".")
    written = list(value) if isinstance(value, tuple) else value
    text = f"[{section}]\n{name} = {str(value).lower() if isinstance(value, bool) else repr(written)}\n"
    return text + (f"{COMPANIONS[full][0]} = {COMPANIONS[full][1]!r}\n" if full in COMPANIONS else "")


@pytest.mark.parametrize("full", [full for full in SETTINGS if full not in PLACED])
def test_every_setting_arrives_from_every_source(full: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    value = other_value(full)
    assert value not in arrived(ClusterConfig(), full)
    assert set(arrived(ClusterConfig(**table(full, value)), full)) == {value}
    file = tmp_path / "settings.toml"
    file.write_text(toml(full, value))
    assert set(arrived(ClusterConfig(config_file=file), full)) == {value}
    in_environment = ", ".join(value) if isinstance(value, tuple) else str(value)
    monkeypatch.setenv("HELIOGRAPH_" + full.replace(".", "__").upper(), in_environment)
    if full in COMPANIONS:
        monkeypatch.setenv(f"HELIOGRAPH_{full.partition('.')[0]}__{COMPANIONS[full][0]}".upper(), COMPANIONS[full][1])
    assert set(arrived(ClusterConfig(), full)) == {value}


def all_fields(part: type[Any], prefix: str) -> Iterator[str]:
    for item in fields(part):
        default = default_of(item)
        if is_dataclass(default) and not isinstance(default, type):
            yield from all_fields(type(default), f"{prefix}{item.name}.")
        else:
            yield f"{prefix}{item.name}"


@pytest.mark.parametrize("section", SECTIONS)
def test_every_field_of_a_part_is_a_setting_or_decided(section: str) -> None:
    decided = {f"{section}.{name}" for name in DECIDED[section]}
    undecided = {
        name
        for name in all_fields(SECTIONS[section].part, f"{section}.")
        if name not in decided
        and not any(section in parts and name.startswith(f"{section}.{below}.") for below, parts in NESTED.items())
    }
    assert undecided == {full for full in SETTINGS if full.startswith(f"{section}.")}


@pytest.mark.parametrize(
    "name", sorted({name for decided in DECIDED.values() for name, by in decided.items() if by == PHRASE + name})
)
def test_what_the_parts_share_is_a_setting_of_the_cluster(name: str) -> None:
    assert name in ClusterConfig.model_fields


@pytest.mark.parametrize("full", SETTINGS)
def test_every_setting_says_what_it_means(full: str) -> None:
    assert SETTINGS[full].setting.meaning


def test_arguments_stand_above_the_environment_and_that_above_the_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / FILE_NAME).write_text(
        "bookies = 4\nbrokers = 4\nack_quorum = 3\n"
        "[bookie]\nread_threads = 4\ngc_interval_ms = 4\nspace_check_ms = 4\n[broker.balance]\nrounds = 4\n"
    )
    monkeypatch.setenv("HELIOGRAPH_BROKERS", "5")
    monkeypatch.setenv("HELIOGRAPH_BOOKIE__GC_INTERVAL_MS", "5")
    monkeypatch.setenv("heliograph_bookie__space_check_ms", "5")
    monkeypatch.setenv("HELIOGRAPH_BROKER__BALANCE__MOVES_MAX", "5")
    config = ClusterConfig(home=home, bookies=6, bookie={"space_check_ms": 6})
    bookie = config.bookie_config("bookie-1", tmp_path)
    assert (config.bookies, config.brokers, config.ack_quorum) == (6, 5, 3)
    assert (bookie.read_threads, bookie.gc_interval_ms, bookie.space_check_ms) == (4, 5, 6)
    balance = config.broker_config("broker-1").balance
    assert (balance.rounds, balance.moves_max, balance.shed_gap) == (4, 5, 0.25)


def test_a_named_file_takes_the_place_of_the_usual_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text("brokers = 4\nbookies = 4\n")
    other = tmp_path / "other.toml"
    other.write_text("brokers = 5\nnamespace = 'named'\n")
    assert ClusterConfig(home=tmp_path).brokers == 4
    config = ClusterConfig(home=tmp_path, config_file=other)
    assert (config.brokers, config.bookies, config.namespace) == (5, 3, "named")
    monkeypatch.setenv("HELIOGRAPH_CONFIG_FILE", str(other))
    assert ClusterConfig(home=tmp_path).brokers == 5
    monkeypatch.delenv("HELIOGRAPH_CONFIG_FILE")
    monkeypatch.setenv("HELIOGRAPH_HOME", str(tmp_path))
    assert ClusterConfig().brokers == 4


def test_the_usual_file_lies_below_the_home_of_the_namespace(tmp_path: Path) -> None:
    usual = tmp_path / "state" / "mine"
    usual.mkdir(parents=True)
    (usual / FILE_NAME).write_text("brokers = 4\n")
    assert ClusterConfig(namespace="mine").brokers == 4
    assert ClusterConfig().brokers == default_brokers(usable_cores())


def test_switches_and_sections_of_one_name_do_not_collide(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text("[gateway]\ncluster_name = 'east'\n[auditor]\nworker_poll_ms = 5\n")
    monkeypatch.setenv("HELIOGRAPH_GATEWAY", "false")
    config = ClusterConfig(config_file=file, auditor=False)
    assert not config.gateway
    assert not config.auditor
    assert config.gateway_config().cluster_name == "east"
    assert config.auditor_config().worker_poll_ms == 5
    monkeypatch.delenv("HELIOGRAPH_GATEWAY")
    assert ClusterConfig(gateway={"cluster_name": "west"}).gateway


def test_what_looks_like_a_section_and_belongs_to_others_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HELIOGRAPH_BOOKIE_CORRUPTION_ROUNDS", "5")
    monkeypatch.setenv("HELIOGRAPH_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("HELIOGRAPH_BOOKIE", "x")
    assert ClusterConfig() == ClusterConfig(bookie={})


@pytest.mark.parametrize(
    ("settings", "field", "says"),
    [
        ({"bookie": {"read_cash_bytes": 1}}, "bookie.read_cash_bytes", "nearest name is bookie.read_cache_bytes"),
        ({"broker": {"balance": {"shedgap": 1}}}, "broker.balance.shedgap", "nearest name is broker.balance.shed_gap"),
        ({"ledger": {"writer": {"quorum_wait": 1}}}, "ledger.writer.quorum_wait", "ledger.writer.quorum_wait_ms"),
        ({"bookeis": 4}, "bookeis", "nearest name is bookies"),
        ({"bokie": {"read_threads": 1}}, "bokie", "nearest name is bookie"),
        ({"bookie": 4}, "bookie", "bookie is a section"),
        ({"bookie": {"read_threads": "many"}}, "bookie.read_threads", "valid integer"),
        ({"bookie": {"read_threads": True}}, "bookie.read_threads", "a number is expected"),
        ({"broker": {"balance": 1}}, "broker.balance", "broker.balance = 1"),
    ],
)
def test_what_is_no_setting_is_named(settings: dict[str, Any], field: str, says: str) -> None:
    with pytest.raises(InvalidConfigError, match=says) as caught:
        ClusterConfig(**settings)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("settings", "field", "limit"),
    [
        ({"bookie": {"read_cache_bytes": -1}}, "bookie.read_cache_bytes", "at least 0 bytes"),
        ({"bookie": {"entry_log_bytes": 1 << 32}}, "bookie.entry_log_bytes", "at least 4096, at most 2147483648 bytes"),
        ({"broker": {"balance": {"rounds": 0}}}, "broker.balance.rounds", "at least 1"),
        ({"broker": {"keep_alive_seconds": 0}}, "broker.keep_alive_seconds", "above 0 s"),
        ({"broker": {"orphan_grace_seconds": 1}}, "broker.orphan_grace_seconds", "at least 6 session timeouts"),
        ({"auditor": {"task_retry_ms_max": 1}}, "auditor.task_retry_ms_max", ">= task_retry_ms"),
        ({"gateway": {"rest_consumers_max": 0}}, "gateway.rest_consumers_max", "at least 1"),
        ({"gateway": {"request_bytes_max": 9}}, "gateway.request_bytes_max", ">= max_message_bytes"),
        ({"ledger": {"tick_ms": 0}}, "ledger.tick_ms", "at least 1 ms"),
        (
            {"ledger": {"writer": {"in_flight_bytes_max": 9}}},
            "ledger.writer.in_flight_bytes_max",
            "0 < entry_bytes_max <= in_flight_bytes_max",
        ),
    ],
)
def test_a_value_out_of_range_is_named_in_full(settings: dict[str, Any], field: str, limit: str) -> None:
    with pytest.raises(InvalidConfigError) as caught:
        ClusterConfig(**settings)
    assert (caught.value.field, caught.value.limit) == (field, limit)
    assert field in str(caught.value)


def test_settings_that_contradict_each_other_are_named_in_full() -> None:
    with pytest.raises(InvalidConfigError) as caught:
        ClusterConfig(bookie={"full_share": 0.5})
    assert caught.value.field == "bookie.full_share,bookie.writable_share"
    assert "bookie.writable_share <= bookie.full_share" in str(caught.value)


@pytest.mark.parametrize(("section", "name"), [(section, name) for section in SECTIONS for name in DECIDED[section]])
def test_what_the_cluster_decides_is_refused_with_what_decides_it(
    section: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = f"{section}.{name}"
    with pytest.raises(InvalidConfigError) as caught:
        ClusterConfig(**table(full, "1"))
    assert caught.value.field == full
    assert f"{full} cannot be set: it is decided by {DECIDED[section][name]}" == str(caught.value)
    monkeypatch.setenv("HELIOGRAPH_" + full.replace(".", "__").upper(), "1")
    with pytest.raises(InvalidConfigError, match="it is decided by"):
        ClusterConfig()


@pytest.mark.parametrize(
    "name",
    [by.removeprefix(PHRASE) for decided in DECIDED.values() for by in decided.values() if by.startswith(PHRASE)],
)
def test_what_decides_is_a_setting(name: str) -> None:
    assert name in ClusterConfig.model_fields


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("bookies = \n", "is not valid TOML: Invalid value .*line 1"),
        ("[bookie]\nread_cash_bytes = 1\n", "nearest name is bookie.read_cache_bytes"),
        ("home = '/elsewhere'\n", r"home cannot be set in .*cluster\.toml"),
        ("namespace = 'other'\n", r"namespace cannot be set in .*cluster\.toml"),
        ("config_file = 'other.toml'\n", r"config_file cannot be set in .*cluster\.toml"),
    ],
)
def test_a_file_that_is_off_says_where(tmp_path: Path, content: str, says: str) -> None:
    (tmp_path / FILE_NAME).write_text(content)
    with pytest.raises(InvalidConfigError, match=says):
        ClusterConfig(home=tmp_path)


def test_a_named_file_has_to_exist(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigError, match="No such file") as caught:
        ClusterConfig(config_file=tmp_path / "none.toml")
    assert caught.value.field == "config_file"


def test_parts_of_the_cluster_get_what_the_cluster_decides(tmp_path: Path) -> None:
    config = ClusterConfig(
        host="::1", session_timeout_ms=4_000, max_message_bytes=1 << 20, audit_interval_ms=700, cluster_secret="x" * 16
    )
    bookie = config.bookie_config("bookie-7", tmp_path, rack="r1")
    assert bookie == BookieConfig(
        "bookie-7", (tmp_path / "journal",), (tmp_path / "ledgers",), "::1", rack="r1", session_timeout_ms=4_000,
        cluster_secret="x" * 16,
    )  # fmt: skip
    broker, auditor = config.broker_config("broker-1", port=6650), config.auditor_config()
    assert (broker.host, broker.port, broker.tls_port, broker.max_message_bytes) == ("::1", 6650, None, 1 << 20)
    assert (auditor.audit_interval_ms, auditor.session_timeout_ms) == (700, 4_000)
    assert {made.ledgers.cluster_secret for made in (broker, auditor)} == {"x" * 16}
    assert broker.ledgers.writer.entry_bytes_max == auditor.ledgers.writer.entry_bytes_max > 1 << 20


def test_the_gateway_takes_the_configuration_of_the_deployment() -> None:
    config = ClusterConfig(gateway_port=9, gateway={"cluster_name": "east"})
    assert repr(GatewayActor(config.gateway_config(port=9))) == "Gateway(127.0.0.1:9)"
    assert "hunter2" not in repr(config.gateway_config(metadata_url="etcd://me:hunter2@h1/p"))


def test_tasks_that_read_ledgers_take_the_section_from_their_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HELIOGRAPH_LEDGER__READER__SPECULATIVE_MS", "70")
    monkeypatch.setenv("HELIOGRAPH_CLUSTER_SECRET", "x" * 16)
    config = _ledger_config()
    assert (config.reader.speculative_ms, config.cluster_secret) == (70, None)  # they have a grant instead
    monkeypatch.setenv("HELIOGRAPH_LEDGER__READER__SPECULATIVE_MS", "0")
    with pytest.raises(InvalidConfigError) as caught:
        _ledger_config()
    assert caught.value.field == "ledger.reader.speculative_ms"
    monkeypatch.setenv("HELIOGRAPH_LEDGER__READER__SPECULATION_MS", "70")
    with pytest.raises(InvalidConfigError, match=r"nearest name is ledger\.reader\.speculative_ms"):
        _ledger_config()


def test_the_flags_of_helio_up_are_settings_and_show_their_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(declared, "usable_cores", lambda: 1)
    shown = {
        "3, or cores / 8": 3,
        "2, or cores / 8": 2,
        "yes": True,
        "no": False,
        "our own": None,
        "<home>/data": None,
        "<home>/cluster.toml": None,
        "one a node": None,
        "apart": None,  # unless lean
    }
    hints = get_type_hints(up, include_extras=True)
    for name, hint in hints.items():
        if name in ("as_json", "return", "home", "namespace", "watch"):
            continue
        text = hint.__metadata__[0].help.partition("[default: ")[2].rstrip("]")
        default = ClusterConfig.model_fields[name].get_default(call_default_factory=True, validated_data={})
        assert str(shown.get(text, text)) == str(default), name


def test_bookies_have_a_directory_on_each_disk_that_the_section_names(tmp_path: Path) -> None:
    config = ClusterConfig(
        bookie={"journal_directories": ["/nvme0"], "data_directories": "/disk0, /disk1"}, data_directory=tmp_path
    )
    bookie = config.bookie_config("bookie-2", tmp_path / "bookie-2")
    assert bookie.journal_directories == (Path("/nvme0/bookie-2/journal"),)
    assert bookie.data_directories == (Path("/disk0/bookie-2/ledgers"), Path("/disk1/bookie-2/ledgers"))
    only_journals = ClusterConfig(bookie={"journal_directories": ["/nvme0", "/nvme1"]})
    bookie = only_journals.bookie_config("bookie-1", tmp_path / "bookie-1")
    assert len(bookie.journal_directories) == 2
    assert bookie.data_directories == (tmp_path / "bookie-1" / "ledgers",)
    with pytest.raises(InvalidConfigError, match="journal_directories"):
        ClusterConfig(bookie={"journal_directories": ["/nvme0", "/nvme0"]})
