"""Metadata stores by URL, each empty and for one test, for clients outside the test's event loop."""

from __future__ import annotations

import asyncio
import itertools
import threading
import uuid
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from heliograph.metadata.backends.embedded.limits import ServerLimits
from heliograph.metadata.backends.embedded.server.server import EmbeddedServer
from tests.contracts.metadata.etcd_backend import EtcdBackend

T = TypeVar("T")
_numbers = itertools.count()


class LoopOnThread:
    """An event loop in another thread; ``failures`` are the errors that its callbacks raised."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self.failures: list[object] = []
        self._loop.set_exception_handler(lambda _, context: self.failures.append(context))
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> LoopOnThread:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        assert not self.failures, self.failures

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait for it."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(60)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()


@contextmanager
def _memory(directory: Path) -> Iterator[str]:
    yield f"memory://{uuid.uuid4().hex}"


@contextmanager
def _embedded(directory: Path) -> Iterator[str]:
    with LoopOnThread() as loop:
        server = EmbeddedServer(
            directory / f"metadata-{next(_numbers)}", "127.0.0.1", limits=ServerLimits(session_timeout_ms_min=100)
        )
        loop.run(server.start())
        try:
            yield f"embedded://{server.address}/root"
        finally:
            loop.run(server.stop())


@contextmanager
def _etcd(directory: Path) -> Iterator[str]:
    yield EtcdBackend(directory).url


STORES: dict[str, Callable[[Path], AbstractContextManager[str]]] = {
    "memory": _memory,
    "embedded": _embedded,
    "etcd": _etcd,
}
