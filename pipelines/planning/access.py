"""Which cluster a plan is made of, who asks, and by which way: a gateway, the process that runs it all, or Ray."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from heliograph.client import discovery
from heliograph.client.admin.admin import Admin, AdminSync
from heliograph.client.admin.over_http import GatewayCalls, noted_gateway
from heliograph.client.identity import Identity


@dataclass(frozen=True)
class ClusterAccess:
    """A cluster as a planner reaches it. It can be pickled.

    Args:
        namespace: Ray namespace of the cluster; None: the one that ``heliograph.connect`` uses.
        identity: who asks; None: that of the environment.
        gateway: ``http://host:port`` or ``https://host:port``; empty: the gateway that ``helio up`` recorded on this
            machine, or the brokers' actors where this process has joined Ray.
        tls: the files of TLS for the gateway, by the names of a client's options.
    """

    namespace: str | None = None
    identity: Identity | None = field(default=None, repr=False)
    gateway: str = ""
    tls: Mapping[str, str] = field(default_factory=dict)

    def admin(self) -> Admin:
        """Return the administration of the cluster; joins Ray if that is the only way.

        Raises:
            ClusterNotFoundError: there is no cluster.
        """
        namespace, gateway = self._reached()
        return Admin(namespace, self.identity, gateway)

    def admin_sync(self) -> AdminSync:
        """Return the blocking form of ``admin``; errors are the same."""
        namespace, gateway = self._reached()
        return AdminSync(namespace, self.identity, gateway)

    def _reached(self) -> tuple[str, GatewayCalls | None]:
        namespace = discovery.namespace_or_noted(self.namespace)
        if self.gateway:
            return namespace, GatewayCalls(self.gateway, namespace, self.tls)
        gateway = noted_gateway(namespace, None, self.tls)
        if gateway is None and discovery.own_process_state(namespace) is None:
            discovery.attach(namespace)
        return namespace, gateway
