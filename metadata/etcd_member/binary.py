"""The program ``etcd`` of a node: its path, and whether its version can be used."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess

from heliograph.base.errors import ResourceError

OLDEST = (3, 4, 0)
BELOW = (4, 0, 0)
DAMAGING = ((3, 5, 0), (3, 5, 2))  # first and last version that can corrupt its data
ANSWER_SECONDS = 20.0
_VERSION = re.compile(r"etcd Version: (\d+)\.(\d+)\.(\d+)")

Version = tuple[int, int, int]


def find_etcd(configured: str) -> tuple[str, Version]:
    """Return the path and the version of this node's etcd. Blocks.

    Args:
        configured: a path; empty: PATH is searched.

    Raises:
        ResourceError: there is none, it does not run, or its version cannot be used; names the node and the remedy.
    """
    node = socket.gethostname()
    path = shutil.which(configured or "etcd")
    if path is None:
        where = f"at {configured}" if configured else "in PATH"
        raise ResourceError(
            f"node {node} has no program etcd {where}: install it there (apt install etcd-server), or name it with "
            "etcd.binary",
            field="etcd.binary",
        )
    version = _version_of(path, node)
    if version is None:
        raise ResourceError(f"{path} on node {node} does not say that it is etcd", field="etcd.binary")
    if why := problem_of(version):
        raise ResourceError(
            f"{path} on node {node} is etcd {dotted(version)}, {why}: install another there, or name "
            "one with etcd.binary",
            field="etcd.binary",
        )
    return path, version


def problem_of(version: Version) -> str:
    """Return why a version cannot be used; empty if it can. Pure."""
    if version < OLDEST:
        return f"and {dotted(OLDEST)} is the oldest that can be used"
    if DAMAGING[0] <= version <= DAMAGING[1]:
        return "which can corrupt its data"
    return "which is not known" if version >= BELOW else ""


def dotted(version: Version) -> str:
    return ".".join(map(str, version))


def _version_of(path: str, node: str) -> Version | None:
    try:
        ran = subprocess.run(
            [path, "--version"], capture_output=True, text=True, errors="replace", timeout=ANSWER_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ResourceError(f"{path} on node {node} does not run: {error}", field="etcd.binary") from error
    found = _VERSION.search(ran.stdout)
    return None if found is None else (int(found[1]), int(found[2]), int(found[3]))
