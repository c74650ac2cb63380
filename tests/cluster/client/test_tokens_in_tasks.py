"""Handles made with a token, as arguments of tasks in a real Ray: their broker asks every client for a token."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import pytest
import ray
from ray import cloudpickle

import heliograph
from heliograph.auth.config import AuthConfig
from tests.cluster.support.live_cluster import LiveCluster
from tests.cluster.support.served_broker import ServedBroker
from tests.unit.auth.keys import SECRET, token

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

TOPIC = "persistent://public/default/work-0"  # owned from the start
SECONDS_MAX = 240


@pytest.fixture(scope="module")
def broker() -> Iterator[ServedBroker]:
    secret = base64.b64encode(SECRET).decode()
    served = ServedBroker(auth=AuthConfig(enabled=True, token_secret_key=secret, superuser_roles=("alice",)))
    yield served
    served.stop()


def sent_in_a_task(producer: heliograph.Producer, **options: Any) -> str:
    """Send a message in a task and return what came of it."""

    def send(handle: heliograph.Producer) -> str:
        try:
            with handle:
                handle.send(b"from a task")
        except heliograph.errors.AuthenticationError as error:
            return str(error)
        return "sent"

    task = ray.remote(num_cpus=0, max_retries=0, **options)(send)
    return str(ray.get(task.remote(producer), timeout=SECONDS_MAX))


def test_a_task_has_no_token_of_its_caller_unless_asked(cluster: LiveCluster, broker: ServedBroker) -> None:
    shown = token().decode()
    with heliograph.connect(broker.url, token=shown) as client, client.producer(TOPIC) as producer:
        producer.send(b"from the driver")
        assert shown.encode() not in cloudpickle.dumps(producer)  # type: ignore[no-untyped-call]
        refused = sent_in_a_task(producer)
        assert "set HELIOGRAPH_TOKEN" in refused
        assert "connect with carry_token=True where it was made" in refused
        assert shown not in refused
        own = {"env_vars": {"HELIOGRAPH_TOKEN": shown}}
        assert sent_in_a_task(producer, runtime_env=own) == "sent"
    with heliograph.connect(broker.url, token=shown, carry_token=True) as client:
        assert sent_in_a_task(client.producer(TOPIC)) == "sent"
