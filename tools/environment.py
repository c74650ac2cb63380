"""Make the environment of development from the lock file, for ``make setup``. It runs on a Python without packages.

``uv`` does the work. Where it is not on PATH, pip installs it into the environment first, from the lock file. The hash
of every file is checked. Each step is one line with the seconds that it took.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

LOCK = "requirements.lock"
_PINNED = re.compile(r"^[A-Za-z0-9][\w.-]*==", re.MULTILINE)
_UV = re.compile(r"^uv==.*(?:\n {4}--hash=.*)+\n", re.MULTILINE)
_PIP_FOR_UV = {  # what pip may be configured with, and what uv reads instead
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "cert": "SSL_CERT_FILE",
}


def commands(directory: Path, uv: str | None, python: str) -> list[tuple[str, list[str]]]:
    """Return the steps, each with its title and its command.

    Args:
        directory: of the environment; it may exist.
        uv: path of ``uv``; None: it is installed into the environment, from the file ``uv.lock`` there.
        python: the interpreter that the environment is made of.
    """
    own = str(directory / "bin" / "python")
    count = len(_PINNED.findall(Path(LOCK).read_text()))
    lock = ["--require-hashes", "-r", LOCK]
    editable = ["--no-deps", "--no-build-isolation", "-e", "."]
    make = [python, "-m", "venv", str(directory)]
    if uv is not None:
        make = [uv, "venv", "--quiet", "--allow-existing", "--seed", "--python", python, str(directory)]
    steps = [] if Path(own).exists() else [(f"made {directory}", make)]
    if uv is None:
        pip = [own, "-m", "pip", "install", "--disable-pip-version-check", "--quiet", "--no-deps", "--require-hashes"]
        steps.append(("uv is installed, by pip", [*pip, "-r", str(directory / "uv.lock")]))
        uv = str(directory / "bin" / "uv")
    install = [uv, "pip", "install", "--python", own, *([] if sys.stdout.isatty() else ["--quiet"])]
    steps.append((f"{count} locked packages are installed, by uv", [*install, *lock]))
    return [*steps, ("heliograph is installed from this folder", [*install, *editable])]


def settings_of_pip(python: str) -> dict[str, str]:
    """Return the environment in which uv looks for packages where pip does, unless it has settings of its own."""
    ran = subprocess.run([python, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False)
    found: dict[str, str] = {}
    for line in ran.stdout.splitlines():
        name, _, value = line.partition("=")
        if variable := _PIP_FOR_UV.get(name.rpartition(".")[2]):
            found.setdefault(
                variable,
                ("," if variable == "UV_FIND_LINKS" else " ").join(value.strip("'\"").replace("\\n", " ").split()),
            )
    return {**found, **{name: os.environ[name] for name in found if name in os.environ}}


@contextmanager
def _counted(title: str) -> Iterator[None]:
    begun = time.monotonic()
    yield
    print(f"{time.monotonic() - begun:6.1f} s  {title}", flush=True)


def main(arguments: Sequence[str]) -> int:
    """Make the environment in the folder that the first argument names; return the exit code."""
    directory = Path(arguments[0])
    begun = time.monotonic()
    uv = shutil.which("uv")
    if uv is None:
        directory.mkdir(exist_ok=True)
        (directory / "uv.lock").write_text("".join(_UV.findall(Path(LOCK).read_text())))
    environment = {**os.environ, **settings_of_pip(sys.executable)}
    for title, command in commands(directory, uv, sys.executable):
        with _counted(title):
            code = subprocess.run(command, check=False, env=environment).returncode
            if code:
                print(f"failed with {code}: {' '.join(command)}", file=sys.stderr)
                return code
    print(f"{time.monotonic() - begun:6.1f} s  in all")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
