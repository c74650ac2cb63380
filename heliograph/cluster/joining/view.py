"""The cluster as a machine sees it before it joins, through the key-value store of Ray's GCS.

``helio up`` leaves a card there, and the operator notes on it where the gateway is. A machine that is to join reads it
first, so that what does not fit is refused before anything is started. The card holds no secret: every program with the
token of Ray can read it.
"""

from __future__ import annotations

import contextlib
import json
import platform
import socket
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import TypeVar

import ray
import ray.exceptions

from heliograph.base.errors import ClusterNotFoundError, ConflictError, HeliographError, NotPermittedError
from heliograph.base.home import ClusterHome, ClusterState
from heliograph.base.peer import is_loopback
from heliograph.base.version import heliograph_version
from heliograph.client import discovery, ray_release
from heliograph.cluster.naming import CARDS
from heliograph.ray.gcs import DetachedGcs

_TOLD = ("metadata_url", "service_url", "gateway_url", "tls_ca_file")  # by a card
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class ClusterCard:
    """Facts of a cluster that a machine needs before it joins.

    Attributes:
        namespace: Ray namespace of the actors.
        release: of heliograph, which all nodes have.
        host: the address that listeners bind to, as the configuration has it.
        has_operator: whether nodes that join are given parts.
        metadata_url, service_url, gateway_url: where parts are reached, without secrets; empty until they serve.
        tls_ca_file: authority that signs the certificates of brokers, by its path on every node; empty: none.
    """

    namespace: str
    release: str
    host: str
    has_operator: bool
    metadata_url: str = ""
    service_url: str = ""
    gateway_url: str = ""
    tls_ca_file: str = ""


class OutsideView:
    """A cluster, seen from a machine that need not be a node of it. Calls block.

    Args:
        address: ``host:port`` where nodes join Ray.

    Raises:
        ClusterNotFoundError: nothing answers there.
        NotPermittedError: the token of Ray is not the cluster's.
    """

    def __init__(self, address: str) -> None:
        if not discovery.can_reach(address):
            raise ClusterNotFoundError(
                f"no Ray answers at {address}: is the cluster up, is this its ray_port, and does no firewall "
                "forbid it?",
                field="address",
            )
        self.address = address
        try:
            self._gcs = self._asked(lambda: DetachedGcs(address))
        except ray_release.token_refusals():
            raise NotPermittedError(
                f"the cluster at {address} refuses this machine's token of Ray: copy ~/.ray/auth_token of the user who "
                "ran helio up to the same place here",
                field="token",
            ) from None

    def require_same_programs(self, card: ClusterCard) -> None:
        """Check that this machine has the programs of the cluster.

        Raises:
            ConflictError: it has not; names all that differ.
        """
        found = self._asked(self._gcs.programs)
        theirs = (found.get("python_version"), found.get("ray_version"), card.release)
        ours = (platform.python_version(), ray.__version__, heliograph_version())
        names = ("Python", "Ray", "heliograph")
        differing = [
            f"{name} {there}, and this machine {here}"
            for name, there, here in zip(names, theirs, ours, strict=True)
            if there is not None and there != here
        ]
        if differing:
            raise ConflictError(
                f"the cluster at {self.address} has {'; '.join(differing)}: install the same on this machine",
                field="version",
            )

    def card(self, namespace: str) -> ClusterCard | None:
        """Return the card of a cluster; None if ``helio up`` has left none."""
        found = self._asked(lambda: self._gcs.value(namespace.encode(), CARDS))
        return None if found is None else ClusterCard(**json.loads(found))

    def publish(self, card: ClusterCard) -> None:
        """Leave the card of a cluster, in place of an older one."""
        value = json.dumps(asdict(card)).encode()
        self._asked(lambda: self._gcs.keep(card.namespace.encode(), value, CARDS))

    def withdraw(self, namespace: str) -> None:
        """Take the card of a cluster away: it has ended."""
        self._asked(lambda: self._gcs.forget(namespace.encode(), CARDS))

    def nodes_at(self, address: str) -> frozenset[str]:
        return self._asked(lambda: self._gcs.nodes_at(address))

    def _asked(self, call: Callable[[], _T]) -> _T:
        try:
            return call()
        except ray_release.token_refusals():
            raise
        except (ray.exceptions.RayError, ConnectionError, RuntimeError) as error:
            raise ClusterNotFoundError(f"Ray at {self.address} does not answer: {error}", field="address") from error


def with_card(state: ClusterState, home: ClusterHome) -> ClusterState:
    """Return a joined machine's notes with the addresses of the cluster's card, and note these."""
    with contextlib.suppress(HeliographError):  # the head is away: the next command tries again
        discovery.use_token_if_local(state.ray_address, is_known=state.ray_auth_mode == "token")
        if (card := OutsideView(state.ray_address).card(state.namespace)) is not None and card.metadata_url:
            state = replace(state, **{name: getattr(card, name) for name in _TOLD})
            home.save(state)
    return state


def cluster_at(address: str, namespace: str) -> ClusterState:
    """Return the state of a cluster, as the Ray at an address has it.

    Raises:
        ClusterNotFoundError: no Ray answers, or it knows no such cluster.
        NotPermittedError: this user's token of Ray is not the cluster's.
    """
    discovery.use_token_if_local(address, is_known=False)
    if (card := OutsideView(address).card(namespace)) is None:
        raise ClusterNotFoundError(
            f"no Heliograph runs in Ray namespace {namespace!r} at {address}: helio up starts one"
        )
    return ClusterState(namespace, address, "", **{name: getattr(card, name) for name in _TOLD})


def resolved(address: str, default_port: int) -> str:
    """Return ``host:port`` with the address of the host, and with the usual port if none is given.

    Raises:
        ClusterNotFoundError: the host has no address, or the port is none.
    """
    host, separator, port = address.rpartition(":")
    if not separator:
        host, port = address, str(default_port)
    try:
        if not 0 < int(port) < 1 << 16:
            raise ValueError(port)
        return f"{socket.gethostbyname(host)}:{port}"
    except (OSError, ValueError):
        raise ClusterNotFoundError(f"{address!r} is no host:port that this machine knows", field="address") from None


def own_address_towards(address: str) -> str:
    """Return the address that this machine sends from to ``host:port``; nothing is sent."""
    host, _, port = address.rpartition(":")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, int(port)))
        return str(probe.getsockname()[0])


def require_reach(card: ClusterCard) -> None:
    """Check that parts on several machines would reach each other.

    Raises:
        ConflictError: they would not.
    """
    if is_loopback(card.host):
        raise ConflictError(
            f"the parts of the cluster listen on {card.host}, where no other machine reaches them: on its first "
            "machine, helio config set host node, then helio down and helio up",
            field="host",
        )
