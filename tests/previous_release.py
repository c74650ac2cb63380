"""The code of the previous release, which tests run beside the present one.

``PREVIOUS`` and ``COMMIT`` are what to move: at a release, they become that release and its commit. There was none
before 0.1.0, so it is the state of the code before versions were said in greetings. It has to be in git's history.
"""

from __future__ import annotations

import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from heliograph.base.version import Release

PREVIOUS = Release(0, 1)
COMMIT = "cf320bda1dfb0ddbb14e511267788b02c9e6c5b9"
NEXT, TOO_FAR = (str(Release(PREVIOUS.major, PREVIOUS.minor + apart)) for apart in (1, 2))  # releases after it
ROOT = Path(__file__).parents[1]
FOLDERS = ("heliograph", "actors", "gateway", "metadata", "pipelines")


def unpack_previous(directory: Path) -> Path:
    """Write the previous release's code to a directory and return it; it is for PYTHONPATH. Skip without history."""
    packed = directory.parent / f"{directory.name}.tar"
    try:
        subprocess.run(
            ["git", "-C", str(ROOT), "archive", f"--output={packed}", COMMIT, *FOLDERS],
            check=True, capture_output=True, text=True,
        )  # fmt: skip
    except (OSError, subprocess.CalledProcessError) as error:
        why = getattr(error, "stderr", "") or error
        pytest.skip(f"the previous release {COMMIT} is not in the history here (git fetch --unshallow): {why}")
    with tarfile.open(packed) as archive:
        archive.extractall(directory, filter="tar")
    packed.unlink()
    return directory


def copy_present(directory: Path, version: str | None = None) -> Path:
    """Write the present code to a directory and return it; it is for PYTHONPATH.

    Args:
        version: that it calls itself; None: its own.
    """
    for name in FOLDERS:
        shutil.copytree(ROOT / name, directory / name, symlinks=True)
    if version is not None:
        file = directory / "heliograph" / "base" / "version.py"
        lines = file.read_text().splitlines(keepends=True)
        (at,) = [number for number, line in enumerate(lines) if line.startswith("VERSION = ")]
        lines[at] = f'VERSION = "{version}"\n'
        file.write_text("".join(lines))
    return directory
