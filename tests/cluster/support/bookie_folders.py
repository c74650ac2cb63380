"""Folders for tests that open a bookie hundreds of times: in memory where there is such a place."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MEMORY = Path("/dev/shm")


@contextmanager
def quick_folder() -> Iterator[Path]:
    """A folder that is gone afterwards."""
    parent = MEMORY if os.access(MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="heliograph-", dir=parent, ignore_cleanup_errors=True) as name:
        yield Path(name)
