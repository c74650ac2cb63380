"""What a registry brings or a compiler makes: had once, kept outside of the repository, used by all later runs.

A machine that cannot reach a registry skips the tests; a source that does not compile fails them.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pytest


def cached(kind: str, name: str, make: Callable[[Path], None]) -> Path:
    """Return a file or folder that is made only if no earlier run has made it.

    Args:
        kind: the folder of the cache that it is in.
        name: differs wherever the content would.
        make: makes it at a path where nothing is yet. It gets its own name when it is complete, so what an interrupted
            run leaves is not taken for it.
    """
    place = _cache_folder(kind) / name
    if not place.exists():
        with tempfile.TemporaryDirectory(dir=place.parent) as begun:
            unfinished = Path(begun) / name
            make(unfinished)
            with contextlib.suppress(OSError):  # another run was faster, and its folder is not empty
                unfinished.rename(place)
    return place


def digest(parts: Iterable[bytes]) -> str:
    """Return a short hash of several contents, each with its length."""
    found = hashlib.sha256()
    for part in parts:
        found.update(len(part).to_bytes(8, "big") + part)
    return found.hexdigest()[:16]


def fetch(registry: str, what: str, command: Sequence[str], *, seconds: float, cwd: Path | None = None) -> None:
    """Run a command that needs a registry. Skip the test where it fails or does not end in time."""
    try:
        done = subprocess.run(list(command), cwd=cwd, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip(f"{registry} did not bring {what} in {seconds:.0f} s")
    if done.returncode != 0:
        said = done.stderr.strip()[-400:] or done.stdout.strip()[:400]
        pytest.skip(f"{registry} cannot bring {what}: {said}")


def compile_sources(command: Sequence[str], *, seconds: float, cwd: Path | None = None) -> None:
    """Run a compiler. Fail the test where the sources are wrong, skip it where the machine is too slow."""
    try:
        done = subprocess.run(list(command), cwd=cwd, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip(f"the sources were not compiled in {seconds:.0f} s")
    assert done.returncode == 0, f"the sources do not compile:\n{done.stderr[-4_000:]}"


def _cache_folder(kind: str) -> Path:
    """Return a folder below ``$XDG_CACHE_HOME``, else below ``~/.cache``, else below that of temporary files."""
    chosen = os.environ.get("XDG_CACHE_HOME")
    folder = (Path(chosen) if chosen else Path.home() / ".cache") / "heliograph-tests" / kind
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        folder = Path(tempfile.gettempdir()) / f"heliograph-tests-{os.getuid()}" / kind
        folder.mkdir(parents=True, exist_ok=True)
    return folder
