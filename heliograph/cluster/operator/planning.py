"""The operator's plan: nodes, roster and running parts in, a changed roster and actions out. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from heliograph.base.settings import fields_added
from heliograph.client.discovery import BOOKIE_PREFIX
from heliograph.cluster import labels
from heliograph.cluster.labels import Node, Place
from heliograph.cluster.naming import kind_of
from heliograph.cluster.operator import roster as rosters
from heliograph.metadata.operator_records import Roster, RosterPart


@dataclass(frozen=True, slots=True)
class Sight:
    """Nodes and parts as the operator sees them at one moment.

    Attributes:
        nodes: the living nodes.
        draining: addresses of nodes that Ray drains.
        running: names of the parts that Ray has, whether they serve or not.
        homes: addresses of the nodes that parts run on, as far as they are known.
        strangers: notes on actors of other programs that have names of parts.
    """

    nodes: Sequence[Node]
    draining: frozenset[str] = frozenset()
    running: frozenset[str] = frozenset()
    homes: Mapping[str, str] = field(default_factory=dict)
    strangers: Sequence[str] = ()


@fields_added("has_replicators", "copies", "disks")
@dataclass(frozen=True, slots=True)
class OperatorRules:
    """Settings that decide the places of parts.

    Attributes:
        require_labels: parts run on labelled nodes only.
        is_local: listeners are on loopback, so that all parts have to be on one machine.
        copies: of each entry in namespaces that do not set their own; 0: not known.
        disks: by names of nodes; each is for a bookie of its own.
        has_replicators: each place of bookies has a replication worker, because the auditor does no repairs.
    """

    require_labels: bool = True
    is_local: bool = False
    has_replicators: bool = False
    copies: int = 0
    disks: Mapping[str, Sequence[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OperatorPlan:
    """The next actions: store the roster, then carry them out.

    Attributes:
        create: parts of the roster that Ray does not have.
        departures: parts on leaving nodes; taken out if the rest of the cluster can do without them.
        moves: brokers that run elsewhere than on the node of their place, or, without one, on a node that Ray drains.
        surplus: replication workers at places that have no bookie any more.
        notes: problems, and conditions that are waited for.
    """

    roster: Roster
    create: tuple[str, ...] = ()
    departures: tuple[str, ...] = ()
    moves: tuple[str, ...] = ()
    surplus: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def plan(roster: Roster, sight: Sight, rules: OperatorRules) -> OperatorPlan:
    """Return the roster with parts for joining nodes and for wanted numbers, and the actions that lead to it."""
    leaving = sight.draining | {*roster.leaving_nodes}
    roster = _without_gone_nodes(roster, sight, leaving)
    usable, notes = _usable(roster, sight, leaving, rules)
    if rules.require_labels:
        for node in usable:
            if node.address not in roster.nodes:
                roster = _with_node(roster, node, sight.homes, rules.disks)
            roster = _with_disks(roster, node, rules.disks)
        roster = _with_brokers_elsewhere(roster, usable, sight.homes, leaving)
    roster, waits = _filled(roster, usable, rules)
    roster = _with_racks(roster, sight.nodes)
    notes += waits + _missing_nodes(roster, sight.nodes) + _unused_disks(sight.nodes, rules.disks)
    notes += shared_machines(roster, sight.nodes, rules.copies) + _held(roster, sight.running)
    return _steps(roster, sight, leaving, rules, notes)


def _usable(
    roster: Roster, sight: Sight, leaving: frozenset[str], rules: OperatorRules
) -> tuple[list[Node], list[str]]:
    """Return the nodes that may be given parts, and the problems of the others."""
    wrong = {node.address: found for node in sight.nodes if (found := rosters.problem_of(node))}
    usable = [node for node in sight.nodes if node.address not in leaving and node.address not in wrong]
    notes = [*sight.strangers, *wrong.values()]
    if not rules.is_local:
        return usable, notes
    usable, unreachable = _on_one_machine(roster, usable)
    return usable, notes + unreachable


def _steps(
    roster: Roster, sight: Sight, leaving: frozenset[str], rules: OperatorRules, notes: Sequence[str]
) -> OperatorPlan:
    """Return the actions that turn the running parts into those of a roster."""
    there = [part for part in roster.parts if not part.is_leaving]
    replicators = rosters.replicators(roster) if rules.has_replicators else []
    wanted = [*(part.name for part in there if not part.is_held), *replicators]
    surplus = [name for name in sorted(sight.running) if kind_of(name) == "replicator" and name not in replicators]
    return OperatorPlan(
        roster,
        create=tuple(name for name in wanted if name not in sight.running),
        departures=tuple(part.name for part in there if part.address and part.address in leaving)
        + tuple(part.name for part in there if _names_leaving_nodes(part, sight.nodes, leaving)),
        moves=tuple(part.name for part in there if _is_misplaced(part, sight)),
        surplus=tuple(surplus if rules.has_replicators else ()),
        notes=tuple(notes),
    )


def _is_misplaced(part: RosterPart, sight: Sight) -> bool:
    """Return whether a broker runs on a node that Ray drains, or on another than it has its place on."""
    home = sight.homes.get(part.name, "")
    if kind_of(part.name) != "broker" or not home or part.name not in sight.running:
        return False
    is_elsewhere = home != part.address and any(node.address == part.address for node in sight.nodes)
    return is_elsewhere if part.address else home in sight.draining


def _held(roster: Roster, running: frozenset[str]) -> list[str]:
    return [
        f"{part.name} was stopped on request, to be moved: helio up starts it again"
        for part in roster.parts
        if part.is_held and not part.is_leaving and part.name not in running
    ]


def _without_gone_nodes(roster: Roster, sight: Sight, leaving: frozenset[str]) -> Roster:
    """A node that is away and has no part left is new when it comes again.

    A node of the first start is no match, because brokers that may run on any node were made for it, unless it leaves.
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


def _with_node(roster: Roster, node: Node, homes: Mapping[str, str], disks: Mapping[str, Sequence[str]]) -> Roster:
    """Return the roster with the bookie that a joining node is labelled for, and its brokers."""
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
        roster = _with_brokers_of(roster, node, homes)
    return replace(roster, nodes=(*roster.nodes, node.address))


def _with_brokers_of(roster: Roster, node: Node, homes: Mapping[str, str]) -> Roster:
    """Return the roster with the brokers that a joining node brings, or with one that it takes over."""
    brought = int(node.labels.get(labels.BROKERS, 0)) if roster.joining_bring_brokers else 0
    there = sum(kind_of(part.name) == "broker" for part in roster.parts)
    brought = min(brought, max(0, rosters.PARTS_MAX - there))
    for _ in range(brought):
        roster = rosters.with_broker(roster, Place({labels.BROKER: labels.ANY}, node.address))
    return roster if brought else _with_broker_of_another(roster, node, homes)


def _with_broker_of_another(roster: Roster, node: Node, homes: Mapping[str, str]) -> Roster:
    """Return the roster with the youngest broker of a node with several at another node that has none.

    This spreads brokers over joining machines, and keeps the number that was asked for.
    """
    at = _broker_addresses(roster, homes)
    load = Counter(at.values())
    crowded = [name for name, address in at.items() if address and load[address] > 1]
    if node.address in load or not crowded:
        return roster
    return rosters.with_broker_at(roster, max(crowded, key=rosters.number_of), node.address)


def _with_brokers_elsewhere(
    roster: Roster, usable: Sequence[Node], homes: Mapping[str, str], leaving: frozenset[str]
) -> Roster:
    """Return the roster with the brokers of nodes that are to leave at other nodes.

    If more brokers run than were asked for, brokers with a place on such a node depart with it instead.
    """
    addresses = [node.address for node in usable if node.labels.get(labels.BROKER) == labels.ANY]
    if not addresses:
        return roster
    spare = len(rosters.staying(roster, "broker")) - roster.configured_brokers
    for part in rosters.staying(roster, "broker"):
        at = _broker_addresses(roster, homes)
        if at[part.name] not in leaving or (not part.address and at[part.name] not in roster.leaving_nodes):
            continue  # Ray itself starts a broker without a place on another node than one that it drains
        if part.address and (spare > 0 or not roster.configured_brokers):
            spare -= 1
            continue
        load = Counter(at.values())
        roster = rosters.with_broker_at(roster, part.name, min(addresses, key=lambda each: (load[each], each)))
    return roster


def _broker_addresses(roster: Roster, homes: Mapping[str, str]) -> dict[str, str]:
    """Return where each broker that stays has its place or runs; empty: not known."""
    return {part.name: part.address or homes.get(part.name, "") for part in rosters.staying(roster, "broker")}


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
    """Return the roster with as many wanted parts as find room, and notes on the conditions for the others."""
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

    A node with disks has room if and only if one of the disks has no bookie.

    Several bookies on one machine fail together, so a cluster of several nodes waits for another node. A cluster on one
    node always has room.
    """
    load = Counter(_bookie_addresses(roster, nodes).values())
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
    labelled = {node.address for node in nodes if node.labels.get(labels.BOOKIE, "false") != "false"}
    is_alone = labelled | load.keys() == {best.address}
    has_room = is_alone or not load or load[best.address] < max(load.values())
    return best if has_room else None, ""


def _bookie_addresses(roster: Roster, nodes: Sequence[Node]) -> dict[str, str]:
    """Return the machine of each bookie that stays, as far as it has a place on one."""
    found: dict[str, str] = {}
    for part in rosters.staying(roster, "bookie"):
        at = [node.address for node in nodes if part.selector and rosters.place_of(part).admits(node)]
        if address := part.address or (at[0] if len(at) == 1 else ""):
            found[part.name] = address
    return found


def shared_machines(roster: Roster, nodes: Sequence[Node], copies: int) -> list[str]:
    """Return the machines that have several copies of an entry, in a cluster of several machines."""
    at = _bookie_addresses(roster, nodes)
    load = Counter(at.values())
    return [
        f"{copies - len(at) + count} of the {copies} copies of an entry are on {address} ("
        f"{', '.join(name for name in at if at[name] == address)}): have more machines with bookies (helio join), "
        "then take some of these out (helio bookies decommission)"
        for address, count in sorted(load.items())
        if len(load) > 1 and copies - len(at) + count > 1
    ]


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


def _names_leaving_nodes(part: RosterPart, nodes: Sequence[Node], leaving: frozenset[str]) -> bool:
    """Return whether a part's only nodes are labelled with its name, and are to leave."""
    if part.address or part.selector.get(labels.BOOKIE) != part.name:
        return False
    found = [node.address for node in nodes if rosters.place_of(part).admits(node)]
    return bool(found) and leaving.issuperset(found)
