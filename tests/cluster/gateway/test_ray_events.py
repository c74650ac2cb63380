"""A real Ray posts its events to a gateway, which keeps them in a topic."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import heliograph

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

SECONDS = 480.0
# A Ray of one node, and an actor in it; it stays until its standard input is closed.
PROGRAM = """
import sys, ray
for attempt in range(5):  # a busy machine takes longer than the 30 s that Ray gives itself
    try:
        ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False, _temp_dir=sys.argv[1])
        break
    except Exception:
        ray.shutdown()
@ray.remote
class Watched:
    def ready(self):
        return 1
ray.get(Watched.options(name="watched").remote().ready.remote())
print("ready", flush=True)
sys.stdin.read()
"""
WANTED = {"ACTOR_DEFINITION_EVENT", "ACTOR_LIFECYCLE_EVENT", "DRIVER_JOB_DEFINITION_EVENT", "NODE_DEFINITION_EVENT"}


def test_a_topic_keeps_what_happened_in_ray(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    topic = "persistent://public/default/ray-events"
    with (
        heliograph.local(tmp_path / "data", gateway={"ray_events_topic": topic}) as cluster,
        cluster.connect() as client,
    ):
        client.admin.create_topic(topic)
        environment = {
            **os.environ,
            "RAY_enable_ray_event": "1",
            "RAY_enable_core_worker_ray_event_to_aggregator": "1",
            "RAY_DASHBOARD_AGGREGATOR_AGENT_EVENTS_EXPORT_ADDR": f"{cluster.http_url}/ray/events",
        }
        environment.pop("RAY_ADDRESS", None)
        ray = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(tmp_path_factory.mktemp("ray"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        try:
            seen: dict[str, list[dict[str, object]]] = {}
            deadline = time.monotonic() + SECONDS
            with client.reader(topic, start="earliest") as reader:
                while WANTED - seen.keys():
                    assert time.monotonic() < deadline, sorted(seen)
                    assert ray.poll() is None, "Ray runs"
                    for message in reader.receive_many(1_000, timeout=1):
                        event = json.loads(message.value)
                        assert event["eventType"] == message.properties["eventType"]
                        assert message.key, event
                        seen.setdefault(event["eventType"], []).append(event)
            assert "watched" in json.dumps(seen["ACTOR_DEFINITION_EVENT"])
        finally:
            ray.communicate("", timeout=SECONDS)
