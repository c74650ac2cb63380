"""Go modules: built once into a folder outside of the repository, by the hash of their sources."""

from __future__ import annotations

import re
from pathlib import Path

from tests.clients.support.cached import cached, compile_sources, digest, fetch
from tests.clients.support.tools import need

FETCH_SECONDS_MAX = 300
BUILD_SECONDS_MAX = 600


def build_module(folder: Path) -> Path:
    """Return a module's program, built if it was not built before."""
    go = need("go")

    def build(program: Path) -> None:
        fetch(
            "the Go proxy",
            f"the modules of {folder.name}",
            [go, "mod", "download"],
            seconds=FETCH_SECONDS_MAX,
            cwd=folder,
        )
        command = [go, "build", "-ldflags=-s -w", "-o", str(program), "."]
        compile_sources(command, seconds=BUILD_SECONDS_MAX, cwd=folder)

    sources = [path for path in sorted(folder.iterdir()) if path.suffix in (".go", ".mod", ".sum")]
    key = digest(part for path in sources for part in (path.name.encode(), path.read_bytes()))
    return cached("go", f"{folder.name}-{key}", build)


def required_version(folder: Path, module: str) -> str:
    """Return the version of a module that ``go.mod`` asks for, without its ``v``."""
    found = re.search(rf"{re.escape(module)} v(\S+)", (folder / "go.mod").read_text())
    assert found is not None, f"go.mod does not ask for {module}"
    return found[1]
