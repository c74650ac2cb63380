"""A worker as a process of its own, which tests kill: ``python -m tests.unit.tasks.program ADDRESS QUEUE LOG``."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

import heliograph
from heliograph.tasks.task import Task

ADDRESS, QUEUE, LOG = sys.argv[1:4] if __name__ == "__main__" else ("", "", "")


def work_of(client: heliograph.Client, queue: str, log: Path) -> Task[..., int]:
    """Return the task. A job appends its number to the log, and may end its own process."""

    @heliograph.task(queue=queue, client=client, concurrency=4, crashes=2, retries=3, backoff=(0.01, 0.05))
    def work(number: int, seconds: float = 0.0, ends_its_worker: bool = False) -> int:
        with log.open("a") as file:
            file.write(f"{number}\n")
        time.sleep(seconds)
        if ends_its_worker:
            os.kill(os.getpid(), signal.SIGKILL)
        if number % 100 == 99:
            raise ValueError("one of a hundred")
        return 2 * number

    return work


if __name__ == "__main__":
    with heliograph.connect(ADDRESS) as own:
        asyncio.run(work_of(own, QUEUE, Path(LOG)).work())
