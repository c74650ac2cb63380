"""Releases of Ray: which ones Heliograph runs on, and what differs between them.

No other module uses parts of Ray that are not public, but those of ``heliograph.cluster.head`` that run Ray's programs;
so a release that changes them is met in these. Ray is imported when a function needs it.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from typing import Any

from heliograph.base.errors import UnsupportedError

OLDEST = "2.49"  # actors are placed by labels of nodes, and constructed on their event loop
NEWEST_TESTED = "2.60"
TOKENS_SINCE = "2.52"
STATE_ON_DISK_SINCE = "2.60"
PUSHDOWN_SINCE = "2.60"
NO_DASHBOARD = b"127.0.0.1:9"  # the port of a service that takes what it is sent and says nothing; nobody has it
LOOPBACK_VARIABLE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"  # of Ray: 0 keeps its nodes on 127.0.0.1


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
    """Return what to say of a release that is newer than those that were tested; empty for the others."""
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
        if found := ray._private.worker.get_dashboard_url() or _noted_dashboard():  # type: ignore[no-untyped-call]
            return f"http://{found}"
    return ""


def _noted_dashboard() -> str:
    """Return host and port of a dashboard that started after this process joined; empty: there is none."""
    from ray.experimental import internal_kv

    return (internal_kv._internal_kv_get(b"webui:url", namespace=b"dashboard") or b"").decode()


def tell_of_no_dashboard() -> None:
    """Have the agents of the joined Ray, which has no dashboard, stop asking for its address.

    Ray's agent asks again each second, for ever, and logs a traceback each time.
    """
    from ray.experimental import internal_kv

    internal_kv._internal_kv_put(b"dashboard", NO_DASHBOARD, overwrite=False, namespace=b"dashboard")


def present_token() -> None:
    """Have this process show its user's token to Ray. A Ray without tokens is left as it is."""
    if not knows_tokens(ray_version()):
        return
    os.environ["RAY_AUTH_MODE"] = "token"
    from ray._raylet import Config  # type: ignore[attr-defined]  # compiled

    Config.initialize("")  # Ray read its environment when it was imported


def stay_on_loopback() -> None:
    """Have Ray take this machine's address for 127.0.0.1. Otherwise it takes the one that other machines see."""
    os.environ[LOOPBACK_VARIABLE] = "0"
    from ray._private import ray_constants

    ray_constants.ENABLE_RAY_CLUSTER = False  # Ray read its environment when it was imported


def gcs_client(address: str) -> Any:
    """Return a client of the GCS at ``host:port``, which this process need not have joined."""
    from ray._raylet import GcsClient  # type: ignore[attr-defined]  # compiled

    return GcsClient(address=address)


def token_refusals() -> tuple[type[BaseException], ...]:
    """Return the exceptions by which Ray refuses a token; a Ray without tokens has none."""
    import ray.exceptions

    found = getattr(ray.exceptions, "AuthenticationError", None)
    return () if found is None else (found,)


def draining_nodes() -> frozenset[str]:
    """Return the ids of the nodes that Ray drains, as hexadecimal digits."""
    from ray._private.state import state

    return frozenset(each if isinstance(each, str) else each.hex() for each in state.get_draining_nodes())


def actors_alive() -> list[tuple[str, str]]:
    """Return name and node id of every actor that is alive, of all namespaces, as Ray's GCS knows them."""
    from ray._private.state import actors

    found: Mapping[str, dict[str, Any]] = actors(actor_state_name="ALIVE")
    return [(actor["Name"], actor["Address"]["NodeID"]) for actor in found.values()]


def restarts(actor: str) -> int:
    """Return how often Ray started an actor again, by its id; 0 if Ray does not know it."""
    from ray._private.state import actors

    found: Mapping[str, Any] = actors(actor_id=actor)
    return int(found.get("NumRestarts", 0))


def workers_ended_for_memory() -> list[tuple[int, int, str]]:
    """Return the workers that Ray ended because memory ran short, as far as its GCS remembers them.

    Returns:
        when, in ms since the epoch; the pid; and what Ray says of it, which lists all that it ended then.
    """
    from ray._private import state as private
    from ray.core.generated import common_pb2, gcs_pb2

    state: Any = private.state
    messages: Any = gcs_pb2
    if not hasattr(state, "_connect_and_get_accessor"):  # Ray 2.49
        state._check_connected()
        accessor = state.global_state_accessor
    else:
        accessor = state._connect_and_get_accessor()
    rows = map(messages.WorkerTableData.FromString, accessor.get_worker_table())
    kinds: Any = common_pb2
    short = kinds.WorkerExitType.NODE_OUT_OF_MEMORY
    return [
        (int(row.end_time_ms), int(row.pid), str(row.exit_detail))
        for row in rows
        if row.exit_type == short and not row.is_alive
    ]


def actor_id(handle: Any) -> str:
    """Return the id of an actor as hexadecimal digits; an actor that is started again keeps it."""
    return str(handle._actor_id.hex())


WHOLE_PROGRAM = ("-m", "ray.scripts.scripts")


def _numbers(version: str) -> tuple[int, ...]:
    """Return the first two numbers of a version; those of a build without numbers are the newest tested."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else _numbers(NEWEST_TESTED)
