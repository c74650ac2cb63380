"""The plugin of pytest, in test suites of its users."""

from __future__ import annotations

import sys
import tomllib

import pytest

from tests.rules.source import ROOT

pytestmark = pytest.mark.slow

pytest_plugins = "pytester"

PLUGIN = "heliograph.testing"
SUITE = """
import os

CLUSTERS = set()


def test_a_message_comes_back(heliograph_client, heliograph_topic):
    heliograph_client.producer(heliograph_topic).send(b"hello")
    with heliograph_client.reader(heliograph_topic, start="earliest") as reader:
        assert reader.receive(timeout=60).value == b"hello"


class TestNames:
    def test_a_topic_belongs_to_one_test_äö_and_starts_empty(self, heliograph_client, heliograph_topic):
        with heliograph_client.reader(heliograph_topic, start="earliest") as reader:
            assert not reader.has_message_available()


def test_a_module_has_one_cluster(heliograph_module_cluster, heliograph_cluster):
    assert heliograph_module_cluster.service_url != heliograph_cluster.service_url
    CLUSTERS.add(heliograph_module_cluster.service_url)


def test_a_module_has_one_cluster_still(heliograph_module_cluster):
    assert CLUSTERS == {heliograph_module_cluster.service_url}


def test_a_cluster_of_its_own_may_be_stopped(heliograph_own_cluster):
    with open("directories", "a") as kept:
        kept.write(str(heliograph_own_cluster.directory))
    heliograph_own_cluster.stop()


def test_settings_are_those_of_the_suite(heliograph_cluster):
    assert (heliograph_cluster.directory / "data" / "bookie-2").is_dir()
    with open("directories", "a") as kept:
        kept.write("\\n" + str(heliograph_cluster.directory))
"""
CONFTEST = """
import pytest

@pytest.fixture(scope="session")
def heliograph_settings():
    return {"bookies": 2}
"""


@pytest.fixture(autouse=True)
def this_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that starts elsewhere imports the package from here."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def test_a_suite_uses_the_fixtures_and_nothing_is_left(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(SUITE)
    ran = pytester.run(
        sys.executable, "-m", "pytest", "-p", PLUGIN, "-W", "error", "-p", "no:cacheprovider", timeout=300
    )
    ran.assert_outcomes(passed=6)
    directories = (pytester.path / "directories").read_text().splitlines()
    assert len(directories) == 2
    assert not any(pytester.path.joinpath(directory).exists() for directory in directories)


def test_a_suite_that_asks_for_nothing_loads_nothing(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import sys

        def test_nothing():
            assert not {"heliograph.standalone.local", "heliograph.client", "ray"} & set(sys.modules)
        """
    )
    pytester.run(sys.executable, "-m", "pytest", "-p", PLUGIN, timeout=300).assert_outcomes(passed=1)


def test_pytest_finds_the_plugin_under_its_own_name() -> None:
    """Under another name ``-p heliograph.testing`` would register it a second time, and pytest refuses that."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {PLUGIN: PLUGIN}
