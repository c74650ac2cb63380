"""Go modules: built once into a folder outside of the repository, by the hash of their sources.

A machine that cannot reach the Go proxy skips the tests; a source that does not compile fails them.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.clients.support.tools import cache_folder, need

FETCH_SECONDS_MAX = 300
BUILD_SECONDS_MAX = 600


def build_module(folder: Path) -> Path:
    """Return a module's program, built if it was not built before."""
    go = need("go")
    sources = [path for path in sorted(folder.iterdir()) if path.suffix in (".go", ".mod", ".sum")]
    digest = hashlib.sha256()
    for path in sources:
        content = path.read_bytes()
        digest.update(f"{path.name} {len(content)}\n".encode() + content)
    program = cache_folder("go") / f"{folder.name}-{digest.hexdigest()[:16]}"
    if program.exists():
        return program
    _run([go, "mod", "download"], folder, FETCH_SECONDS_MAX)
    with tempfile.TemporaryDirectory(dir=program.parent) as begun:
        output = Path(begun) / "program"
        try:
            done = subprocess.run(
                [go, "build", "-ldflags=-s -w", "-o", str(output), "."],
                cwd=folder, capture_output=True, text=True, timeout=BUILD_SECONDS_MAX, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            pytest.skip(f"{folder.name} was not built in {BUILD_SECONDS_MAX} s")
        assert done.returncode == 0, f"the sources do not compile:\n{done.stderr[-4_000:]}"
        output.replace(program)
    return program


def required_version(folder: Path, module: str) -> str:
    """Return the version of a module that ``go.mod`` asks for, without its ``v``."""
    found = re.search(rf"{re.escape(module)} v(\S+)", (folder / "go.mod").read_text())
    assert found is not None, f"go.mod does not ask for {module}"
    return found[1]


def _run(command: list[str], folder: Path, seconds: float) -> None:
    """Run what needs the network; the test is skipped where it fails."""
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip(f"the Go proxy did not bring the modules of {folder.name} in {seconds:.0f} s")
    if done.returncode != 0:
        pytest.skip(f"the Go proxy cannot bring the modules of {folder.name}: {done.stderr.strip()[-400:]}")
