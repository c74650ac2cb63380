"""Discovery of a cluster through Ray: which Ray to join, and the addresses of the brokers and the gateway in it.

The TLS files of a client whose user names none are found here, too.

The module imports Ray when a function needs it, so that a client with an address does without Ray.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
from pathlib import Path
from typing import Any

from heliograph.base.addressing.part_handle import find_part, part_names
from heliograph.base.errors import ClusterNotFoundError, ConflictError, ConnectionLostError, HeliographError
from heliograph.base.home import DEFAULT_NAMESPACE, ClusterHome, ClusterState, default_state_root
from heliograph.base.version import install_advice
from heliograph.client import ray_release
from heliograph.ray.process import join_ray, own_sigterm, stay_on_loopback

CALL_TIMEOUT_SECONDS = 10.0
PROBE_TIMEOUT_SECONDS = 3.0
BROKER_PREFIX = "broker-"
BOOKIE_PREFIX = "bookie-"
GATEWAY = "gateway"
OPERATOR = "operator"
METADATA = "metadata"
METADATA_PREFIX = "metadata-"  # of etcd members that the cluster runs itself
AUDITOR = "auditor"
REPLICATOR_PREFIX = "replicator-"
CA_VARIABLE = "HELIOGRAPH_CLIENT_CA_FILE"
CERTIFICATE_VARIABLE = "HELIOGRAPH_CLIENT_CERTIFICATE_FILE"
KEY_VARIABLE = "HELIOGRAPH_CLIENT_KEY_FILE"
_TLS_VARIABLES = {
    "tls_ca_file": CA_VARIABLE,
    "tls_certificate_file": CERTIFICATE_VARIABLE,
    "tls_key_file": KEY_VARIABLE,
}

_HINT = "start one with `helio dev` or `helio up`, set RAY_ADDRESS to the Ray it runs in, or pass a pulsar:// address"
_attach_lock = threading.Lock()


def namespace_or_noted(namespace: str | None) -> str:
    """Return the Ray namespace of the cluster.

    The first that is set of: ``namespace``, HELIOGRAPH_NAMESPACE, what ``helio up`` recorded in HELIOGRAPH_HOME,
    ``heliograph``.
    """
    if named := namespace or os.environ.get("HELIOGRAPH_NAMESPACE"):
        return named
    home = os.environ.get("HELIOGRAPH_HOME")
    state = ClusterHome(Path(home).expanduser()).load() if home else None
    return state.namespace if state else DEFAULT_NAMESPACE


def noted_state(namespace: str, home: Path | None = None) -> ClusterState | None:
    """Return what ``helio up`` recorded in ``home``, HELIOGRAPH_HOME or the default directory; None for nothing."""
    directory = home or Path(os.environ.get("HELIOGRAPH_HOME") or default_state_root() / namespace).expanduser()
    return ClusterHome(directory).load()


def own_process_state(namespace: str, home: Path | None = None) -> ClusterState | None:
    """Return the record of a cluster that runs in one process of this machine, without Ray.

    None: there is none, or this process has joined a Ray cluster or is told of one, which is looked at instead.
    """
    if is_attached() or os.environ.get("RAY_ADDRESS"):
        return None
    state = noted_state(namespace, home)
    return state if state is not None and state.own_process is not None else None


def attach(namespace: str = DEFAULT_NAMESPACE, *, home: Path | None = None, address: str | None = None) -> None:
    """Join the Ray cluster that Heliograph runs in, unless this process has joined a Ray cluster already.

    The first that is set of: ``address``, RAY_ADDRESS, what ``helio up`` recorded on this machine. The process gets a
    Ray namespace of its own: the actors that it names are not in that of the cluster.

    Raises:
        ClusterNotFoundError: No Ray cluster is named, or the named one cannot be reached.
        ConflictError: This process has joined another Ray cluster than the one at ``address``.
        UnsupportedError: The installed Ray is too old.
    """
    with _attach_lock:
        if own := own_process_state(namespace, home):
            raise ClusterNotFoundError(
                f"the cluster at {own.service_url} is process {own.own_pid}, without Ray: this command needs one of "
                "`helio up`"
            )
        ray = _import_ray()
        ray_release.require_supported(ray_release.ray_version())
        if ray.is_initialized():
            _require_same(address)
            return
        found = address or os.environ.get("RAY_ADDRESS") or _noted_address(namespace, home)
        if not found:
            raise ClusterNotFoundError(
                f"no cluster runs from this home directory, and no Ray cluster is known: {_HINT}"
            )
        state = noted_state(namespace, home)
        if "://" not in found and found not in ("auto", "local"):
            _probe(found, _hint_of(found, state))
        noted = state if state is not None and state.ray_address == found else None
        use_token_if_local(found, is_known=noted is not None and noted.ray_auth_mode == "token")
        _stay_on_loopback_if_noted(found, state)
        try:
            # Without a namespace: what this program names is apart from the parts, which are always named with theirs.
            join_ray(found, noted.node_address if noted is not None else "")
        except Exception as error:  # Ray raises many classes here; all mean the same to a caller
            raise ClusterNotFoundError(
                f"Ray at {found} cannot be joined ({_first_line(error)}): {_hint_of(found, state)}"
            ) from error


def detach() -> None:
    """Leave the Ray cluster, if this process has joined one. Ray's last lines go to standard error."""
    if is_attached():
        with contextlib.redirect_stdout(sys.stderr), own_sigterm():  # lines that repeat are printed at the end
            _import_ray().shutdown()


def is_attached() -> bool:
    """Return whether this process has joined a Ray cluster. Does not import Ray."""
    return "ray" in sys.modules and bool(_import_ray().is_initialized())


def ray_addresses() -> tuple[str, str]:
    """Return the address of the joined Ray cluster and the URL of its dashboard (empty if it has none)."""
    return _import_ray().get_runtime_context().gcs_address, ray_release.dashboard_url()


def own_address() -> str:
    """Return the address of this process's node in the Ray cluster that it has joined."""
    address: str = _import_ray().util.get_node_ip_address()
    return address


def actor_names(namespace: str = DEFAULT_NAMESPACE) -> list[str]:
    """Return the names of all parts of the cluster that are alive or restarting, sorted.

    Raises:
        ClusterNotFoundError: There is no Ray cluster, or no Heliograph in it.
    """
    attach(namespace)
    with _unreachable_as_not_found():
        names = sorted(part_names(namespace))
    if not names:
        raise ClusterNotFoundError(f"no Heliograph runs in Ray namespace {namespace!r}: {_HINT}")
    return names


def broker_names(namespace: str = DEFAULT_NAMESPACE) -> list[str]:
    """Return the actor names of the brokers.

    Raises:
        ClusterNotFoundError: As ``actor_names`` raises it.
        ConnectionLostError: The cluster has no broker now.
    """
    brokers = [name for name in actor_names(namespace) if name.startswith(BROKER_PREFIX)]
    if not brokers:
        raise ConnectionLostError(f"Heliograph in Ray namespace {namespace!r} has no broker: see `helio status`")
    return brokers


def actor(name: str, namespace: str = DEFAULT_NAMESPACE) -> Any:
    """Return the handle of a part: of its actor, or of a part in the shared process.

    Raises:
        ClusterNotFoundError: There is no such part, or Ray does not answer.
    """
    attach(namespace)
    try:
        with _unreachable_as_not_found():
            return find_part(name, namespace)
    except ValueError as error:
        raise ClusterNotFoundError(f"no actor {name!r} in Ray namespace {namespace!r}: {_HINT}") from error


def service_urls(namespace: str = DEFAULT_NAMESPACE, *, encrypted: bool = False) -> list[str]:
    """Return ``pulsar://host:port`` of every broker that answers now, ``pulsar+ssl://`` if it has no plain port.

    Args:
        encrypted: return ``pulsar+ssl://host:port`` of the brokers that speak TLS.

    Raises:
        ClusterNotFoundError: There is no cluster.
        ConnectionLostError: It has no broker now, or none that answers within 10 s.
    """
    if (own := own_process_state(namespace)) and not encrypted:
        return [own.service_url]
    names = broker_names(namespace)
    urls = _ask_all(names, namespace, "service_url_tls" if encrypted else "service_url")
    if not urls and encrypted:
        raise ConnectionLostError(f"none of {', '.join(names)} answers with an address of TLS: see `helio status`")
    if not urls:
        raise ConnectionLostError(f"none of {', '.join(names)} answers: see `helio status`")
    return urls


def gateway_url(namespace: str = DEFAULT_NAMESPACE) -> str:
    """Return ``http://host:port`` of the gateway.

    Raises:
        ClusterNotFoundError: There is no gateway, or it does not answer within 10 s.
    """
    if own := own_process_state(namespace):
        return own.gateway_url
    actor(GATEWAY, namespace)
    urls = _ask_all([GATEWAY], namespace, "start")  # starting is idempotent and returns the address
    if not urls:
        raise ClusterNotFoundError("the gateway does not answer: see `helio status`")
    return urls[0]


def _ask_all(names: list[str], namespace: str, method: str) -> list[str]:
    ray = _import_ray()
    calls = []
    for name in names:
        with contextlib.suppress(ValueError, ray.exceptions.RayError):  # it ended since it was listed, or Ray stalls
            calls.append(getattr(find_part(name, namespace), method).remote())
    if not calls:
        return []
    done, late = ray.wait(calls, num_returns=len(calls), timeout=CALL_TIMEOUT_SECONDS)
    answers = []
    for call in done:
        with contextlib.suppress(ray.exceptions.RayError, HeliographError):  # restarting, or not ready yet
            answers.append(str(call.future().result()))  # in an async actor, ``ray.get`` would warn, on any thread
    for call in late:
        ray.cancel(call)
    return [answer for answer in answers if answer]


def _require_same(address: str | None) -> None:
    """Refuse an address of another Ray cluster than the joined one: a process can join one only."""
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
    """Return whether something listens at a Ray address (``host:port``) now."""
    try:
        _probe(address)
    except ClusterNotFoundError:
        return False
    return True


def require_reach(address: str, state: ClusterState | None = None) -> None:
    """Check that something listens at a Ray address (``host:port``) now.

    Args:
        state: what is recorded of the cluster there, for the way out.

    Raises:
        ClusterNotFoundError: nothing does.
    """
    _probe(address, _hint_of(address, state))


def _hint_of(address: str, state: ClusterState | None) -> str:
    """Return the way out where a Ray does not answer: a machine that joined it is not to start another cluster."""
    if state is None or not state.node_address or state.ray_address != address:
        return _HINT
    return (
        f"it is the head of the cluster that this machine joined as {state.node_address}: start it on its own machine, "
        "or mend the network; the parts of this machine go on meanwhile"
    )


def _probe(address: str, hint: str = _HINT) -> None:
    """Fail within 3 s if nothing listens at ``address``: Ray's own client would try for 20 s."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise ClusterNotFoundError(
            f"{address!r} is not the address of a Ray cluster: the form is host:port, or auto", field="address"
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), PROBE_TIMEOUT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise ClusterNotFoundError(f"no Ray answers at {address} ({error}): {hint}") from error


def _stay_on_loopback_if_noted(address: str, state: ClusterState | None) -> None:
    """Have Ray take this machine's address for 127.0.0.1, if ``helio up`` has started the Ray there in this way.

    Otherwise Ray replaces it by the address that other machines see, where nothing listens.
    """
    if state is None or not state.ray_on_loopback or state.ray_address != address:
        return
    stay_on_loopback()


def ray_token() -> str:
    """Return this user's token of Ray; empty if there is none."""
    if token := os.environ.get("RAY_AUTH_TOKEN"):
        return token
    try:
        return Path(os.environ.get("RAY_AUTH_TOKEN_PATH", "~/.ray/auth_token")).expanduser().read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""


def has_token() -> bool:
    return bool(ray_token())


def use_token_if_local(address: str, *, is_known: bool) -> None:
    """Present this user's Ray token, if there is one, to a Ray cluster on this machine, as ``ray start`` does.

    Ray itself presents it to a cluster that it discovered, never to a given address, which may belong to another user.

    Args:
        is_known: this machine has joined the cluster, and has shown the token then.
    """
    if os.environ.get("RAY_AUTH_MODE") or not has_token():
        return
    if address.startswith("ray://") or not (is_known or is_this_machine(address.rpartition(":")[0])):
        return
    ray_release.present_token()


def is_this_machine(host: str) -> bool:
    """Return whether a host, given by name or address, is the machine of this process."""
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
        advice = install_advice(error) or f"Ray cannot be imported: {error}"
        raise ClusterNotFoundError(
            f"{advice}, start one process with `helio dev`, or pass a pulsar:// address"
        ) from error
    return ray


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def asks_for_tls(options: dict[str, Any]) -> bool:
    """Return whether options of a client ask for TLS: by ``tls_enabled``, or because they name a file of it."""
    return bool(options.get("tls_enabled")) or any(options.get(name) for name in _TLS_VARIABLES)


def tls_options(namespace: str | None) -> dict[str, str]:
    """Return the options of a client that name files of TLS, for addresses of TLS.

    Args:
        namespace: of a cluster whose files ``helio up`` noted on this machine, which are used where the variables
            HELIOGRAPH_CLIENT_CA_FILE, HELIOGRAPH_CLIENT_CERTIFICATE_FILE and HELIOGRAPH_CLIENT_KEY_FILE name none;
            None: only the variables count.
    """
    named = {option: os.environ[variable] for option, variable in _TLS_VARIABLES.items() if os.environ.get(variable)}
    if named or namespace is None:
        return named
    state = noted_state(namespace)
    if state is None or state.namespace != namespace:
        return {}
    return {option: noted for option in _TLS_VARIABLES if (noted := getattr(state, option))}
