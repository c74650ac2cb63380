"""Label selectors of the actors, made from the labels of Ray's nodes. Pure.

The data of a bookie or of the embedded store is on the disk of one node, so their selectors are strict: without a
matching node, the actor waits. A node is labelled with ``heliograph.io/bookie=<bookie id>``; or with ``true`` if it is
the only node for bookies, and then carries all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from heliograph.base.errors import ResourceError

BOOKIE = "heliograph.io/bookie"
BROKER = "heliograph.io/broker"
METADATA = "heliograph.io/metadata"
RACK = "heliograph.io/rack"
HOST = "heliograph.io/host"  # by which others reach what runs on the node; without it: its Ray node's address
ANY = "true"

ONE_MACHINE = {BOOKIE: ANY, BROKER: ANY, METADATA: ANY}

Selector = dict[str, str]
NodeLabels = Mapping[str, str]


def bookie_selector(bookie_id: str, nodes: Sequence[NodeLabels]) -> Selector:
    """Return the selector of a bookie, given the labels of all living nodes.

    Raises:
        ResourceError: no node has the label, or several nodes are labelled ``true``, so that the disk is ambiguous.
    """
    if any(node.get(BOOKIE) == bookie_id for node in nodes):
        return {BOOKIE: bookie_id}
    general = [node for node in nodes if node.get(BOOKIE) == ANY]
    if len(general) > 1:
        raise ResourceError(
            f"{len(general)} nodes are labelled {BOOKIE}={ANY}: label the node that holds the disk of {bookie_id} with "
            f"{BOOKIE}={bookie_id}, so that it returns to it after a restart",
            field="labels",
        )
    if not general:
        raise ResourceError(_missing(BOOKIE, bookie_id), field="labels")
    return {BOOKIE: ANY}


def broker_selector(nodes: Sequence[NodeLabels]) -> Selector:
    """Return the selector of brokers, auditor and gateway, which keep nothing on disk.

    Raises:
        ResourceError: no node has the label.
    """
    if not any(node.get(BROKER) == ANY for node in nodes):
        raise ResourceError(_missing(BROKER, "a broker"), field="labels")
    return {BROKER: ANY}


def metadata_selector(nodes: Sequence[NodeLabels]) -> Selector:
    """Return the selector of the embedded store: the node labelled for it, else the first bookie's.

    Raises:
        ResourceError: neither exists, or several nodes are labelled for it.
    """
    named = [node for node in nodes if node.get(METADATA) == ANY]
    if len(named) > 1:
        raise ResourceError(f"{len(named)} nodes are labelled {METADATA}={ANY}: leave one", field="labels")
    if named:
        return {METADATA: ANY}
    return bookie_selector("bookie-1", nodes)


def describe(selector: Mapping[str, str]) -> str:
    """Describe a selector: ``a node labelled heliograph.io/bookie=true``."""
    return "a node labelled " + " and ".join(f"{key}={value}" for key, value in selector.items())


def why_not_running(selector: Mapping[str, str], nodes: Iterable[NodeLabels], state: str | None, restarts: int) -> str:
    """Return the likely reason why an actor is not ready.

    Args:
        nodes: the labels of the living nodes.
        state: the actor's, in Ray's words; None if Ray does not say.
    """
    if selector and not any(matches(selector, node) for node in nodes):
        return f"it is waiting for {describe(selector)}"
    if state is None:
        return "Ray does not say why; see the logs in the Ray dashboard"
    if state in ("PENDING_CREATION", "DEPENDENCIES_UNREADY"):
        return "no node has room for it (see `ray status`), or its process is slow to start"
    if restarts:
        return f"it was restarted {restarts} times; see `helio logs`"
    return f"it is {state.lower()}, but its start has not finished"


def matches(selector: Mapping[str, str], node: NodeLabels) -> bool:
    """Return whether a node has all labels of a selector."""
    return all(node.get(key) == value for key, value in selector.items())


def _missing(label: str, part: str) -> str:
    return (
        f"no node of this Ray cluster is labelled for {part}: start one with `ray start --labels {label}={ANY}`, "
        "or pass --no-require-labels to use any node"
    )
