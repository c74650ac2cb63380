"""What each machine of a cluster says of it: the same on all, and the truth while the head is away."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from tests.machines.network import wait_for
from tests.machines.site import Site, site_of
from tests.patience import START_SECONDS

PAGE = """
import ssl, sys, urllib.request
context = ssl.create_default_context(cafile=sys.argv[2])
print(urllib.request.urlopen(sys.argv[1] + "/status", context=context).read().decode())
"""

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900), pytest.mark.full]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Return a head and two machines that joined it, each with a bookie and a broker."""
    with site_of(Path(tmp_path_factory.mktemp("a")), 3) as made:
        with ThreadPoolExecutor() as pool:
            for joined in [pool.submit(join, made, number) for number in (1, 2)]:
                joined.result()
        wait_for(lambda: bool(made.status()["healthy"]), "all parts serve", START_SECONDS)
        yield made


def join(site: Site, number: int) -> None:
    site.helio(number, "join", site.head_address, "--label", "bookie=true,broker=true")


def test_two_machines_that_join_at_once_have_a_bookie_each(site: Site) -> None:
    placed = [site.parts_on(machine).keys() for machine in site.machines]
    assert [sum(name.startswith("bookie-") for name in names) for names in placed] == [2, 1, 1]
    assert sum(name.startswith("broker-") for names in placed for name in names) == 2, "as the settings say"
    assert max(sum(name.startswith("broker-") for name in names) for names in placed) == 1


def findings(site: Site, on: int, code: int = 0) -> list[dict[str, Any]]:
    """Return what ``helio doctor`` finds; it ends with this code, and a unit of systemd does not start after 1."""
    done = site.run(on, "doctor", "--json")
    assert done.returncode == code, done.stdout
    found: list[dict[str, Any]] = json.loads(done.stdout)["findings"]
    return found


def page(site: Site, on: int, gateway_url: str) -> dict[str, Any]:
    """Return what the gateway's ``/status`` says to a program on a machine."""
    command = site.command(on, sys.executable, "-c", PAGE, gateway_url, str(site.head_home / "certificates" / "ca.pem"))
    done = subprocess.run(command, env=site.environment(on), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("on", [0, 1, 2])
def test_a_healthy_cluster_is_healthy_everywhere(site: Site, on: int) -> None:
    status = json.loads(site.helio(on, "status", "--json"))
    assert status["healthy"]
    assert status["bookies_available"] == ["bookie-1", "bookie-2", "bookie-3", "bookie-4"]
    assert {actor["name"] for actor in status["actors"]} == {actor["name"] for actor in site.status()["actors"]}
    shown = page(site, on, status["gateway_url"])
    assert (shown["healthy"], shown["findings"]) == (True, [])
    assert {part["name"] for part in shown["parts"]} == {actor["name"] for actor in status["actors"]}
    store = site.run(on, "metadata", "status")
    assert "no cluster runs" not in store.stdout + store.stderr
    assert store.returncode == 0 or "HELIOGRAPH_CLUSTER_SECRET" in store.stderr, "only the head has the secret"
    found = findings(site, on)
    assert [each for each in found if each["severity"] == "problem"] == []
    said = " ".join(f"{each['found']} {each['way_out']}" for each in found)
    assert "programs of this machine" not in said, "the broker is open to other machines"
    for wrong in ("another cluster", "start a cluster", "no cluster runs"):
        assert wrong not in said


@pytest.mark.parametrize("on", [0, 1, 2])
def test_each_machine_lists_the_same_machines_and_bookies(site: Site, on: int) -> None:
    nodes = json.loads(site.helio(on, "nodes", "--json"))["nodes"]
    assert [node["address"] for node in nodes] == sorted(machine.address for machine in site.machines)
    assert {node["state"] for node in nodes} == {"ALIVE"}
    bookies = json.loads(site.helio(on, "bookies", "list", "--json"))["bookies"]
    assert {(bookie["name"], bookie["state"]) for bookie in bookies} == {
        (f"bookie-{number}", "writable") for number in range(1, 5)
    }
    at = {name: node["address"] for node in nodes for name in node["parts"]}
    assert all(bookie["home"] == at[bookie["name"]] for bookie in bookies)


def test_a_head_that_lost_its_power_may_be_started_by_its_unit(site: Site) -> None:
    site.machines[0].power_off()
    assert [each["check"] for each in findings(site, 0) if each["severity"] == "problem"] == []
    site.up()
    for number in (1, 2):
        site.helio(number, "join")
    wait_for(lambda: bool(site.status()["healthy"]), "the cluster is healthy again", START_SECONDS)


def test_a_member_whose_head_is_away_says_so(site: Site) -> None:
    head, on = site.machines[0], 1
    gateway_url = json.loads(site.helio(on, "status", "--json"))["gateway_url"]
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
        if head.address not in gateway_url:
            shown = page(site, on, gateway_url)
            assert not shown["healthy"]
            assert shown["verdict"].startswith("unknown")
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
