"""Named actors of other programs in a cluster's Ray, also with names of parts: no part starts a second time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import ray

import heliograph
from heliograph.client import discovery
from heliograph.cluster.naming import stranger_note
from heliograph.pipelines.spark.java import java_environment
from tests.cluster.shared_process.foreign_actors import FOREIGN, answers, make
from tests.cluster.support.live_cluster import LiveCluster, start, wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1_200)]

NOTED_SECONDS = 120.0
LONG_SECONDS = 120.0  # of each program, in the full run
WATCHED_SECONDS = 25.0  # two rounds of the operator's questions to parts
SMALL: dict[str, Any] = {
    "bookies": 1,
    "ensemble_size": 1,
    "write_quorum": 1,
    "ack_quorum": 1,
    "brokers": 1,
    "operator": True,
}
FORMS: dict[str, dict[str, Any]] = {
    "lean": {"lean": True},
    "together": {"parts": "together"},
    "apart": {"parts": "apart"},
}
LONG = [pytest.param(form, marks=pytest.mark.full) for form in ("together", "apart")]


@pytest.fixture(scope="module", params=["lean", *LONG])
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    discovery.detach()  # from the Ray of other tests, which ``start`` would use
    name = f"strangers-{uuid.uuid4().hex[:8]}"
    running = start(tmp_path_factory.mktemp("strangers"), name, **SMALL, **FORMS[request.param])
    try:
        yield running
    finally:
        running.stop()


@pytest.fixture
def user(cluster: LiveCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[LiveCluster]:
    """Have this process be a user's program, which has joined no Ray yet. No part may start meanwhile."""
    discovery.detach()
    monkeypatch.setenv("RAY_ADDRESS", cluster.state.ray_address)
    before = starts(cluster.home)
    assert before
    yield cluster
    assert starts(cluster.home) == before


def starts(home: Path) -> dict[str, list[int]]:
    """Return the times of the starts of each part."""
    return {file.stem: json.loads(file.read_text())["times_ms"] for file in (home / "logs").glob("*.starts")}


@contextmanager
def publishing(cluster: LiveCluster, seconds: float) -> Iterator[heliograph.Producer]:
    """Connect, run the block, and publish for some time: each message is confirmed."""
    with (
        heliograph.connect(namespace=cluster.namespace) as client,
        client.producer("public/default/beside") as producer,
    ):
        yield producer
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            producer.send(b"goes on")
            time.sleep(0.2)


def test_named_actors_of_a_user_end_nothing(user: LiveCluster) -> None:
    with publishing(user, WATCHED_SECONDS):
        assert ray.get_runtime_context().namespace != user.namespace
        models = [make(kind, f"model-{kind.__name__}") for kind in FOREIGN]
        models += [make(kind, kind.__name__, namespace=user.namespace) for kind in FOREIGN]
    assert all(map(answers, models[:3]))


def test_an_actor_with_the_name_of_a_part_is_told_apart_and_left_alone(user: LiveCluster) -> None:
    user.attach()
    parts = discovery.actor_names(user.namespace)
    is_shared = len({user.pid(name) for name in parts}) == 1
    names = ["broker-7", "replicator-9", "metadata-3", "bookie-0"]
    if is_shared:  # parts of a shared process leave their names in Ray to others
        names += ["bookie-1", "broker-1", "operator", "gateway"]
    with publishing(user, WATCHED_SECONDS):
        kinds = (FOREIGN * 2)[: len(names)]
        actors = [make(kind, name, namespace=user.namespace) for kind, name in zip(kinds, names, strict=True)]
    notes = {stranger_note(name, user.namespace) for name in names}
    wait_for(lambda: notes <= {*noted(user)}, NOTED_SECONDS, "not noted")
    assert discovery.actor_names(user.namespace) == parts
    wait_for(lambda: user.report().is_healthy, 60, "not healthy")
    assert user.admin.topic_stats("beside")["msgInCounter"] >= 1
    assert all(answers(actor) for actor, kind in zip(actors, kinds, strict=True) if kind.__name__ != "Hanging")
    for actor in actors:
        ray.kill(actor)
    wait_for(lambda: not notes & {*noted(user)}, NOTED_SECONDS, "still noted")


@pytest.mark.parametrize("kind", ["data", *(pytest.param(kind, marks=pytest.mark.full) for kind in ("spark", "serve"))])
def test_what_makes_named_actors_itself_ends_nothing(user: LiveCluster, kind: str, tmp_path: Path) -> None:
    if kind == "serve":
        pytest.importorskip("ray.serve", reason="the extra `serve` of Ray is not installed", exc_type=ImportError)
    seconds = LONG_SECONDS if os.environ.get("FULL", "0") != "0" else 0.0
    environment = {**os.environ, **java_environment(os.environ), "HELIOGRAPH_NAMESPACE": user.namespace}
    environment |= {"HELIOGRAPH_HOME": str(user.home), "PYTHONPATH": str(Path(heliograph.__file__).parents[1])}
    command = [sys.executable, "-m", "tests.cluster.shared_process.users_program", kind, str(seconds)]
    with (tmp_path / "log").open("wb") as log:
        program = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        with publishing(user, 0.0) as producer:
            while program.poll() is None:
                producer.send(b"goes on")
                time.sleep(0.2)
        assert program.returncode == 0, (tmp_path / "log").read_text(errors="replace")[-5_000:]
    finally:
        with suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)
        program.wait()


def noted(cluster: LiveCluster) -> list[str]:
    return list(cluster.call("operator", "progress")["notes"])
