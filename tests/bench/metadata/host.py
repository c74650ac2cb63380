"""The embedded metadata server in a process of its own: ``python -m tests.bench.metadata.host <directory>``."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from heliograph.metadata.backends.embedded.server.server import EmbeddedServer
from tests.bench.serving import serve


async def start() -> tuple[str, Callable[[], Awaitable[None]]]:
    """Start the server and return its address."""
    server = EmbeddedServer(Path(sys.argv[1]), "127.0.0.1")
    await server.start()
    return server.address, server.stop


if __name__ == "__main__":
    serve(start)
