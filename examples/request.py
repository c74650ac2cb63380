"""Requests and replies: three responders, one of which is killed while it answers, and every request has one answer.

    python -m examples.request

It starts a cluster of its own in a temporary directory. Beside `helio dev` or `helio up`, ``heliograph.connect()``
finds the running one.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory

import heliograph

REQUESTS = 200
RESPONDERS = 3


def respond(address: str, directory: str) -> None:
    """Answer requests in a process of its own, until it is ended."""

    async def embed(text: str) -> dict[str, object]:
        if text == "poison" and not Path(directory, "killed").exists():
            Path(directory, "killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)  # as the kernel does where memory runs short
        return {"length": len(text), "process": os.getpid()}

    async def tell(start: bytes) -> AsyncIterator[str]:
        for word in f"{start.decode()} upon a time".split():
            yield word

    with heliograph.connect(address) as client:
        embedding = client.respond("embed", embed, concurrency=4, schema=str, reply=dict)
        telling = client.respond("tell", tell)
        with embedding, telling:
            signal.pause()


async def ask(address: str) -> None:
    """Ask, and print what was answered."""
    async with await heliograph.connect_async(address) as client:
        texts = ["x" * number for number in range(1, REQUESTS)] + ["poison"]
        asked = [client.request("embed", text, timeout=60, schema=str, reply=dict) for text in texts]
        answers = await asyncio.gather(*asked)
        assert [answer["length"] for answer in answers] == [len(text) for text in texts]
        print(f"{len(answers)} answers by {len({answer['process'] for answer in answers})} processes; one was killed")
        words = [part.decode() async for part in client.stream_request("tell", "once")]
        print("a stream:", *words)


def main(directory: str) -> None:
    """Run responders beside a client that asks."""
    spawn = get_context("spawn")
    with heliograph.local(Path(directory, "data")) as cluster:
        processes = [spawn.Process(target=respond, args=(cluster.service_url, directory)) for _ in range(RESPONDERS)]
        for process in processes:
            process.start()
        try:
            asyncio.run(ask(cluster.service_url))
        finally:
            for process in processes:
                process.kill()
                process.join()
        killed = Path(directory, "killed").exists()
    sys.exit(0 if killed else "no responder was killed")


if __name__ == "__main__":
    with TemporaryDirectory() as directory:
        main(directory)
