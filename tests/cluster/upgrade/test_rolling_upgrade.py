"""A cluster that was started by the previous release gets the present one, while clients publish and acknowledge."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pulsar
import pytest

from heliograph.cluster.ports import pick_free
from tests.chaos.history import read_all
from tests.cluster.support.live_cluster import wait_for
from tests.machines.load import load
from tests.patience import START_SECONDS
from tests.previous_release import NEXT, PREVIOUS, ROOT, copy_present, unpack_previous

pytestmark = [pytest.mark.cluster, pytest.mark.full, pytest.mark.timeout(1_800)]

HELIO = (sys.executable, "-c", "import sys; from heliograph.cli.app import main; sys.exit(main())")
COMMAND_SECONDS = 1_200.0
PARTS = {
    *(f"bookie-{number}" for number in (1, 2, 3)),
    *("broker-1", "broker-2", "auditor", "gateway", "metadata", "operator"),
}
CRASHED = ("bookie-2", "broker-1", "auditor", "gateway", "metadata", "operator")  # it reports differently from then on
SETTINGS = f"""
bookies = 3
brokers = 2
ensemble_size = 2
write_quorum = 2
ack_quorum = 2
gateway_port = 0
dashboard_port = 0
ray_object_store_bytes = {100 << 20}
start_timeout_ms = {START_SECONDS * 1_000}
audit_interval_ms = 5000
"""


@dataclass
class Installed:
    """A machine with an installation that is a link to code, and the commands of that installation."""

    link: Path
    home: Path

    @property
    def settings(self) -> Path:
        return self.home / "cluster.toml"

    def install(self, code: Path) -> None:
        made = self.link.with_suffix(".next")
        made.symlink_to(code)
        made.replace(self.link)

    def helio(self, *arguments: str, code: Path | None = None, exit_code: int | None = 0) -> Any:
        """Run a command of the installation, or of other code, and return its result."""
        hidden = ("RAY_", "HELIOGRAPH_", "PYTHONPATH")
        environment = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
        environment["PYTHONPATH"] = str(code or self.link)
        begun = time.monotonic()
        done = subprocess.run(
            [*HELIO, *arguments, "--json", "--home", str(self.home)],
            env=environment,
            cwd=self.home,
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS,
            check=False,
        )
        print(f"helio {' '.join(arguments)}: {time.monotonic() - begun:.0f} s")  # shown when this fails
        assert exit_code in (None, done.returncode), f"{done.stdout[-2000:]} {done.stderr[-3000:]}"
        return json.loads(done.stdout)

    def status(self, code: Path | None = None) -> dict[str, Any]:
        """Return what ``helio status`` of the installation, or of other code, shows, healthy or not."""
        found: dict[str, Any] = self.helio("status", code=code, exit_code=None)
        return found

    def actors(self, code: Path | None = None) -> dict[str, Mapping[str, Any]]:
        """Return the parts, by name."""
        return {actor["name"]: actor for actor in self.status(code)["actors"]}


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Installed]:
    """A machine with the previous release, and the settings of a cluster that does not run yet."""
    made = Installed(tmp_path / "code", tmp_path / "h")
    made.install(unpack_previous(tmp_path / "old"))
    made.home.mkdir()
    made.settings.write_text(f"{SETTINGS}broker_port = {pick_free()}\n")
    try:
        yield made
    finally:
        made.helio("down", "--delete-data", code=ROOT, exit_code=None)  # an older one may not read what is there


def test_a_running_cluster_goes_to_the_next_release_and_back_unnoticed(machine: Installed, tmp_path: Path) -> None:
    machine.helio("up")
    new = copy_present(tmp_path / "new", NEXT)
    machine.helio("namespaces", "policies", "set", "public/default", "deduplication=true")
    before = machine.actors()
    assert set(before) == PARTS
    service_url = machine.status()["service_urls"]
    url = "pulsar://" + ",".join(each.removeprefix("pulsar://") for each in service_url)
    with load(url, 1) as made:
        made.begin_fault()
        refused = machine.helio("restart", "--rolling", code=new, exit_code=1)
        assert f"here {NEXT} is installed" in refused["error"]["message"]
        machine.install(new)
        for name in CRASHED:  # they start with the code that is there now, as the old code made them
            _require_told(machine, before)
            _crash(machine, name, tmp_path / "old")
        made.wait_for_more()
        done = machine.helio("restart", "--rolling")
        assert done["done"]
        made.wait_for_more()
    for line in (machine.home / "logs" / "operator.log").read_text().splitlines():
        if "whole" in line or "restarting" in line:
            print(line)
    steps = done["versions"]
    assert set(steps) == PARTS
    assert {step["to"] for step in steps.values()} == {NEXT}
    assert (steps["broker-1"]["from"], steps["broker-2"]["from"]) == (NEXT, str(PREVIOUS))
    wait_for(lambda: bool(machine.status()["healthy"]), START_SECONDS, "not healthy")
    after = machine.actors()
    assert {actor["version"] for actor in after.values()} == {NEXT}
    assert not {name for name in PARTS if after[name]["pid"] == before[name]["pid"]}
    with load(url, 2) as made_later:  # and back, by the command of the release before
        machine.install(tmp_path / "old")
        assert machine.helio("restart", "--rolling")["done"]
        made_later.wait_for_more()
    assert {actor["version"] for actor in machine.actors().values()} == {str(PREVIOUS)}
    client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    for stream in (*made.streams, *made_later.streams):
        assert read_all(client, stream.topic) == list(range(stream.publisher.sent)), "each message once, in order"
    client.close()


def test_a_cluster_that_this_release_started_goes_back_when_its_secret_is_in_its_settings(
    machine: Installed, tmp_path: Path
) -> None:
    """The previous release gave none to clusters on loopback, and looks for none there but in the settings."""
    machine.install(copy_present(tmp_path / "new", NEXT))
    machine.helio("up")
    machine.helio("produce", "greetings", "hello")
    secret = (machine.home / "cluster.secret").read_text()
    with machine.settings.open("a") as file:
        file.write(f'cluster_secret = "{secret}"\n')
    machine.install(tmp_path / "old")
    assert machine.helio("restart", "--rolling")["done"]

    def is_back() -> bool:
        found = machine.status()
        return bool(found["healthy"]) and {actor["version"] for actor in found["actors"]} == {str(PREVIOUS)}

    wait_for(is_back, START_SECONDS, "not all parts are of the previous release")
    assert machine.helio("consume", "greetings", "--from", "earliest", "-n", "1")["value"] == "hello"


def _require_told(machine: Installed, parts: Collection[str]) -> None:
    """Check that the status of this release is of use beside an operator of the previous one, which does not report."""
    found = machine.status()
    assert found["healthy"], found
    assert "is of an earlier release" in found["operator_notes"][0]
    assert {actor["name"] for actor in found["actors"]} == set(parts)
    assert {actor["version"] for actor in found["actors"]} <= {str(PREVIOUS), NEXT}


def _crash(machine: Installed, name: str, old: Path) -> None:
    """End a part of the previous release, which runs in its actor's process, and wait until it serves again.

    Args:
        old: the code of that release, whose status asks Ray for processes.
    """
    pid = machine.actors(old)[name]["pid"]
    os.kill(pid, signal.SIGKILL)

    def is_back() -> bool:
        actor, found = machine.actors(old)[name], machine.status()
        now = next(each for each in found["actors"] if each["name"] == name)
        return bool(actor["pid"] not in (pid, None) and found["healthy"] and now["version"] == NEXT)

    wait_for(is_back, START_SECONDS, f"{name} does not serve again")
