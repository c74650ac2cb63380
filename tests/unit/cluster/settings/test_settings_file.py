"""The file that keeps a cluster's settings, the commands that show and change it, settings of one node, and
defaults."""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from heliograph.actors.bookie.config import BookieConfig
from heliograph.base.errors import InvalidConfigError, InvalidQuorumError
from heliograph.base.home import ClusterHome
from heliograph.cli.app import app
from heliograph.cluster.config import ClusterConfig
from heliograph.cluster.lifecycle import keep_settings
from heliograph.cluster.setting_report import given, report_of
from heliograph.cluster.settings.declared import default_bookies, default_brokers, usable_cores
from heliograph.cluster.settings.file import SettingsFile
from heliograph.cluster.settings.location import FILE_NAME
from heliograph.cluster.settings.nodes import on_node

SECRET = "a secret of thirty-two characters"


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    for name in list(os.environ):
        if name.startswith("HELIOGRAPH_"):
            monkeypatch.delenv(name)
    directory = tmp_path / "home"
    monkeypatch.setenv("HELIOGRAPH_HOME", str(directory))
    ClusterHome(directory).prepare()
    return directory


def started(home: Path, **settings: object) -> list[str]:
    """Keep the settings as a start does; return what it says."""
    lines: list[str] = []
    keep_settings(ClusterConfig(home=home, **settings), ClusterHome(home), lines.append)
    return lines


def helio(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["config", *arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_what_a_cluster_was_first_started_with_it_is_started_with_again(home: Path) -> None:
    assert len(started(home, bookies=5, broker={"balance": {"shed_gap": 0.5}}, gateway=False, tls="auto")) == 1
    again = ClusterConfig(home=home)
    assert (again.bookies, again.gateway, again.tls) == (5, False, "auto")
    assert again.broker_config("b").balance.shed_gap == 0.5
    values = tomllib.loads((home / FILE_NAME).read_text())
    assert set(values) == {
        "ack_quorum", "bookies", "broker", "brokers", "ensemble_size", "gateway", "tls", "write_quorum"
    }  # fmt: skip
    assert (home / FILE_NAME).stat().st_mode & 0o777 == 0o600


def test_a_later_start_with_other_settings_says_that_they_do_not_last(home: Path) -> None:
    started(home, bookies=5)
    before = (home / FILE_NAME).read_text()
    assert started(home) == []
    [line] = started(home, bookies=4)
    assert "bookies = 4 for this start only" in line
    assert (home / FILE_NAME).read_text() == before


def test_a_file_that_holds_a_secret_is_closed_to_others(home: Path) -> None:
    file = home / FILE_NAME
    for held, mode in (
        (f'cluster_secret = "{SECRET}"', 0o600),
        (f'cluster_secret = "/{SECRET}"', 0o600),  # no place of a file: base64 may begin so
        ("bookies = 3", 0o644),
    ):
        file.write_text(f'{held}\n[auth]\ntoken_secret_key = "/a/file"\n')
        file.chmod(0o644)
        ClusterConfig(home=home)
        assert file.stat().st_mode & 0o777 == mode
    file.write_text('[auth]\ntoken_secret_key = "bm90IGEgcGxhY2Ugb2YgYSBmaWxlLCBidXQgYSBrZXk="\n')
    ClusterConfig(home=home)
    assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make a file of another user")
def test_a_file_of_another_user_that_holds_a_secret_is_refused(home: Path, tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text(f'cluster_secret = "{SECRET}"\n')
    os.chown(file, 65_534, -1)
    with pytest.raises(InvalidConfigError, match="holds cluster_secret, and uid 65534") as raised:
        ClusterConfig(home=home, config_file=file)
    assert raised.value.field == "cluster_secret"


def test_secrets_are_not_in_the_file(home: Path) -> None:
    started(home, cluster_secret=SECRET)
    assert SECRET not in (home / FILE_NAME).read_text()


def test_a_section_and_the_switch_of_its_name(home: Path) -> None:
    started(home, gateway={"cluster_name": "east"})
    assert ClusterConfig(home=home).gateway_config().cluster_name == "east"


def test_set_keeps_what_the_owner_wrote(home: Path) -> None:
    file = home / FILE_NAME
    file.write_text("# ours\nbookies = 4  # one more\n\n[broker]\n# quiet\nconnections_max = 9\n")
    helio("set", "brokers", "3")
    helio("set", "broker.balance.shed_gap", "0.5", "--in-file")
    helio("set", "connections_max", "10", "--in-file")
    text = file.read_text()
    assert all(line in text for line in ("# ours", "bookies = 4  # one more", "# quiet"))
    made = ClusterConfig(home=home)
    assert (made.brokers, made.bookies) == (3, 4)
    assert made.broker_config("b").connections_max == 10
    helio("unset", "brokers")
    assert ClusterConfig(home=home).brokers == default_brokers(usable_cores())


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("bokies", "4", "the nearest name is bookies"),
        ("ack_quorum", "9", "ensemble >= write quorum >= ack quorum"),
        ("bookie.read_threads", "many", "bookie.read_threads"),
        ("home", "/tmp", "no setting named home"),
    ],
)
def test_what_is_no_configuration_is_not_written(home: Path, name: str, value: str, message: str) -> None:
    file = home / FILE_NAME
    file.write_text("bookies = 3\n")
    with pytest.raises((InvalidConfigError, InvalidQuorumError)) as caught:
        CliRunner().invoke(app, ["config", "set", name, value, "--in-file"], catch_exceptions=False)
    assert message in f"{caught.value} {caught.value.limit}"
    assert file.read_text() == "bookies = 3\n"
    assert [path.name for path in home.iterdir() if path.name.startswith(FILE_NAME)] == [FILE_NAME]


def test_where_a_setting_comes_from_is_told(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / FILE_NAME).write_text("bookies = 4\nbrokers = 3\n")
    monkeypatch.setenv("HELIOGRAPH_BROKERS", "5")
    shown = json.loads(helio("show", "--json"))["settings"]
    assert shown == {"bookies": {"value": 4, "origin": "file"}, "brokers": {"value": 5, "origin": "environment"}}
    explained = json.loads(helio("explain", "balance.shed_gap", "--json"))
    assert explained["environment variable"] == "HELIOGRAPH_BROKER__BALANCE__SHED_GAP"
    assert explained["changes in brokers that run"] is True
    assert len(json.loads(helio("show", "--all", "--json"))["settings"]) > 200


def test_the_difference_from_what_runs(home: Path) -> None:
    (home / FILE_NAME).write_text("bookies = 4\n")
    assert json.loads(helio("diff", "--json"))["runs"] is False
    ClusterHome(home).keep_started_with(given(ClusterConfig(home=home)))
    (home / FILE_NAME).write_text("bookies = 5\nbrokers = 2\n")
    found = json.loads(helio("diff", "--json"))
    assert (found["runs"], found["settings"]) == (
        True,
        [{"name": "bookies", "default": 3, "configured": 5, "running": 4}],
    )


def test_a_secret_is_not_shown(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HELIOGRAPH_CLUSTER_SECRET", SECRET)
    assert SECRET not in helio("show", "--all", "--json")
    config = ClusterConfig(home=home)
    assert report_of("cluster_secret", config, SettingsFile(home / FILE_NAME)).value == "(set)"


def test_a_key_that_is_a_setting_itself_is_not_shown_but_its_file_is(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HELIOGRAPH_AUTH__TOKEN_SECRET_KEY", SECRET)
    monkeypatch.setenv("HELIOGRAPH_AUTH__GATEWAY_TOKEN", "file:///etc/heliograph/gateway.token")
    ClusterHome(home).keep_started_with({"auth.token_secret_key": SECRET + SECRET})
    assert SECRET not in helio("show", "--all", "--json") + helio("diff", "--json")
    config, file = ClusterConfig(home=home), SettingsFile(home / FILE_NAME)
    assert report_of("auth.token_secret_key", config, file).value == "(set)"
    assert report_of("auth.gateway_token", config, file).value == "file:///etc/heliograph/gateway.token"


@pytest.mark.parametrize("variable", ["HELIOGRAPH_BROKRES", "HELIOGRAPH_BROKER__BALANCE__SHEDGAP", "HELIOGRAPH_DEBUGG"])
def test_a_mistyped_variable_is_refused_with_the_nearest_name(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "3")
    with pytest.raises(InvalidConfigError, match="the nearest name is"):
        ClusterConfig()


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("HELIOGRAPH_BROKERS_PORT", "tcp://10.0.0.1:6650"),
        ("HELIOGRAPH_BROKER_SERVICE_PORT", "6650"),
        ("HELIOGRAPH_BROKER_PORT_6650_TCP_ADDR", "10.0.0.1"),
        ("HELIOGRAPH_OF_ANOTHER_PROGRAM", "x"),
    ],
)
def test_variables_of_others_are_not_ours(variable: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, value)
    assert ClusterConfig().brokers == default_brokers(usable_cores())


def bookie(name: str = "bookie-1") -> BookieConfig:
    return ClusterConfig().bookie_config(name, Path("/data") / name)


def test_a_node_has_disks_and_caches_of_its_own() -> None:
    nodes = {"10.0.0.2": {"bookie": {"journal_directories": ["/nvme"], "data_directories": ["/hdd1", "/hdd2"]}}}
    config = ClusterConfig(nodes={**nodes, "storage-3": {"bookie": {"read_threads": 9}}})
    assert on_node(bookie(), ("10.0.0.1", "x", ""), config.nodes) == bookie()
    second = on_node(bookie("bookie-2"), ("10.0.0.2", "x", ""), config.nodes)
    assert second.journal_directories == (Path("/nvme/bookie-2/journal"),)
    assert second.data_directories == (Path("/hdd1/bookie-2/ledgers"), Path("/hdd2/bookie-2/ledgers"))
    assert on_node(bookie(), ("10.0.0.3", "storage-3", ""), config.nodes).read_threads == 9


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"bookies": {"read_threads": 9}}, "nodes.n.bookies is no kind of part"),
        ({"bookie": {"read_thread": 9}}, "the nearest name is nodes.n.bookie.read_threads"),
        ({"bookie": {"bookie_id": "x"}}, "no setting named nodes.n.bookie.bookie_id"),
        ({"bookie": {"read_threads": "x"}}, "nodes.n.bookie.read_threads"),
    ],
)
def test_what_no_node_can_have_is_refused(tables: dict[str, dict[str, object]], message: str) -> None:
    with pytest.raises(InvalidConfigError, match=message):
        ClusterConfig(nodes={"n": tables})


@pytest.mark.parametrize(("cores", "bookies", "brokers"), [(1, 3, 2), (2, 3, 2), (16, 3, 2), (64, 8, 8), (512, 16, 16)])
def test_parts_follow_the_cores_and_a_small_machine_has_as_many_as_before(
    cores: int, bookies: int, brokers: int
) -> None:
    assert (default_bookies(cores), default_brokers(cores)) == (bookies, brokers)


def test_a_container_counts_by_its_quota(tmp_path: Path) -> None:
    quota = tmp_path / "cpu.max"
    here = len(os.sched_getaffinity(0))
    assert usable_cores(quota) == here, "there is no such file"
    for text, cores in (("max 100000", here), ("50000 100000", 1), (f"{here * 100_000} 100000", here), ("odd", here)):
        quota.write_text(text)
        assert usable_cores(quota) == cores
