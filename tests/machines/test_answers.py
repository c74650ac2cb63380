"""What each machine of a cluster says of it: the same on all, and the truth while the head is away."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from tests.machines.network import wait_for
from tests.machines.site import Site, site_of
from tests.patience import START_SECONDS

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900), pytest.mark.full]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Return a head and two machines that joined it, each with a bookie and a broker."""
    with site_of(Path(tmp_path_factory.mktemp("a")), 3) as made:
        for number in (1, 2):
            made.helio(number, "join", made.head_address, "--label", "bookie=true,broker=true")
        wait_for(lambda: bool(made.status()["healthy"]), "all parts serve", START_SECONDS)
        yield made


def findings(site: Site, on: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(site.run(on, "doctor", "--json").stdout)["findings"]
    return found


@pytest.mark.parametrize("on", [0, 1, 2])
def test_a_healthy_cluster_is_healthy_everywhere(site: Site, on: int) -> None:
    status = json.loads(site.helio(on, "status", "--json"))
    assert status["healthy"]
    assert status["bookies_available"] == ["bookie-1", "bookie-2", "bookie-3", "bookie-4"]
    assert {actor["name"] for actor in status["actors"]} == {actor["name"] for actor in site.status()["actors"]}
    store = site.run(on, "metadata", "status")
    assert "no cluster runs" not in store.stdout + store.stderr
    assert store.returncode == 0 or "HELIOGRAPH_CLUSTER_SECRET" in store.stderr, "only the head has the secret"
    found = findings(site, on)
    assert [each for each in found if each["severity"] == "problem"] == []
    said = " ".join(f"{each['found']} {each['way_out']}" for each in found)
    assert "programs of this machine" not in said, "the broker is open to other machines"
    for wrong in ("another cluster", "start a cluster", "no cluster runs"):
        assert wrong not in said


def test_a_member_whose_head_is_away_says_so(site: Site) -> None:
    head, on = site.machines[0], 1
    head.pull_the_cable()
    try:
        for command in (("status",), ("metadata", "status"), ("topics", "list")):
            begun = monotonic()
            done = site.run(on, *command)
            said = done.stdout + done.stderr
            print(f"{command}, after {monotonic() - begun:.0f} s: {said}")
            assert done.returncode != 0, command
            assert "helio up" not in said, f"{command}: nobody is advised to start a second cluster"
            assert "no cluster runs" not in said, command
            assert "Traceback" not in said, command
        (cluster,) = (each for each in findings(site, on) if each["check"] == "cluster")
        assert cluster["severity"] == "warning"
        assert head.address in cluster["found"]
        assert "start the head on its own machine" in cluster["way_out"]
        assert head.address in site.run(on, "status").stderr + site.run(on, "status").stdout
    finally:
        head.plug_in()
    for number in (1, 2):  # Ray ends nodes whose head was away for long
        site.helio(number, "join")
    wait_for(lambda: bool(site.status()["healthy"]), "the cluster is healthy again", START_SECONDS)
    assert json.loads(site.helio(on, "status", "--json"))["healthy"]
