"""Finding a cluster through Ray: which Ray to join, and where in it the brokers and the gateway are.

This module imports Ray only when it is asked, so that clients that are given an address never need it.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
from pathlib import Path
from typing import Any

from heliograph.cluster.home import ClusterHome, ClusterState
from heliograph.config import DEFAULT_NAMESPACE, default_state_root
from heliograph.errors import ClusterNotFoundError, ConflictError, HeliographError

CALL_TIMEOUT_SECONDS = 10.0
PROBE_TIMEOUT_SECONDS = 3.0
BROKER_PREFIX = "broker-"
BOOKIE_PREFIX = "bookie-"
GATEWAY = "gateway"
METADATA = "metadata"
AUDITOR = "auditor"

_HINT = "start one with `helio up`, set RAY_ADDRESS to the Ray it runs in, or pass a pulsar:// address"
_attach_lock = threading.Lock()


def namespace_or_noted(namespace: str | None) -> str:
    """The Ray namespace of the cluster that is meant.

    In this order: ``namespace``, HELIOGRAPH_NAMESPACE, what ``helio up`` noted in HELIOGRAPH_HOME, ``heliograph``.
    """
    if named := namespace or os.environ.get("HELIOGRAPH_NAMESPACE"):
        return named
    home = os.environ.get("HELIOGRAPH_HOME")
    state = ClusterHome(Path(home).expanduser()).load() if home else None
    return state.namespace if state else DEFAULT_NAMESPACE


def noted_state(namespace: str, home: Path | None = None) -> ClusterState | None:
    """What ``helio up`` noted on this machine, in ``home``, HELIOGRAPH_HOME or the usual place; None: nothing."""
    directory = home or Path(os.environ.get("HELIOGRAPH_HOME") or default_state_root() / namespace).expanduser()
    return ClusterHome(directory).load()


def attach(namespace: str = DEFAULT_NAMESPACE, *, home: Path | None = None, address: str | None = None) -> None:
    """Join the Ray that the cluster runs in, unless this process is in a Ray already.

    Tried in this order: the Ray joined already, ``address``, RAY_ADDRESS, what ``helio up`` noted on this machine.

    Raises:
        ClusterNotFoundError: no Ray is named, or the named one cannot be reached.
        ConflictError: this process is in a Ray already, which is not the one at ``address``.
    """
    with _attach_lock:
        ray = _import_ray()
        if ray.is_initialized():
            _require_same(address)
            return
        found = address or os.environ.get("RAY_ADDRESS") or _noted_address(namespace, home)
        if not found:
            raise ClusterNotFoundError(f"no Ray cluster is known to this process: {_HINT}")
        if "://" not in found and found not in ("auto", "local"):
            _probe(found)
        _use_token_if_local(found)
        try:
            ray.init(address=found, namespace=namespace, log_to_driver=False, configure_logging=False)
        except Exception as error:  # Ray raises many kinds here; all mean the same to a caller
            raise ClusterNotFoundError(f"Ray at {found} cannot be joined ({_first_line(error)}): {_HINT}") from error


def detach() -> None:
    """Leave Ray, if this process is in one."""
    if is_attached():
        _import_ray().shutdown()


def is_attached() -> bool:
    """Whether this process is in a Ray. Does not import Ray."""
    return "ray" in sys.modules and bool(_import_ray().is_initialized())


def ray_addresses() -> tuple[str, str]:
    """The joined Ray's own address and the URL of its dashboard (empty when it runs without one)."""
    context = _import_ray().get_runtime_context()
    dashboard = _import_ray()._private.worker.get_dashboard_url()
    return context.gcs_address, f"http://{dashboard}" if dashboard else ""


def actor_names(namespace: str = DEFAULT_NAMESPACE) -> list[str]:
    """Names of all actors of the cluster that are alive or restarting, sorted.

    Raises:
        ClusterNotFoundError: there is no Ray, or no Heliograph in it.
    """
    attach(namespace)
    ray = _import_ray()
    with _unreachable_as_not_found():
        found = ray.util.list_named_actors(all_namespaces=True)
    names = sorted(entry["name"] for entry in found if entry["namespace"] == namespace)
    if not names:
        raise ClusterNotFoundError(f"no Heliograph runs in Ray namespace {namespace!r}: {_HINT}")
    return names


def broker_names(namespace: str = DEFAULT_NAMESPACE) -> list[str]:
    """Actor names of the brokers.

    Raises:
        ClusterNotFoundError: as ``actor_names``, or no broker is among them.
    """
    brokers = [name for name in actor_names(namespace) if name.startswith(BROKER_PREFIX)]
    if not brokers:
        raise ClusterNotFoundError(f"Heliograph in Ray namespace {namespace!r} has no broker: see `helio status`")
    return brokers


def actor(name: str, namespace: str = DEFAULT_NAMESPACE) -> Any:
    """The handle of a named actor.

    Raises:
        ClusterNotFoundError: there is no such actor.
    """
    attach(namespace)
    try:
        return _import_ray().get_actor(name, namespace=namespace)
    except ValueError as error:
        raise ClusterNotFoundError(f"no actor {name!r} in Ray namespace {namespace!r}: {_HINT}") from error


def service_urls(namespace: str = DEFAULT_NAMESPACE) -> list[str]:
    """``pulsar://host:port`` of every broker that answers now.

    Raises:
        ClusterNotFoundError: there is no cluster, or no broker of it answers within 10 s.
    """
    names = broker_names(namespace)
    urls = _ask_all(names, namespace, "service_url")
    if not urls:
        raise ClusterNotFoundError(f"none of {', '.join(names)} answers: see `helio status`")
    return urls


def gateway_url(namespace: str = DEFAULT_NAMESPACE) -> str:
    """``http://host:port`` of the gateway.

    Raises:
        ClusterNotFoundError: there is no gateway, or it does not answer within 10 s.
    """
    actor(GATEWAY, namespace)
    urls = _ask_all([GATEWAY], namespace, "start")  # starting is idempotent and returns the address
    if not urls:
        raise ClusterNotFoundError("the gateway does not answer: see `helio status`")
    return urls[0]


def _ask_all(names: list[str], namespace: str, method: str) -> list[str]:
    ray = _import_ray()
    calls = []
    for name in names:
        with contextlib.suppress(ValueError):  # gone since it was listed
            calls.append(getattr(ray.get_actor(name, namespace=namespace), method).remote())
    if not calls:
        return []
    done, late = ray.wait(calls, num_returns=len(calls), timeout=CALL_TIMEOUT_SECONDS)
    answers = []
    for call in done:
        with contextlib.suppress(ray.exceptions.RayError, HeliographError):  # restarting, or not ready yet
            answers.append(str(ray.get(call)))
    for call in late:
        ray.cancel(call)
    return [answer for answer in answers if answer]


def _require_same(address: str | None) -> None:
    """A process can be in one Ray only."""
    joined = ray_addresses()[0]
    if address is not None and address != joined:
        raise ConflictError(
            f"this process is in the Ray at {joined} already, and the cluster is in the one at {address}: "
            "call ray.shutdown() first, or use another process"
        )


def _noted_address(namespace: str, home: Path | None) -> str:
    state = noted_state(namespace, home)
    return state.ray_address if state else ""


def can_reach(address: str) -> bool:
    """Whether something listens at a Ray address (``host:port``) now."""
    try:
        _probe(address)
    except ClusterNotFoundError:
        return False
    return True


def _probe(address: str) -> None:
    """Fail at once where Ray's own client would try for 20 s."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise ClusterNotFoundError(
            f"{address!r} is no address of a Ray: the form is host:port, or auto", field="address"
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), PROBE_TIMEOUT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise ClusterNotFoundError(f"no Ray answers at {address} ({error}): {_HINT}") from error


def _use_token_if_local(address: str) -> None:
    """Use this user's Ray token towards a Ray of this machine, as ``ray start`` on it does when the token exists.

    Ray itself does so for a cluster that it found, never for an address that it was given, which may be a stranger's.
    """
    token_file = Path(os.environ.get("RAY_AUTH_TOKEN_PATH", "~/.ray/auth_token")).expanduser()
    if os.environ.get("RAY_AUTH_MODE") or not (os.environ.get("RAY_AUTH_TOKEN") or token_file.exists()):
        return
    if address.startswith("ray://") or not _is_this_machine(address.rpartition(":")[0]):
        return
    os.environ["RAY_AUTH_MODE"] = "token"
    from ray._raylet import Config  # type: ignore[attr-defined]  # compiled

    Config.initialize("")  # Ray read its environment when it was imported


def _is_this_machine(host: str) -> bool:
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host.strip("[]"), 0))  # only an address of this machine can be bound
        return True
    return False


@contextlib.contextmanager
def _unreachable_as_not_found() -> Any:
    ray = _import_ray()
    try:
        yield
    except (ray.exceptions.RayError, ConnectionError, RuntimeError) as error:
        raise ClusterNotFoundError(f"Ray does not answer ({_first_line(error)}): {_HINT}") from error


def _import_ray() -> Any:
    try:
        import ray
        import ray.exceptions
        import ray.util
    except ImportError as error:
        raise ClusterNotFoundError(f"Ray is not installed ({error}): pass a pulsar:// address instead") from error
    return ray


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
