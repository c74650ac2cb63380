"""Every part restarted one after the other, with the same code and with that of the next release."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from heliograph.base.version import heliograph_version, own_release
from tests.machines.scenarios.stage import Stage
from tests.previous_release import copy_present

RESTART_SECONDS = 1_800  # of all parts, one after the other, on a machine with much other work


def rolling_restart(stage: Stage) -> None:
    """All parts are restarted under clients, and each has another process then."""
    before = _processes(stage)
    with stage.load() as load:
        _restart(stage)
        load.wait_for_more()
        stage.settle()
    after = _processes(stage)
    same = sorted(name for name, pid in before.items() if after.get(name) == pid)
    assert not same, f"not restarted: {', '.join(same)}"


def rolling_upgrade(stage: Stage) -> None:
    """All parts get the code of the next release under clients, and then that of this one again."""
    release = own_release()
    following = f"{release.major}.{release.minor + 1}.0"
    code = copy_present(Path(stage.cluster.directory) / "next", following)
    try:
        with stage.load() as load:
            stage.cluster.install(code)
            assert _restart(stage) == {following}
            load.wait_for_more()
            stage.settle()
            stage.cluster.install(None)
            assert _restart(stage) == {heliograph_version()}
            load.wait_for_more()
            stage.settle()
    finally:
        stage.cluster.install(None)
        shutil.rmtree(code)


def _processes(stage: Stage) -> dict[str, int]:
    """Return the pids by part, of those that the status knows: Ray's dashboard may not answer."""
    return {actor["name"]: actor["pid"] for actor in stage.cluster.status()["actors"] if actor["pid"] is not None}


def _restart(stage: Stage) -> set[str]:
    """Restart all parts, and return the versions that they have then."""
    stage.say("all parts are restarted, one after the other")
    done = json.loads(stage.cluster.helio("restart", "--rolling", "--json", seconds=RESTART_SECONDS))
    assert done["done"], done
    stage.say(f"restarted: {', '.join(done['restart_done']) or 'all'}")
    return {step["to"] for step in done["versions"].values()}
