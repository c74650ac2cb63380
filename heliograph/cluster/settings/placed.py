"""What a part decides on the node that runs it: its settings there, its addresses, its free ports.

An actor's process imports this module and not the one that creates actors, which imports those of all parts: each
process would hold the code of every part.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Any

import ray
import ray.util

from heliograph.actors.bookie.config import BookieConfig
from heliograph.actors.broker.config import BrokerConfig
from heliograph.base.peer import ListenAddress
from heliograph.base.settings import restored
from heliograph.cluster import labels, ports
from heliograph.cluster.settings.nodes import Tables, on_node
from heliograph.gateway.config import GatewayConfig


def on_this_node(name: str, namespace: str, nodes: Tables, argument: Any) -> Any:
    """Return an argument of an actor with the settings, addresses and ports that it has on the node that runs it.

    Args:
        argument: as ``portable`` returned it.
        name: of the actor.
        namespace: of the cluster.
        nodes: the settings that parts have on one node only.
    """
    argument = restored(argument)
    if not isinstance(argument, ListenAddress | BookieConfig | BrokerConfig | GatewayConfig):
        return argument
    node_labels: Mapping[str, Any] = ray.get_runtime_context().get_node_labels()
    address = str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]
    machine = ports.Machine(address, socket.gethostname(), node_labels.get(labels.HOST, ""))
    names = (labels.EVERY_NODE, machine.address, machine.name, machine.advertised_host)
    return machine.listening(on_node(argument, names, nodes), f"{namespace}/{name}")
