"""The version that is installed on this process's node, which may be newer than the one that the process runs."""

from __future__ import annotations

import re
from pathlib import Path

from heliograph.base import version

_VERSION = re.compile(r'^VERSION = "([^"]+)"', re.MULTILINE)


def installed_here() -> str:
    """Return the version that a process started now would run; empty: it cannot be read. Blocks."""
    try:
        found = _VERSION.search(Path(version.__file__).read_text())
    except OSError:
        return ""
    return found[1] if found else ""
