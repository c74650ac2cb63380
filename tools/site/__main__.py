"""Build the site: ``python -m tools.site [DIRECTORY]``. A broken link, anchor or reference fails the build."""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from sphinx.cmd.build import build_main

from tools.site.pages import ROOT, assemble

DIRECTORY = ROOT / "dist" / "site"


def build(directory: Path = DIRECTORY) -> int:
    """Build the pages into a directory, and return the exit code of Sphinx."""
    with TemporaryDirectory() as scratch:
        sources = Path(scratch, "sources")
        sources.mkdir()
        assemble(sources)
        places = [str(sources), str(directory), "-d", str(Path(scratch, "doctrees"))]
        return build_main(
            ["-b", "html", "-c", str(Path(__file__).parent), "-W", "--keep-going", "-q", "-j", "auto", *places]
        )


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else DIRECTORY
    code = build(target)
    if code == 0:
        sys.stdout.write(f"open {target / 'index.html'}\n")
    sys.exit(code)
