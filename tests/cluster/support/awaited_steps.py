"""The steps at which micro-batches of a driver wait, until a test lets them go on or ends the process.

Micro-batch n waits at the n-th of ``STEPS``: it makes the file ``<n>-<step>`` with the id of the process, and goes on
when ``<n>-<step>.passed`` is there.
"""

from __future__ import annotations

import os
from pathlib import Path

from tests.waits import block_until

STEPS = ("planned", "reading", "writing", "written", "committed")
ENTRIES = 4  # of a micro-batch


def reach(directory: Path, batch_id: int, step: str) -> None:
    """Wait here if it is the step of the micro-batch."""
    if batch_id >= len(STEPS) or STEPS[batch_id] != step:
        return
    file = directory / f"{batch_id}-{step}"
    passed = file.with_name(f"{file.name}.passed")
    if not passed.exists():
        new = file.with_name(f".{file.name}.{os.getpid()}")
        new.write_text(str(os.getpid()))
        new.replace(file)
    block_until(lambda: passed.exists())
