"""Decisions of a part on the node that runs it: its settings there, its addresses, its free ports.

An actor's process imports this module and not the one that creates actors, which imports those of all parts: each
process would hold the code of every part.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import ray
import ray.exceptions
import ray.util

from heliograph.actors.bookie.config import BookieConfig
from heliograph.actors.broker.config import BrokerConfig
from heliograph.base.errors import HeliographError, ResourceError
from heliograph.base.peer import ListenAddress
from heliograph.base.settings import restored
from heliograph.cluster import labels, ports
from heliograph.cluster.settings.nodes import Tables, on_node
from heliograph.gateway.config import GatewayConfig

SIGN_SECONDS = 60.0  # for the authority's machine to sign the certificate of a node
RENEWAL_CHECK_SECONDS = 60.0  # between two looks at the end of the node's certificate, of which one takes 1 ms
RENEWAL_RETRY_SECONDS = 3_600.0  # after the authority did not sign; there are 30 days left
_ADDRESS_SHARE = 0.001  # of a node's resource for its address
_LISTENERS = (ListenAddress, BookieConfig, BrokerConfig, GatewayConfig)


# By the names that this process has a certificate for: what makes it again when it is about to end. A process has one
# or two: its actor's arguments are few.  # I15
_certified: dict[tuple[str, ...], Callable[[], bool]] = {}
_renewal = threading.Lock()

log = logging.getLogger(__name__)


def on_this_node(
    name: str, namespace: str, nodes: Tables, argument: Any, *, certificates: str = "", signed_at: str = ""
) -> Any:
    """Return an argument of an actor with the settings, addresses and ports that it has on the node that runs it.

    Args:
        argument: as ``portable`` returned it.
        name: of the actor.
        namespace: of the cluster.
        nodes: the settings that parts have on one node only.
        certificates: directory on each node with the certificate of the node; empty: files that others made, or no TLS.
        signed_at: address of the node that has the key of the authority in this directory.

    Raises:
        HeliographError: the node has no certificate and gets none, or a setting or port cannot be used.
    """
    argument = restored(argument)
    if certificates:
        _certify(certificates, signed_at, _this_machine(), argument)
    if not isinstance(argument, _LISTENERS):
        return argument
    machine = _this_machine()
    names = (labels.EVERY_NODE, machine.address, machine.name, machine.advertised_host)
    return machine.listening(on_node(argument, names, nodes), f"{namespace}/{name}")


def _this_machine() -> ports.Machine:
    node_labels: Mapping[str, Any] = ray.get_runtime_context().get_node_labels()
    address = str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]
    return ports.Machine(address, socket.gethostname(), node_labels.get(labels.HOST, ""))


def _certify(directory: str, signed_at: str, machine: ports.Machine, argument: Any) -> None:
    """Make sure that this node has its certificate, which names it and what its parts are told to be reached at."""
    advertised = machine.advertised(argument) if isinstance(argument, _LISTENERS) else ""
    names = tuple(sorted({machine.address, machine.name, machine.advertised_host, advertised} - {""}))
    if names in _certified:
        return
    # It loads much, which few parts need.
    from heliograph.base.tls.node_certificate import ensure_node_certificate, has_certificate

    def sign(request: bytes) -> tuple[bytes, bytes]:
        where = {f"{labels.ADDRESS_RESOURCE}{signed_at}": _ADDRESS_SHARE}
        task = ray.remote(_sign).options(num_cpus=0, resources=where)
        try:
            signed: tuple[bytes, bytes] = ray.get(task.remote(directory, request), timeout=SIGN_SECONDS)
        except ray.exceptions.RayError as error:
            raise ResourceError(
                f"{machine.address} gets no certificate from the authority at {signed_at}: {error}"
            ) from error
        return signed

    ensure = partial(ensure_node_certificate, Path(directory), names, sign)
    try:
        ensure()
    except ResourceError as error:
        if not has_certificate(Path(directory), names):
            raise
        log.warning("the certificate of this node is about to end and is not renewed yet: %s", error)
    _certified[names] = ensure
    _start_renewal()


def _start_renewal() -> None:
    """Have a thread of this process renew its certificates in time; the listeners read changed files by themselves."""
    if _renewal.acquire(blocking=False):  # it is never released: one thread for the life of the process
        threading.Thread(target=_renew_for_ever, name="certificates", daemon=True).start()


def _renew_for_ever() -> None:
    pause = RENEWAL_CHECK_SECONDS
    while True:
        time.sleep(pause)
        pause = RENEWAL_CHECK_SECONDS if renew_certificates() else RENEWAL_RETRY_SECONDS


def renew_certificates() -> bool:
    """Make the certificates of this node again that are about to end. Return False if one could not be made."""
    is_done = True
    for ensure in list(_certified.values()):
        try:
            if ensure():
                log.warning("the certificate of this node was renewed")
        except HeliographError as error:
            log.warning("the certificate of this node is about to end and cannot be renewed now: %s", error)
            is_done = False
    return is_done


def _sign(directory: str, request: bytes) -> tuple[bytes, bytes]:
    from heliograph.base.tls.authority import CertificateAuthority

    return CertificateAuthority(Path(directory)).sign(request)
