"""Make the environment of development from the lock file, for ``make setup``. It runs on a Python without packages.

``uv`` does the work where it is on PATH, pip otherwise; both check the hash of every file. Each step is one line with
the seconds that it took; on a terminal pip's packages are counted while they come.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

LOCK = "requirements.lock"
TAIL_LINES = 30  # of a failed command
_PINNED = re.compile(r"^[A-Za-z0-9][\w.-]*==", re.MULTILINE)
_COLLECTED = re.compile(r"(Collecting|Requirement already satisfied:) ")


def commands(directory: Path, uv: str | None, python: str) -> list[tuple[str, list[str]]]:
    """Return the steps, each with its title and its command.

    Args:
        directory: of the environment; it may exist.
        uv: path of ``uv``; None: pip is used.
        python: the interpreter that the environment is made of.
    """
    own = str(directory / "bin" / "python")
    count = len(_PINNED.findall(Path(LOCK).read_text()))
    lock = ["--require-hashes", "-r", LOCK]
    editable = ["--no-deps", "--no-build-isolation", "-e", "."]
    if uv is not None:
        make = [uv, "venv", "--quiet", "--allow-existing", "--seed", "--python", python, str(directory)]
        install = [uv, "pip", "install", "--python", own, *([] if sys.stdout.isatty() else ["--quiet"])]
    else:
        make = [python, "-m", "venv", str(directory)]
        install = [own, "-m", "pip", "install", "--disable-pip-version-check", "--progress-bar", "off"]
    steps = [] if Path(own).exists() else [(f"made {directory}", make)]
    installer = "uv" if uv is not None else "pip"
    steps.append((f"{count} locked packages are installed, by {installer}", [*install, *lock]))
    return [*steps, ("heliograph is installed from this folder", [*install, *editable])]


@contextmanager
def _counted(title: str) -> Iterator[None]:
    begun = time.monotonic()
    yield
    print(f"{time.monotonic() - begun:6.1f} s  {title}", flush=True)


def run(command: Sequence[str]) -> int:
    """Run a command; return its exit code. What it prints is shown if it fails; uv shows its own progress."""
    if not command[0].endswith("python"):
        return subprocess.run(command, check=False).returncode
    is_live, count = sys.stdout.isatty(), 0
    last: deque[str] = deque(maxlen=TAIL_LINES)  # I15
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None, "it is a pipe"
        for line in process.stdout:
            last.append(line)
            count += _COLLECTED.match(line) is not None
            if is_live:
                what = f"{count} packages found" if count else ""
                words = "installing them" if line.startswith("Installing collected") else what
                print(f"\r\x1b[K  ...  {words}", end="", flush=True)
    if is_live:
        print("\r\x1b[K", end="", flush=True)
    if process.returncode:
        print("".join(last), file=sys.stderr)
    return process.returncode


def main(arguments: Sequence[str]) -> int:
    """Make the environment in the folder that the first argument names; return the exit code."""
    directory = Path(arguments[0])
    begun = time.monotonic()
    for title, command in commands(directory, shutil.which("uv"), sys.executable):
        with _counted(title):
            code = run(command)
            if code:
                print(f"failed with {code}: {' '.join(command)}", file=sys.stderr)
                return code
    print(f"{time.monotonic() - begun:6.1f} s  in all")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
