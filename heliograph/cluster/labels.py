"""Label selectors of the actors, made from the labels of Ray's nodes. Pure.

The data of a bookie or of the embedded store is on the disk of one node, so their places are strict: without that node,
the actor waits. A node is labelled with ``heliograph.io/bookie=<bookie id>`` for one bookie, or with ``true`` for any;
the bookies are spread over those, and each stays at the address that it was given.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from heliograph.base.errors import BadRequestError, ResourceError

PREFIX = "heliograph.io/"
BOOKIE = "heliograph.io/bookie"
BROKER = "heliograph.io/broker"
BROKERS = "heliograph.io/brokers"  # that the node brings when it joins, unless their number was chosen
METADATA = "heliograph.io/metadata"
RACK = "heliograph.io/rack"
HOST = "heliograph.io/host"  # by which others reach what runs on the node; without it: its Ray node's address
PARTS_MAX = 16  # of a kind that one machine starts with or brings, unless more are asked for
ANY = "true"
ADDRESS_RESOURCE = "node:"  # and an address: a resource that Ray gives to the nodes at that address
METADATA_NAME = "metadata"  # of the actor
METADATA_PREFIX = "metadata-"  # of the actors of etcd members
MEMBER_COUNTS = (1, 3, 5)
FIRST_BOOKIE = "bookie-1"
EVERY_NODE = "*"  # in place of a node's name in tables of settings

KNOWN = (BOOKIE, BROKER, BROKERS, METADATA, RACK, HOST)
ONE_MACHINE = {BOOKIE: ANY, BROKER: ANY, METADATA: ANY}

Selector = dict[str, str]
NodeLabels = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Node:
    """A node of Ray: its address, its labels by name, and its host name."""

    address: str
    labels: Mapping[str, str]
    name: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """The names that tables of settings may use for it, the most specific last."""
        return EVERY_NODE, self.address, self.name, self.labels.get(HOST, "")


@dataclass(frozen=True, slots=True)
class Place:
    """Where an actor may run: on nodes with all labels of ``selector``, and at ``address`` alone unless it is empty.

    ``disk`` is the directory of its data; empty: the directory of the cluster's settings.
    """

    selector: Mapping[str, str] = field(default_factory=dict)
    address: str = ""
    disk: str = ""

    def admits(self, node: Node) -> bool:
        return matches(self.selector, node.labels) and self.address in ("", node.address)

    @classmethod
    def parse(cls, fields: Mapping[str, Any]) -> Place:
        """Return the place of which ``fields`` returned these; fields of a later release are left out."""
        return cls(**{name: fields[name] for name in cls.__dataclass_fields__ if name in fields})

    def fields(self) -> dict[str, Any]:
        """Return the place for JSON. An empty disk is left out: release 0.1.0 does not know the field."""
        found: dict[str, Any] = {"selector": dict(self.selector), "address": self.address}
        return {**found, "disk": self.disk} if self.disk else found

    def __str__(self) -> str:
        text = describe(self.selector) if self.selector else "a node"
        return f"{text} at {self.address}" if self.address else text


def read_labels(texts: Iterable[str]) -> dict[str, str]:
    """Return the labels of a node that are given as ``name=value`` or as several of them with commas.

    Ours may be given without ``heliograph.io/``, so a name without a ``/`` is one of ours.

    Raises:
        BadRequestError: one has another form, or means nothing; names the nearest that does.
    """
    found: dict[str, str] = {}
    for text in (part for each in texts for part in each.split(",")):
        name, separator, value = text.strip().partition("=")
        if not separator or not name or not value:
            raise BadRequestError(f"{text!r} is no label: give name=value", field="label")
        key = name if "/" in name else PREFIX + name
        if key.startswith(PREFIX) and key not in KNOWN:
            raise BadRequestError(f"the label {name} means nothing; the nearest is {_nearest(key)}", field="label")
        if wrong := label_problem(key, value):
            raise BadRequestError(f"the label {name}={value} is wrong: {wrong}", field="label")
        found[key] = value
    return found


def label_problem(key: str, value: str) -> str:
    """Return the problem of one of our labels, with the way out; empty if there is none."""
    if key.startswith(PREFIX) and key not in KNOWN:
        return f"it means nothing; the nearest is {_nearest(key)}"
    if key == BOOKIE and value not in (ANY, "false") and not _is_bookie(value):
        return f"use {ANY} for any bookie, or the name of one such as bookie-4"
    if key == BROKERS and not (value.isdecimal() and int(value) <= PARTS_MAX):
        return f"use a number up to {PARTS_MAX}"
    if key in (BROKER, METADATA) and value not in (ANY, "false"):
        return f"use {ANY}, or leave it out"
    return ""


def _nearest(key: str) -> str:
    return difflib.get_close_matches(key, KNOWN, n=1, cutoff=0.0)[0]


def _is_bookie(name: str) -> bool:
    kind, _, number = name.partition("-")
    return kind == "bookie" and number.isdecimal() and int(number) > 0


def is_single_unlabelled(nodes: Sequence[Node], known: Mapping[str, Place]) -> bool:
    """Return whether the only node has none of our labels, and no data is on labelled nodes: every part runs there."""
    if any(place.selector for place in known.values()):
        return False
    return len(nodes) == 1 and not any(name.startswith(PREFIX) for name in nodes[0].labels)


def storage_places(names: Sequence[str], nodes: Sequence[Node], known: Mapping[str, Place]) -> dict[str, Place]:
    """Return the place of each part with data on a disk. A part that has a place keeps it, also if its node is away.

    Args:
        names: of bookies and of the embedded store.
        nodes: the living nodes.
        known: where parts were placed before.

    Raises:
        ResourceError: a part that is new finds no node with a label for it, or too many are labelled for metadata.
    """
    general = sorted({node.address for node in nodes if node.labels.get(BOOKIE) == ANY})
    places: dict[str, Place] = {}
    for name in names:
        own = _own_label(name, nodes)
        if own is not None:
            places[name] = Place(own)
        elif name in known:
            places[name] = _kept(known[name], general, known)
        elif name == METADATA_NAME and (first := places.get(FIRST_BOOKIE)) is not None:
            places[name] = first
        elif not general:
            raise ResourceError(_missing(BOOKIE, name), field="labels")
        else:
            load = Counter(place.address for each, place in places.items() if each != METADATA_NAME)
            places[name] = Place({BOOKIE: ANY}, min(general, key=lambda address: (load[address], address)))
    return places


def member_places(
    count: int | None, nodes: Sequence[Node], known: Mapping[str, Place], *, is_local: bool, require_labels: bool
) -> dict[str, Place]:
    """Return the place of each etcd member. A member that has a place keeps it, also if its node is away.

    Args:
        count: of the members at the first start; None: one for each labelled node.
        nodes: the living nodes.
        known: where parts were placed before.
        is_local: all parts are on one machine, so that several members may share a node.
        require_labels: use labelled nodes only.

    Raises:
        ResourceError: fewer nodes are labelled than there are members.
    """
    selector, usable = _member_nodes(nodes, known, require_labels=require_labels)
    before = {name: _kept(place, usable, known) for name, place in known.items() if name.startswith(METADATA_PREFIX)}
    if before:
        return before
    if not usable:
        raise ResourceError(_missing(METADATA, "an etcd member"), field="labels")
    wanted = count or max(each for each in MEMBER_COUNTS if each <= max(1, len(usable)))
    if len(usable) < wanted and not is_local:
        raise ResourceError(
            f"{wanted} etcd members need a node each, and {len(usable)} nodes are labelled {METADATA}={ANY}: "
            f"start more with `helio join --label {METADATA}={ANY}`",
            field="labels",
        )
    names = [f"{METADATA_PREFIX}{number}" for number in range(1, wanted + 1)]
    return {name: Place(selector, usable[index % len(usable)]) for index, name in enumerate(names)}


def further_member_places(
    nodes: Sequence[Node], known: Mapping[str, Place], *, is_local: bool, require_labels: bool
) -> list[Place]:
    """Return where further etcd members may be: one on each usable node without one; on one machine, any number.

    Args:
        nodes: the living nodes.
        known: where parts are.
        is_local: all parts are on one machine, so that several members may share a node.
        require_labels: use labelled nodes only.
    """
    selector, usable = _member_nodes(nodes, known, require_labels=require_labels)
    if is_local:
        return [Place(selector, usable[0])] * max(MEMBER_COUNTS) if usable else []
    taken = {place.address for name, place in known.items() if name.startswith(METADATA_PREFIX)}
    return [Place(selector, address) for address in usable if address not in taken]


def _member_nodes(
    nodes: Sequence[Node], known: Mapping[str, Place], *, require_labels: bool
) -> tuple[dict[str, str], list[str]]:
    """Return the labels of nodes for etcd members, and the addresses of the nodes that carry them."""
    is_bare = not require_labels or is_single_unlabelled(nodes, known)
    selector = {} if is_bare else {METADATA: ANY}
    return selector, sorted({node.address for node in nodes if matches(selector, node.labels)})


def disks_of(node: Node, disks: Mapping[str, Sequence[str]]) -> Sequence[str]:
    """Return the disks that the configuration has for a node, each of which is for a bookie.

    Args:
        disks: by names of nodes.
    """
    found: Sequence[str] = ()
    for name in node.names:
        found = disks.get(name, found)
    return found


def on_disks(
    places: Mapping[str, Place], nodes: Sequence[Node], known: Mapping[str, Place], disks: Mapping[str, Sequence[str]]
) -> dict[str, Place]:
    """Return the places with a free disk for each bookie that is new at the address of a node with disks."""
    found = dict(places)
    for name, place in places.items():
        used = {each.disk for each in found.values() if each.address == place.address}
        at = [node for node in nodes if node.address == place.address]
        free = [disk for node in at for disk in disks_of(node, disks) if disk not in used]
        if free and name not in known and _is_bookie(name):
            found[name] = replace(place, disk=free[0])
    return found


def _own_label(name: str, nodes: Sequence[Node]) -> Selector | None:
    """Return the labels of the node that is labelled for this part and no other; None if there is none."""
    if name == METADATA_NAME:
        named = [node for node in nodes if node.labels.get(METADATA) == ANY]
        if len(named) > 1:
            raise ResourceError(
                f"{len(named)} nodes are labelled {METADATA}={ANY}, and the embedded "
                "store is one: leave one, or set metadata_kind to etcd",
                field="labels",
            )
        return {METADATA: ANY} if named else None
    return {BOOKIE: name} if any(node.labels.get(BOOKIE) == name for node in nodes) else None


def _kept(place: Place, general: Sequence[str], known: Mapping[str, Place]) -> Place:
    """Return the same place; a cluster on one machine follows it when its address has changed."""
    before = {each.address for each in known.values() if each.address}
    if place.address and len(before) == len(general) == 1:
        return replace(place, address=general[0])
    return place


def broker_selector(nodes: Sequence[Node]) -> Selector:
    """Return the selector of brokers, auditor and gateway, which keep nothing on disk.

    Raises:
        ResourceError: no node has the label.
    """
    if not any(node.labels.get(BROKER) == ANY for node in nodes):
        raise ResourceError(_missing(BROKER, "a broker"), field="labels")
    return {BROKER: ANY}


def describe(selector: Mapping[str, str]) -> str:
    """Describe a selector: ``a node labelled heliograph.io/bookie=true``."""
    return "a node labelled " + " and ".join(f"{key}={value}" for key, value in selector.items())


def why_not_running(place: Place, nodes: Iterable[Node], state: str | None, restarts: int) -> str:
    """Return the likely reason why an actor is not ready.

    Args:
        nodes: the living nodes.
        state: the actor's, in Ray's words; None if Ray does not say.
    """
    if not any(place.admits(node) for node in nodes):
        return f"it is waiting for {place}"
    if state is None:
        return "Ray does not say why; see the logs in the Ray dashboard"
    if state in ("PENDING_CREATION", "DEPENDENCIES_UNREADY"):
        return "no node has room for it (see `ray status`), or its process is slow to start"
    if restarts:
        return f"it was restarted {restarts} times; see `helio logs`"
    return f"it is {state.lower()}, but does not answer: its start has not finished, or it hangs"


def matches(selector: Mapping[str, str], node: NodeLabels) -> bool:
    return all(node.get(key) == value for key, value in selector.items())


def _missing(label: str, part: str) -> str:
    return (
        f"no node of this Ray cluster is labelled for {part}: start one with `helio join --label {label}={ANY}`, "
        "or pass --no-require-labels to use any node"
    )
