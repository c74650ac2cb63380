"""Durable tasks in Ray: workers come with the backlog, one of them is killed on the way, and every job has its result.

    python -m examples.tasks

It starts a Ray and a cluster of its own in temporary directories. In a Ray cluster with ``helio up`` neither is needed,
nor ``client=``.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import ray

import heliograph

DOCUMENTS = 200


def main(directory: str) -> None:
    """Embed documents by workers, and print what happened."""
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    with heliograph.local(Path(directory, "data")) as cluster, cluster.connect() as client:

        @heliograph.task(queue="embed", client=client, concurrency=4, retries=2, backoff=(0.1, 1))
        def embed(text: str, ends_its_worker: bool = False) -> tuple[int, int]:
            if ends_its_worker and not Path(directory, text).exists():
                Path(directory, text).touch()
                os.kill(os.getpid(), signal.SIGKILL)  # as the kernel does where memory runs short
            return len(text), os.getpid()

        workers = embed.run(replicas=(0, 2), num_cpus=0)
        print(f"{workers.status()['workers']} workers: nothing is to be done")
        begun = time.monotonic()
        embed.blocking.submit("first").result(300)
        print(f"the first result from no worker after {time.monotonic() - begun:.1f} s")
        jobs = [embed.blocking.submit("x" * number, id=f"document-{number}") for number in range(DOCUMENTS)]
        jobs.append(embed.blocking.submit("poison", ends_its_worker=True))
        results = [job.result(300) for job in jobs]
        assert [length for length, _ in results] == [*range(DOCUMENTS), len("poison")]
        processes = {process for _, process in results}
        print(f"{len(results)} results by {len(processes)} processes; one was killed on the way")
        assert embed.blocking.submit("again", id="document-3").result(10)[0] == 3, "the same id is the same job"
        workers.stop()
    ray.shutdown()


if __name__ == "__main__":
    with TemporaryDirectory() as directory:
        main(directory)
