"""The facts about the machine and the code that a figure depends on."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
GIT_SECONDS_MAX = 10.0
LIBRARIES = ("ray", "uvloop", "pulsar-client", "rocksdict")


def machine_facts(directory: Path) -> dict[str, Any]:
    """Return the facts of a run.

    Args:
        directory: the directory of the run's files, on the measured disk.
    """
    return {
        "cores": os.cpu_count(),
        "processor": _processor(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "kernel": platform.release(),
        "system": platform.platform(terse=True),
        "python": sys.version.split()[0],
        "libraries": {name: version(name) for name in LIBRARIES},
        "disk": _disk(directory),
        "load_average_before": [round(load, 2) for load in os.getloadavg()],
    }


def code_facts() -> dict[str, Any]:
    """Return the commit of the measured code, and whether the files differ from it."""
    changes = _git("status", "--porcelain")
    return {"commit": _git("rev-parse", "HEAD") or "unknown", "is_modified": bool(changes)}


def _git(*arguments: str) -> str:
    try:
        result = subprocess.run(
            ["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False, timeout=GIT_SECONDS_MAX
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return result.stdout.strip() if result.returncode == 0 else ""


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _disk(directory: Path) -> dict[str, Any]:
    """Return the file system of ``directory``: the mount with the longest matching path."""
    resolved = directory.resolve()
    best: tuple[str, str, str] = ("", "/", "")
    for line in Path("/proc/mounts").read_text().splitlines():
        device, mount, kind = line.split()[:3]
        if resolved.is_relative_to(mount) and len(mount) >= len(best[1]):
            best = (device, mount, kind)
    usage = shutil.disk_usage(directory)
    return {
        "device": best[0],
        "mount": best[1],
        "file_system": best[2],
        "total_gb": round(usage.total / 1e9, 1),
        "free_gb": round(usage.free / 1e9, 1),
    }
