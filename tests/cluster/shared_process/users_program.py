"""A program of a user in a cluster's Ray: ``python -m tests.cluster.shared_process.users_program KIND SECONDS``.

It joins Ray by ``heliograph.connect``, and works for as long as it is told with what makes named actors: RayDP (Java
actors among them), Ray Data and Ray Serve. It ends with 0 if all of that went well.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import heliograph

ROWS = 500


def rounds(seconds: float) -> Iterator[int]:
    """Yield numbers for so many seconds, at least one."""
    until, number = time.monotonic() + seconds, 0
    while number == 0 or time.monotonic() < until:
        yield number
        number += 1


def spark(topic: str, seconds: float) -> None:
    """Count a topic as a DataFrame, again and again, in one session."""
    from heliograph.pipelines.spark.dataframe import topic_dataframe
    from heliograph.pipelines.spark.session import spark_session

    with spark_session() as session:
        for _ in rounds(seconds):
            assert topic_dataframe(session, topic).count() == ROWS


def data(topic: str, seconds: float) -> None:
    """Run Ray Data jobs with an actor pool over a topic."""
    from heliograph.pipelines.ray_data.dataset import read_topic

    class Same:
        def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
            return row

    pooled: Any = Same  # which Ray Data makes actors of
    for _ in rounds(seconds):
        assert read_topic(topic).map(pooled, concurrency=1).count() == ROWS


def serve(topic: str, seconds: float) -> None:
    """Run an application of Ray Serve, and call it."""
    ray_serve: Any = import_module("ray.serve")

    class Doubled:
        def __call__(self, value: int) -> int:
            return 2 * value

    deployment = ray_serve.deployment(ray_actor_options={"num_cpus": 0})(Doubled)
    handle = ray_serve.run(deployment.bind(), route_prefix=None)
    for number in rounds(seconds):
        assert handle.remote(number).result() == 2 * number
        time.sleep(0.1)
    ray_serve.shutdown()


def main(kind: str, seconds: float) -> None:
    """Publish the rows of a topic, then work."""
    topic = f"of-{kind}"
    with heliograph.connect() as client:
        with client.producer(topic) as producer:
            producer.send_many([b"%d" % row for row in range(ROWS)])
        {"spark": spark, "data": data, "serve": serve}[kind](topic, seconds)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
