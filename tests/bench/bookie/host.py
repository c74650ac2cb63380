"""A bookie in a process of its own, without metadata: ``python -m tests.bench.bookie.host <directory> [json]``."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from heliograph.actors.bookie.bookie import Bookie
from heliograph.actors.bookie.config import BookieConfig
from tests.bench.serving import serve

BOOKIE_ID = "bench"


def config_for(directory: Path, changes: dict[str, Any]) -> BookieConfig:
    """Return the default configuration with ``changes``, with journal and data below ``directory``."""
    return BookieConfig(
        bookie_id=BOOKIE_ID,
        journal_directories=(directory / "journal",),
        data_directories=(directory / "data",),
        headroom_bytes=1 << 30,
        **changes,
    )


async def start() -> tuple[str, Callable[[], Awaitable[None]]]:
    """Start the server and return its address."""
    changes = json.loads(sys.argv[2]) if len(sys.argv) > 2 else {}
    bookie = Bookie(config_for(Path(sys.argv[1]), changes), None, on_failure=lambda error: os._exit(74))
    await bookie.start()
    return bookie.address, bookie.stop


if __name__ == "__main__":
    serve(start)
