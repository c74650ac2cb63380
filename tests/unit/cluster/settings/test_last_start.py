"""The settings of the next start of a cluster, without flags: those of its file, or of its last start."""

from __future__ import annotations

from pathlib import Path

from heliograph.base.home import ClusterHome
from heliograph.cluster.config import ClusterConfig
from heliograph.cluster.setting_report import FILE, given, of_last_start


def started(home: ClusterHome, config: ClusterConfig) -> None:
    home.directory.mkdir(exist_ok=True)
    home.keep_started_with({**given(config), FILE: str(config.config_file or "")})


def test_a_file_elsewhere_is_read_again_and_flags_of_the_last_start_hold(tmp_path: Path) -> None:
    home, file = ClusterHome(tmp_path / "home"), tmp_path / "settings.toml"
    file.write_text("lost_bookie_delay_ms = 5000\n[bookie]\nread_threads = 7\n")
    config = ClusterConfig(
        home=home.directory, namespace="n", config_file=file, host="node", bookies=4, broker={"housekeeping_seconds": 9}
    )
    started(home, config)
    assert of_last_start("n", home) == config
    file.write_text("lost_bookie_delay_ms = 6000\n")
    found = of_last_start("n", home)
    assert (found.lost_bookie_delay_ms, found.host, found.bookies) == (6000, "node", 4)
    assert found.broker_config("broker-1").housekeeping_seconds == 9


def test_the_file_of_the_home_comes_first(tmp_path: Path) -> None:
    home = ClusterHome(tmp_path)
    started(home, ClusterConfig(home=tmp_path, namespace="n", bookies=4))
    assert of_last_start("n", home).bookies == 4
    (tmp_path / "cluster.toml").write_text("bookies = 5\n")
    assert of_last_start("n", home).bookies == 5


def test_without_a_last_start_there_are_the_defaults(tmp_path: Path) -> None:
    assert of_last_start("n", ClusterHome(tmp_path)) == ClusterConfig(home=tmp_path, namespace="n")
