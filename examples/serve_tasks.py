"""Ray Serve's tasks without Celery and Redis: replicas come with the backlog, one is killed, every task has its result.

    python -m examples.serve_tasks

It starts a Ray and a cluster of its own in temporary directories.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import ray
from ray import serve
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy
from ray.serve.schema import TaskProcessorConfig
from ray.serve.task_consumer import instantiate_adapter_from_config, task_consumer, task_handler

import heliograph
from heliograph.serve import AdapterConfig, BacklogAutoscalingPolicy

TASKS = 60
SECONDS = 300.0


def deployment(config: TaskProcessorConfig, address: str, directory: str) -> serve.Application:
    """Return an application whose replicas consume the queue, from none to two of them."""

    @serve.deployment(
        max_ongoing_requests=4,
        ray_actor_options={"num_cpus": 0},
        autoscaling_config=AutoscalingConfig(
            min_replicas=0,
            max_replicas=2,
            target_ongoing_requests=4,
            upscale_delay_s=0,
            downscale_delay_s=2,
            policy=AutoscalingPolicy(  # type: ignore[no-untyped-call]
                policy_function=BacklogAutoscalingPolicy,
                policy_kwargs={"queue": config.queue_name, "address": address, "poll_interval_s": 0.5},
            ),
        ),
    )
    @task_consumer(task_processor_config=config)
    class Embedder:
        @task_handler(name="embed")
        def embed(self, text: str) -> tuple[int, int]:
            mark = Path(directory, "killed")
            if text == "poison" and not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)  # as the kernel does where memory runs short
            time.sleep(0.05)
            return len(text), os.getpid()

    bound: serve.Application = Embedder.bind()  # type: ignore[attr-defined]
    return bound


def main(directory: str) -> None:
    """Submit tasks to a deployment of no replicas, and print what happened."""
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    with heliograph.local(Path(directory, "data")) as cluster:
        address = cluster.service_url
        config = TaskProcessorConfig(
            queue_name="embed",
            adapter="heliograph.serve:TaskProcessor",
            adapter_config=AdapterConfig(address=address),
        )
        serve.start(proxy_location="Disabled")
        serve.run(deployment(config, address, directory), name="embedder", route_prefix=None)
        adapter = instantiate_adapter_from_config(config)
        begun = time.monotonic()
        texts = ["poison", *("x" * number for number in range(TASKS))]
        tasks = [adapter.enqueue_task_sync("embed", [text]) for text in texts]
        results = []
        for task in tasks:
            while (found := adapter.get_task_status_sync(task.id)).status != "SUCCESS":
                assert time.monotonic() - begun < SECONDS, f"{task.id} is {found.status}: {found.result}"
                time.sleep(0.05)
            results.append(found.result)
        assert [length for length, _ in results] == [len(text) for text in texts]
        processes = {process for _, process in results}
        print(f"{len(results)} results by {len(processes)} replicas from none, after {time.monotonic() - begun:.0f} s")
        while (replicas := len(adapter.health_check_sync())) > 0:
            assert time.monotonic() - begun < 2 * SECONDS, f"{replicas} replicas stay without a backlog"
            time.sleep(0.5)
        print("no backlog, no replicas")
        serve.shutdown()  # type: ignore[no-untyped-call]
    ray.shutdown()


if __name__ == "__main__":
    with TemporaryDirectory() as directory:
        main(directory)
