"""The version that is installed on this process's node, which may be newer than the one that the process runs."""

from __future__ import annotations

import os
import subprocess
import sys

ANSWER_SECONDS = 20.0  # for the process that tells it
PROGRAM = "from heliograph.base.version import heliograph_version; print(heliograph_version())"


def installed_here() -> str:
    """Return the version that a process started now would run; empty: none, or it does not answer. Blocks."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    try:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=ANSWER_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()
