"""Releases of Ray: which ones Heliograph runs on, and what differs between them.

Uses of Ray that are not public stand in ``heliograph/ray/``. Ray is imported when a function needs it.
"""

from __future__ import annotations

import contextlib
import os
import re

from heliograph.base.errors import UnsupportedError
from heliograph.ray.process import dashboard_address, read_token_variables

OLDEST = "2.49"  # actors are placed by labels of nodes, and constructed on their event loop
NEWEST_TESTED = "2.60"
TOKENS_SINCE = "2.52"
STATE_ON_DISK_SINCE = "2.60"
PUSHDOWN_SINCE = "2.60"


def ray_version() -> str:
    """Return the version of the installed Ray, such as ``2.60.0``."""
    import ray

    return str(ray.__version__)


def has_pushdown() -> bool:
    """Return whether Ray Data tells sources the columns and rows that it needs, in the form that is known here."""
    return _numbers(ray_version()) >= _numbers(PUSHDOWN_SINCE)


def require_supported(version: str) -> None:
    """Check that a release of Ray is not too old.

    Raises:
        UnsupportedError: it is older than ``OLDEST``.
    """
    if _numbers(version) < _numbers(OLDEST):
        raise UnsupportedError(
            f"Ray {version} is too old: install ray>={OLDEST},<3, the same version on every node",
            field="ray",
            limit=f">={OLDEST}",
        )


def untested(version: str) -> str:
    """Return a warning about a release that is newer than the tested ones; empty for the others."""
    if _numbers(version) <= _numbers(NEWEST_TESTED):
        return ""
    return f"Ray {version} is newer than {NEWEST_TESTED}, the newest that this version of Heliograph was tested with"


def knows_tokens(version: str) -> bool:
    """Return whether the ports of Ray can ask for a token."""
    return _numbers(version) >= _numbers(TOKENS_SINCE)


def keeps_state(version: str) -> bool:
    """Return whether a head can write Ray's state to its disk, and another one go on from it."""
    return _numbers(version) >= _numbers(STATE_ON_DISK_SINCE)


def is_ray_client() -> bool:
    """Return whether this process uses a cluster through Ray Client (``ray://``), and so has no node of it."""
    from ray.util.client import ray as client

    return bool(client.is_connected())  # type: ignore[no-untyped-call]


def require_node(what: str) -> None:
    """Check that this process is on a node of its Ray, or in none.

    Raises:
        UnsupportedError: it uses Ray Client.
    """
    import ray

    if is_ray_client() or (not ray.is_initialized() and os.environ.get("RAY_ADDRESS", "").startswith("ray://")):
        raise UnsupportedError(
            f"{what} needs a process on a node of the Ray, and this one uses Ray Client (ray://): run it in a task "
            "(@ray.remote), and return from there what you need of the Dataset",
            field="address",
        )


def dashboard_url() -> str:
    """Return the URL of the joined cluster's dashboard; empty if it has none, or if this process is a Ray Client."""
    import ray

    with contextlib.suppress(AttributeError, ray.exceptions.RaySystemError):
        if found := dashboard_address():
            return f"http://{found}"
    return ""


def present_token() -> None:
    """Have this process show its user's token to Ray. A Ray without tokens is left as it is."""
    if not knows_tokens(ray_version()):
        return
    os.environ["RAY_AUTH_MODE"] = "token"
    read_token_variables()


def token_refusals() -> tuple[type[BaseException], ...]:
    """Return the exceptions by which Ray refuses a token; a Ray without tokens has none."""
    import ray.exceptions

    found = getattr(ray.exceptions, "AuthenticationError", None)
    return () if found is None else (found,)


def _numbers(version: str) -> tuple[int, ...]:
    """Return the first two numbers of a version; those of a build without numbers are the newest tested."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else _numbers(NEWEST_TESTED)
