"""Crates: built once into a folder outside of the repository, by the hash of their sources."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from tests.clients.support.cached import cached, compile_sources, digest, fetch
from tests.clients.support.tools import need

FETCH_SECONDS_MAX = 300
BUILD_SECONDS_MAX = 1_500


def build_crate(folder: Path) -> Path:
    """Return a crate's program, named like its package, built if it was not built before."""
    cargo = need("cargo")
    need("protoc")
    sources = [folder / "Cargo.toml", folder / "Cargo.lock", *sorted((folder / "src").iterdir())]
    name = re.search(r'name = "(.+)"', sources[0].read_text())
    assert name is not None, "Cargo.toml names its package"

    def build(program: Path) -> None:
        target = program.parent / "target"
        manifest = ["--locked", "--manifest-path", str(folder / "Cargo.toml")]
        fetch("crates.io", f"the crates of {folder.name}", [cargo, "fetch", *manifest], seconds=FETCH_SECONDS_MAX)
        command = [cargo, "build", "--offline", "--target-dir", str(target), *manifest]
        compile_sources(command, seconds=BUILD_SECONDS_MAX)
        shutil.copy(target / "debug" / name[1], program)

    key = digest(part for path in sources for part in (path.name.encode(), path.read_bytes()))
    return cached("rust", f"{folder.name}-{key}", build)
