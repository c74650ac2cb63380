"""A buffer for reinforcement learning: actors put samples of steps, a trainer reads them at random, steps are dropped.

    python -m examples.reinforcement_learning

One of the actors is killed within a step: every sample counts once. It starts a Ray and a cluster of its
own in temporary directories. In a Ray cluster with ``helio up`` neither is needed, nor a client for the store.
"""

from __future__ import annotations

import random
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import ray

import heliograph
from heliograph.errors import StepDroppedError
from heliograph.transfer_queue import StepStore

STEPS, WORKERS, SAMPLES = 5, 2, 40
STEPS_KEPT = 2


class Rollout:
    """Makes the samples of one worker."""

    def run(self, store: StepStore, worker: int, step: int, dies_after: int = -1) -> int:
        """Put the samples of a step; the process ends after some of them, if it is told so."""
        for sample in range(SAMPLES):
            if sample == dies_after:
                ray.actor.exit_actor()  # type: ignore[no-untyped-call]
            key = f"{worker}-{sample}"
            observation = np.full(20_000, worker + sample + step, np.float32)  # 80 KB
            store.put({f"{key}@observation": observation, f"{key}@reward": float(sample)}, step)
        return SAMPLES


def train(store: StepStore, step: int) -> float:
    """Read the samples of a step in any order, a few at a time, and return what was learned."""
    chosen = [f"{worker}-{sample}" for worker in range(WORKERS) for sample in range(SAMPLES)]
    random.Random(step).shuffle(chosen)
    learned = 0.0
    for first in range(0, len(chosen), 8):
        batch = chosen[first : first + 8]
        fields = [f"{key}@{field}" for key in batch for field in ("observation", "reward")]
        values = store.get(fields, step, timeout=120)
        learned += sum(
            float(observation[0]) * reward for observation, reward in zip(values[::2], values[1::2], strict=True)
        )
    return learned


def expected(step: int) -> float:
    """Return what is learned of a step whose samples count once."""
    return float(sum((worker + sample + step) * sample for worker in range(WORKERS) for sample in range(SAMPLES)))


def main(directory: str) -> None:
    """Train while actors make samples, and print what happened."""
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    with heliograph.local(Path(directory, "data")) as cluster, cluster.connect() as client:
        store = StepStore("samples", client)
        actor: Any = ray.remote(num_cpus=0.5)(Rollout)
        workers = [actor.remote() for _ in range(WORKERS)]
        killed = 0
        for step in range(STEPS):
            store.begin(step)
            running = [
                worker.run.remote(store, number, step, 15 if (number, step) == (1, 2) else -1)
                for number, worker in enumerate(workers)
            ]
            for number, one in enumerate(running):
                try:
                    ray.get(one)
                except ray.exceptions.RayActorError:
                    killed += 1
                    workers[number] = actor.remote()
                    ray.get(workers[number].run.remote(store, number, step))  # the same keys: they are replaced
            assert train(store, step) == expected(step)
            store.drop_before(max(0, step + 1 - STEPS_KEPT))
        assert killed == 1
        assert store.steps() == [*range(STEPS - STEPS_KEPT, STEPS)]
        try:
            store.get(["0-0@reward"], 0)
        except StepDroppedError as error:
            print(error)
        total = STEPS * WORKERS * SAMPLES
        print(
            f"{total} samples of {STEPS} steps, each counts once; {killed} actor was killed; {store.steps()} are left"
        )
        store.close()
    ray.shutdown()


if __name__ == "__main__":
    with TemporaryDirectory() as temporary:
        main(temporary)
