"""What the operator does next: nodes, roster and running parts in, a changed roster and actions out. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from heliograph.client.discovery import BOOKIE_PREFIX
from heliograph.cluster import labels
from heliograph.cluster.labels import Node, Place
from heliograph.cluster.naming import kind_of
from heliograph.cluster.operator import roster as rosters
from heliograph.metadata.operator_records import Roster, RosterPart


@dataclass(frozen=True, slots=True)
class Sight:
    """What the operator sees at one moment.

    Attributes:
        nodes: the living ones.
        draining: addresses of nodes that Ray drains.
        running: names of the parts that Ray has, whether they serve or not.
        homes: addresses of the nodes that parts run on, as far as they are known.
        strangers: what is to be said of actors of other programs that have names of parts.
    """

    nodes: Sequence[Node]
    draining: frozenset[str] = frozenset()
    running: frozenset[str] = frozenset()
    homes: Mapping[str, str] = field(default_factory=dict)
    strangers: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class OperatorRules:
    """What the configuration says of places.

    Attributes:
        require_labels: parts run on labelled nodes only.
        is_local: listeners are on loopback, so that all parts have to be on one machine.
        disks: by names of nodes; each is for a bookie of its own.
        has_replicators: each place of bookies has a replication worker, because the auditor does no repairs.
    """

    require_labels: bool = True
    is_local: bool = False
    has_replicators: bool = False
    disks: Mapping[str, Sequence[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OperatorPlan:
    """What to do: store the roster, then act.

    Attributes:
        create: parts of the roster that Ray does not have.
        departures: parts on nodes that are to leave; taken out where the rest of the cluster can do without them.
        moves: brokers without a place of their own that run on nodes that Ray drains.
        surplus: replication workers that run where no bookie is to be any more.
        notes: what is wrong, and what is waited for.
    """

    roster: Roster
    create: tuple[str, ...] = ()
    departures: tuple[str, ...] = ()
    moves: tuple[str, ...] = ()
    surplus: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def plan(roster: Roster, sight: Sight, rules: OperatorRules) -> OperatorPlan:
    """Return the roster with parts for joining nodes and for what is wanted, and what is to be done."""
    notes = [*sight.strangers, *(wrong for node in sight.nodes if (wrong := rosters.what_is_wrong_with(node)))]
    leaving = sight.draining | {*roster.leaving_nodes}
    roster = _without_gone_nodes(roster, sight, leaving)
    usable = [node for node in sight.nodes if node.address not in leaving and not rosters.what_is_wrong_with(node)]
    if rules.is_local:
        usable, unreachable = _on_one_machine(roster, usable)
        notes += unreachable
    if rules.require_labels:
        for node in usable:
            if node.address not in roster.nodes:
                roster = _with_node(roster, node, rules.disks)
            roster = _with_disks(roster, node, rules.disks)
    roster, waits = _filled(roster, usable, rules)
    roster = _with_racks(roster, sight.nodes)
    notes += waits + _missing_nodes(roster, sight.nodes) + _unused_disks(sight.nodes, rules.disks)
    there = [part for part in roster.parts if not part.is_leaving]
    wanted = [part.name for part in there if not part.is_held]
    notes += [
        f"{part.name} was stopped on request, to be moved: helio up starts it again"
        for part in there
        if part.is_held and part.name not in sight.running
    ]
    replicators = rosters.replicators(roster) if rules.has_replicators else []
    return OperatorPlan(
        roster,
        create=tuple(name for name in (*wanted, *replicators) if name not in sight.running),
        departures=tuple(part.name for part in there if part.address and part.address in leaving)
        + tuple(part.name for part in there if _is_named_by(part, sight.nodes, leaving)),
        moves=tuple(
            part.name
            for part in there
            if kind_of(part.name) == "broker" and not part.address and sight.homes.get(part.name) in sight.draining
        ),
        surplus=tuple(
            name
            for name in sorted(sight.running)
            if rules.has_replicators and kind_of(name) == "replicator" and name not in replicators
        ),
        notes=tuple(notes),
    )


def _without_gone_nodes(roster: Roster, sight: Sight, leaving: frozenset[str]) -> Roster:
    """A node that is away and has no part left is new when it comes again.

    One of the first start is not, for brokers that may run on any node were made for it, unless it was to leave.
    """
    first_nodes = tuple(address for address in roster.first_nodes if address not in leaving)
    kept = {node.address for node in sight.nodes} | {part.address for part in roster.parts}
    if any(not part.address for part in rosters.staying(roster, "broker")):
        kept.update(first_nodes)
    return replace(
        roster,
        first_nodes=first_nodes,
        nodes=tuple(address for address in roster.nodes if address in kept),
        disks=tuple(disk for disk in roster.disks if disk.partition(" ")[0] in kept),
        leaving_nodes=tuple(address for address in roster.leaving_nodes if address in kept),
    )


def _on_one_machine(roster: Roster, nodes: Sequence[Node]) -> tuple[list[Node], list[str]]:
    used = {*roster.nodes}
    usable = [node for node in nodes if not used or node.address in used]
    notes = [
        f"node {node.address} cannot take parts: host is a loopback address; set host to node, and restart the parts"
        for node in nodes
        if node not in usable
    ]
    return usable, notes


def _with_node(roster: Roster, node: Node, disks: Mapping[str, Sequence[str]]) -> Roster:
    """Return the roster with the parts that a joining node is labelled for."""
    assert node.address not in roster.nodes, "a node is given its parts once"
    label = node.labels.get(labels.BOOKIE, "")
    rack = node.labels.get(labels.RACK, "default")
    names = {part.name for part in roster.parts}
    if (
        label == labels.ANY
        and not labels.disks_of(node, disks)
        and not any(part.address == node.address for part in roster.parts if kind_of(part.name) == "bookie")
    ):
        roster = rosters.with_bookie(roster, Place({labels.BOOKIE: labels.ANY}, node.address), rack)
    elif label.startswith(BOOKIE_PREFIX) and label not in names:
        roster = rosters.with_bookie(roster, Place({labels.BOOKIE: label}), rack, label)
    if node.labels.get(labels.BROKER) == labels.ANY:
        roster = rosters.with_broker(roster, Place({labels.BROKER: labels.ANY}, node.address))
    return replace(roster, nodes=(*roster.nodes, node.address))


def _with_disks(roster: Roster, node: Node, disks: Mapping[str, Sequence[str]]) -> Roster:
    """Return the roster with a bookie on each disk of a node for bookies that was given none before."""
    if node.labels.get(labels.BOOKIE) != labels.ANY:
        return roster
    for disk in labels.disks_of(node, disks):
        if rosters.disk_key(node.address, disk) not in roster.disks:
            place = Place({labels.BOOKIE: labels.ANY}, node.address, disk)
            roster = rosters.with_bookie(roster, place, node.labels.get(labels.RACK, "default"))
    return roster


def _unused_disks(nodes: Sequence[Node], disks: Mapping[str, Sequence[str]]) -> list[str]:
    return [
        f"node {node.address} has disks in the configuration, and its label {labels.BOOKIE}={label} is for one bookie: "
        f"use {labels.ANY} for a bookie on each disk"
        for node in nodes
        if labels.disks_of(node, disks)
        and (label := node.labels.get(labels.BOOKIE, "")) not in ("", labels.ANY, "false")
    ]


def _filled(roster: Roster, nodes: Sequence[Node], rules: OperatorRules) -> tuple[Roster, list[str]]:
    """Return the roster with as many parts as are wanted and find room, and what the others wait for."""
    notes = []
    while (missing := roster.wanted_bookies - len(rosters.staying(roster, "bookie"))) > 0:
        node, disk = _roomiest(roster, nodes, rules.disks) if rules.require_labels else (None, "")
        if node is None and rules.require_labels:
            notes.append(
                f"{missing} more bookies are wanted, and no node labelled {labels.BOOKIE}={labels.ANY} has room: start "
                "one with helio join --label"
            )
            break
        place = Place() if node is None else Place({labels.BOOKIE: labels.ANY}, node.address, disk)
        rack = "default" if node is None else node.labels.get(labels.RACK, "default")
        roster = rosters.with_bookie(roster, place, rack)
    for _ in range(roster.wanted_brokers - len(rosters.staying(roster, "broker"))):
        roster = rosters.with_broker(roster, Place({labels.BROKER: labels.ANY} if rules.require_labels else {}))
    # On one node without labels, no broker asks for one.
    is_asked_for = any(labels.BROKER in part.selector for part in rosters.staying(roster, "broker"))
    if is_asked_for and not any(node.labels.get(labels.BROKER) == labels.ANY for node in nodes):
        notes.append(f"no node is labelled {labels.BROKER}={labels.ANY}: start one with helio join --label")
    return roster, notes


def _roomiest(roster: Roster, nodes: Sequence[Node], disks: Mapping[str, Sequence[str]]) -> tuple[Node | None, str]:
    """Return the node with the fewest bookies, unless that is as many as on the fullest one, and a free disk of it.

    A node with disks has room while one of them has no bookie, and only then.

    Several bookies on one machine fail together, so a cluster of several nodes waits for another node. A cluster on one
    node always has room.
    """
    load = Counter(part.address for part in rosters.staying(roster, "bookie") if part.address)
    general = [node for node in nodes if node.labels.get(labels.BOOKIE) == labels.ANY]
    used = {(part.address, part.disk) for part in roster.parts}
    free = [
        (node, disk) for node in general for disk in labels.disks_of(node, disks) if (node.address, disk) not in used
    ]
    if free:
        return min(free, key=lambda one: (load[one[0].address], one[0].address))
    general = [node for node in general if not labels.disks_of(node, disks)]
    if not general:
        return None, ""
    best = min(general, key=lambda node: (load[node.address], node.address))
    is_alone = {node.address for node in general} | load.keys() == {best.address}
    has_room = is_alone or not load or load[best.address] < max(load.values())
    return best if has_room else None, ""


def _with_racks(roster: Roster, nodes: Sequence[Node]) -> Roster:
    """Return the roster with the racks that the nodes of bookies have now; a node that is away keeps its rack."""
    parts = []
    for part in roster.parts:
        racks = [node.labels.get(labels.RACK, "default") for node in nodes if rosters.place_of(part).admits(node)]
        is_new = bool(racks) and kind_of(part.name) == "bookie" and racks[0] != part.rack
        parts.append(replace(part, rack=racks[0]) if is_new else part)
    return replace(roster, parts=tuple(parts))


def _missing_nodes(roster: Roster, nodes: Sequence[Node]) -> list[str]:
    waiting: dict[str, list[str]] = {}
    for part in roster.parts:
        place = rosters.place_of(part)
        if (part.selector or part.address) and not any(place.admits(node) for node in nodes):
            waiting.setdefault(str(place), []).append(part.name)
    return [f"{', '.join(names)}: waiting for {place}, which is away" for place, names in waiting.items()]


def _is_named_by(part: RosterPart, nodes: Sequence[Node], leaving: frozenset[str]) -> bool:
    """Return whether a part's only nodes are labelled with its name, and are to leave."""
    if part.address or part.selector.get(labels.BOOKIE) != part.name:
        return False
    found = [node.address for node in nodes if rosters.place_of(part).admits(node)]
    return bool(found) and leaving.issuperset(found)
