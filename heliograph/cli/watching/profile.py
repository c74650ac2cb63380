"""``helio profile``: sample the stacks of a part from outside by py-spy. The part runs on meanwhile."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from heliograph.base.errors import (
    BadRequestError,
    ConflictError,
    HeliographError,
    NotFoundError,
    NotPermittedError,
    UnsupportedError,
)
from heliograph.base.home import ClusterHome
from heliograph.base.processes import ProcessName
from heliograph.cli.context import CommandContext, single_command
from heliograph.cli.operations.cluster import report_of
from heliograph.cli.options import Target

FORMATS = {".svg": "flamegraph", ".json": "speedscope", ".txt": "raw"}
START_SECONDS_MAX = 60.0  # beyond the sampling: py-spy reads symbols first, and writes its file at the end


@single_command
def profile(
    context: CommandContext,
    part: Annotated[str, typer.Argument(help="Such as broker-1, bookie-2 or gateway.")],
    seconds: Annotated[int, typer.Option(min=1, max=3_600, help="How long to sample.")] = 10,
    output_file: Annotated[
        Path | None, typer.Option("--output", "-o", help="File ending in .svg, .json or .txt. [default: <part>.svg]")
    ] = None,
    native: Annotated[bool, typer.Option("--native", help="Show calls of libraries in C, too.")] = False,
    dump: Annotated[
        bool, typer.Option("--dump", help="Print the stacks of all threads as they are now instead.")
    ] = False,
) -> None:
    """Sample the stacks of a part, by py-spy.

    An .svg is a flame graph for a browser, a .json one for speedscope, a .txt has the counts of each stack. The part
    has to run on this machine, and the caller has to be its user with the right to trace, such as root.
    """
    output, target = context.output, context.target
    path = output_file or Path(f"{part}.svg")
    if path.suffix not in FORMATS:
        raise BadRequestError(f"{path} has no ending that is known", field="output", limit=", ".join(FORMATS))
    pid = pid_of(part, target)
    options = ["--native"] if native else []
    if dump:
        found = sample(["dump", *options, "--pid", str(pid)], part, pid, START_SECONDS_MAX)
        output.result({"part": part, "pid": pid, "stacks": found})
        for line in found.splitlines():
            output.progress(line)
        return
    options += ["--duration", str(seconds), "--format", FORMATS[path.suffix], "--output", str(path.absolute())]
    with output.timed():
        sample(["record", *options, "--threads", "--pid", str(pid)], part, pid, seconds + START_SECONDS_MAX)
    output.result({"part": part, "pid": pid, "seconds": seconds, "file": str(path.absolute())})
    output.done(f"{seconds} s of {part} (process {pid}) are in {path}")


def pid_of(name: str, target: Target) -> int:
    """Return the process of a part, which runs on this machine.

    Raises:
        NotFoundError: there is no such part, or it runs nowhere.
        ConflictError: it runs on another machine, which is named.
        ClusterNotFoundError: there is no cluster.
    """
    report = report_of(target)
    found = next((part for part in report.parts if part.name == name), None)
    if found is None:
        known = ", ".join(part.name for part in report.parts)
        raise NotFoundError(f"there is no part {name}" + (f": there are {known}" if known else ""))
    state = ClusterHome(target.home).load()
    pid = found.pid or (state.own_pid if state is not None else None)  # of `helio dev`, all parts are one process
    if not pid:
        raise NotFoundError(f"{name} has no process that is known: {found.note or found.state or 'it is not reported'}")
    if found.home and not _is_here(found.home):
        raise ConflictError(f"{name} is process {pid} of the machine {found.home}: run helio profile there")
    return pid


def _is_here(address: str) -> bool:
    """Return whether this machine has an address."""
    try:
        family, *_, where = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind(where)
    except OSError:
        return False
    return True


def sample(arguments: list[str], part: str, pid: int, seconds: float) -> str:
    """Run py-spy and return its output.

    Raises:
        UnsupportedError: py-spy is not installed here.
        NotPermittedError: it may not read the process.
        NotFoundError: the process has ended.
        HeliographError: it failed otherwise, or did not end in time.
    """
    beside = os.path.dirname(sys.executable)
    program = shutil.which("py-spy", path=os.pathsep.join((beside, os.environ.get("PATH", os.defpath))))
    if program is None:
        raise UnsupportedError("py-spy is not installed here: pip install 'heliograph-ray[profile]'")
    command = [program, *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        raise HeliographError(f"py-spy did not end in {seconds:.0f} s with process {pid} of {part}") from None
    if done.returncode == 0:
        return done.stdout
    said = done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}"
    if "permission" in said.lower() or "not permitted" in said.lower():
        raise NotPermittedError(
            f"py-spy may not read process {pid} of {part}: run helio as root or as a user with CAP_SYS_PTRACE; "
            "in a container add that capability"
        )
    if ProcessName.of(pid) is None:
        raise NotFoundError(f"process {pid} of {part} has ended: `helio status` shows the running parts")
    raise HeliographError(f"py-spy failed with process {pid} of {part}: {said.splitlines()[-1]}")
