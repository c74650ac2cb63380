"""Nearby bookies: copies on this machine are read first, then copies in its rack, so that few cross the network.

The rack is what the variable ``HELIOGRAPH_RACK`` says, else that of a bookie on this machine, else the label of the
node on which Ray runs this process.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
from collections.abc import Mapping

from heliograph.client.discovery import is_this_machine

RACK_VARIABLE = "HELIOGRAPH_RACK"
RACK_LABEL = "heliograph.io/rack"  # of a node of Ray, as ``heliograph/cluster/labels.py`` has it

log = logging.getLogger(__name__)


def nearby_bookies(
    addresses: Mapping[str, str], racks: Mapping[str, str] | None = None
) -> tuple[frozenset[str], frozenset[str]]:
    """Return the bookies of this machine, and the bookies of its rack.

    Args:
        addresses: ``host:port`` or ``tls://host:port`` by bookie.
        racks: the racks of bookies, as far as they are known.
    """
    here = frozenset(bookie for bookie, address in addresses.items() if _is_near(_host_of(address)))
    known = racks or {}
    if len(set(known.values())) < 2:
        return here, frozenset()  # all are equally near
    own = own_rack([known[bookie] for bookie in sorted(here) if bookie in known])
    return here, frozenset(bookie for bookie, rack in known.items() if rack == own)


def own_rack(of_neighbours: list[str]) -> str:
    """Return the rack of this machine; empty: it is not known.

    Args:
        of_neighbours: racks of the bookies on this machine.
    """
    told = os.environ.get(RACK_VARIABLE, "")
    return told or (of_neighbours[0] if of_neighbours else _rack_of_node())


@functools.cache
def _rack_of_node() -> str:
    """Return the label of the node that runs this process; empty without Ray, or without a label."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return ""
    try:
        node_id = ray.get_runtime_context().get_node_id()
        labels = next((node.get("Labels") or {} for node in ray.nodes() if node["NodeID"] == node_id), {})
    except Exception as error:  # Ray may be going down, or not let a task ask: the order of copies is no reason to fail
        log.debug("the rack of this node is not known: %s", error)
        return ""
    return str(labels.get(RACK_LABEL, ""))


def _host_of(address: str) -> str:
    return address.rpartition("/")[2].rpartition(":")[0]


@functools.lru_cache(maxsize=1024)  # I15
def _is_near(host: str) -> bool:
    return is_this_machine(host)
