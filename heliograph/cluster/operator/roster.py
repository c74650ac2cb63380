"""Changes of the roster: parts are added for joining nodes or by request, leave, and are held. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

from heliograph.base.errors import BadRequestError, ConflictError, NotFoundError
from heliograph.base.lifecycle import Lifecycle
from heliograph.client.discovery import BOOKIE_PREFIX, BROKER_PREFIX
from heliograph.cluster import labels
from heliograph.cluster.labels import Node, Place
from heliograph.cluster.naming import kind_of, sort_key
from heliograph.cluster.parts import Part
from heliograph.cluster.parts import replicators as replicators_at
from heliograph.metadata.operator_records import PartState, RollingRestart, Roster, RosterPart

PART_LIFE = Lifecycle(
    {
        PartState.WANTED: (
            "The operator creates it where it has its place, and again if it is missing.",
            [PartState.HELD, PartState.LEAVING],
        ),
        PartState.HELD: (
            "It was stopped to be moved; nothing starts it but the end of the move, or `helio up`.",
            [PartState.WANTED, PartState.LEAVING],
        ),
        PartState.LEAVING: (
            "A bookie is emptied, a broker gives its topics away; then it ends.",
            [PartState.WANTED, PartState.GONE],
        ),
        PartState.GONE: ("It is off the roster; the number of a bookie is not given again.", []),
    }
)
KINDS = ("bookie", "broker")
PARTS_MAX = 1_000  # of each kind  # I15


def first_roster(parts: Iterable[Part], nodes: Sequence[Node]) -> Roster:
    """Return the roster of a cluster that is started for the first time; the nodes that are there have their parts."""
    addresses = tuple(sorted({node.address for node in nodes}))
    roster = Roster(nodes=addresses, first_nodes=addresses)
    for part in parts:
        if part.kind == "bookie":
            roster = with_bookie(roster, part.place, part.rack, part.name)
        elif part.kind == "broker":
            roster = _with_part(roster, RosterPart(part.name, dict(part.place.selector), part.place.address))
    return roster


def without_holds(roster: Roster, moving: Collection[str] = ()) -> Roster:
    """Return the roster after a start. The start ends every hold, except of bookies that are being copied."""
    for part in roster.parts:
        if part.state is PartState.HELD and part.name not in moving:
            roster = released(roster, part.name)
    return roster


def staying(roster: Roster, kind: str) -> list[RosterPart]:
    return [part for part in roster.parts if kind_of(part.name) == kind and not part.is_leaving]


def wanted(roster: Roster, kind: str) -> int:
    return roster.wanted_bookies if kind == "bookie" else roster.wanted_brokers


def with_wanted(roster: Roster, kind: str, count: int) -> Roster:
    return replace(roster, wanted_bookies=count) if kind == "bookie" else replace(roster, wanted_brokers=count)


def configured(roster: Roster, kind: str) -> int:
    """Return how many parts of a kind settings or ``helio scale`` asked for last; 0: not known."""
    return roster.configured_bookies if kind == "bookie" else roster.configured_brokers


def with_configured(roster: Roster, kind: str, count: int) -> Roster:
    """Return the roster after a start whose settings ask for ``count`` parts of a kind. None is taken out.

    Settings that ask for as many as before bring nothing back that left since.
    """
    if configured(roster, kind) == count:
        return roster
    return _asked_for(with_wanted(roster, kind, max(count, wanted(roster, kind))), kind, count)


def fewer_than(roster: Roster, *, bookies: int, brokers: int) -> list[str]:
    """Return notes on settings that ask for more parts than are wanted."""
    return [
        f"{kind}s = {count} in the settings, and {found} are wanted since some left: helio scale {kind}s "
        f"{count} has more"
        for kind, count in (("bookie", bookies), ("broker", brokers))
        if (found := wanted(roster, kind)) < count
    ]


def scaled(roster: Roster, kind: str, count: int, leaving: Sequence[str]) -> Roster:
    """Return the roster with ``count`` parts of a kind; ``leaving`` are taken out.

    Raises:
        BadRequestError: the number is out of range.
    """
    if kind not in KINDS:
        raise BadRequestError(f"{kind!r} cannot be scaled", field="kind", limit=", ".join(KINDS))
    if not 1 <= count <= PARTS_MAX:
        raise BadRequestError(f"{count} {kind}s are asked for", field="count", limit=f"1 to {PARTS_MAX}")
    roster = with_leaving(roster, leaving)
    assert len(staying(roster, kind)) <= count, "surplus parts leave"
    if kind == "broker":
        roster = replace(roster, joining_bring_brokers=False)
    return _asked_for(with_wanted(roster, kind, count), kind, count)


def surplus(roster: Roster, kind: str, count: int, away: Iterable[str] = ()) -> list[str]:
    """Return the parts that leave if ``count`` of a kind stay: first the parts that are ``away``, then the youngest."""
    gone = set(away)
    found = staying(roster, kind)
    found.sort(key=lambda part: (part.name not in gone, -number_of(part.name)))
    return [part.name for part in found[: max(0, len(found) - count)]]


def with_leaving(roster: Roster, names: Sequence[str]) -> Roster:
    """Return the roster with parts that are being taken out; as many fewer are wanted."""
    for name in names:
        if not part_named(roster, name).is_leaving:
            kind = kind_of(name)
            roster = with_wanted(roster, kind, max(0, wanted(roster, kind) - 1))
            roster = _moved(roster, name, PartState.LEAVING)
    return roster


def with_staying(roster: Roster, name: str) -> Roster:
    """Return the roster with a part that is not taken out after all; it is wanted again."""
    if not part_named(roster, name).is_leaving:
        return roster
    kind = kind_of(name)
    return with_wanted(_moved(roster, name, PartState.WANTED), kind, wanted(roster, kind) + 1)


def with_held(roster: Roster, name: str) -> Roster:
    """Return the roster with a part that nothing starts until ``helio up``."""
    return _moved(roster, name, PartState.HELD)


def released(roster: Roster, name: str) -> Roster:
    """Return the roster with a part that is no longer held; a leaving part still leaves."""
    if part_named(roster, name).state is not PartState.HELD:
        return roster
    return _moved(roster, name, PartState.WANTED)


def with_place(
    roster: Roster, name: str, journals: Sequence[str], data: Sequence[str], place: Place | None, rack: str
) -> Roster:
    """Return the roster with a bookie at ``place``, unless that is None, and on these directories, if there are any."""
    assert bool(journals) == bool(data), "a bookie has journals and ledgers"
    if journals:  # its disk is free for another
        own = {"journal_directories": tuple(journals), "data_directories": tuple(data)}
        roster = _replaced(roster, name, disk="", **own)
    if place is None:
        return roster
    return _replaced(roster, name, selector=dict(place.selector), address=place.address, rack=rack)


def with_restart(roster: Roster, restart: RollingRestart) -> Roster:
    return replace(roster, restart=restart, failure="")


def with_leaving_node(roster: Roster, address: str) -> Roster:
    return replace(roster, leaving_nodes=tuple(sorted({*roster.leaving_nodes, address})))


def without_leaving_node(roster: Roster, address: str) -> Roster:
    """Return the roster with a node that joins again; without parts, it is given the parts of its labels.

    The brokers of one that was about to leave are gone before its bookie is: it is given them again, and no bookie.
    """
    here = {kind_of(part.name) for part in roster.parts if part.address == address}
    has_parts = "broker" in here if address in roster.leaving_nodes else bool(here)
    return replace(
        roster,
        leaving_nodes=tuple(each for each in roster.leaving_nodes if each != address),
        nodes=tuple(each for each in roster.nodes if each != address or has_parts),
    )


def without(roster: Roster, name: str) -> Roster:
    """Return the roster without a part that is gone for good; if it was not leaving, one fewer is wanted."""
    if all(part.name != name for part in roster.parts):
        return roster
    roster = with_leaving(roster, [name])
    PART_LIFE.move(part_named(roster, name).state, PartState.GONE)
    return replace(roster, parts=tuple(part for part in roster.parts if part.name != name))


def with_bookie(roster: Roster, place: Place, rack: str, name: str = "") -> Roster:
    """Return the roster with one more bookie.

    Args:
        name: of it; empty: the next number that no bookie was given before.
    """
    name = name or f"{BOOKIE_PREFIX}{roster.last_bookie + 1}"
    roster = _with_part(roster, RosterPart(name, dict(place.selector), place.address, rack, disk=place.disk))
    if place.disk:
        roster = replace(roster, disks=tuple(dict.fromkeys([*roster.disks, disk_key(place.address, place.disk)])))
    return replace(roster, last_bookie=max(roster.last_bookie, number_of(name)))


def disk_key(address: str, disk: str) -> str:
    return f"{address} {disk}"


def with_broker(roster: Roster, place: Place) -> Roster:
    """Return the roster with one more broker. Brokers keep no data, so their numbers are given again."""
    used = {part.name for part in roster.parts}
    name = next(name for number in range(1, PARTS_MAX + 2) if (name := f"{BROKER_PREFIX}{number}") not in used)
    return _with_part(roster, RosterPart(name, dict(place.selector), place.address))


def with_broker_at(roster: Roster, name: str, address: str) -> Roster:
    """Return the roster with a broker that has its place on one node."""
    return _replaced(roster, name, address=address)


def replicator_parts(roster: Roster) -> list[Part]:
    return replicators_at({part.name: place_of(part) for part in staying(roster, "bookie")})


def replicators(roster: Roster) -> list[str]:
    """Return the names of ``replicator_parts``."""
    return [part.name for part in replicator_parts(roster)]


def place_of(part: RosterPart) -> Place:
    return Place(part.selector, part.address, part.disk)


def parts_at(roster: Roster, node: Node) -> list[RosterPart]:
    """Return the parts that can run on this node only, whether they are being taken out or not."""
    return [
        part
        for part in roster.parts
        if part.address == node.address
        or (not part.address and part.selector.get(labels.BOOKIE) == part.name == node.labels.get(labels.BOOKIE))
    ]


def number_of(name: str) -> int:
    """Return the number in the name of a part, 0 without one."""
    number = name.rpartition("-")[2]
    return int(number) if number.isdecimal() else 0


def problem_of(node: Node) -> str:
    """Return the problem of a node's labels with the way out; empty if there is none."""
    for key, value in sorted(node.labels.items()):
        if wrong := labels.label_problem(key, value):
            return f"node {node.address} has the label {key}={value}: {wrong}"
    return ""


def _asked_for(roster: Roster, kind: str, count: int) -> Roster:
    if kind == "bookie":
        return replace(roster, configured_bookies=count)
    return replace(roster, configured_brokers=count)


def _with_part(roster: Roster, part: RosterPart) -> Roster:
    assert all(part.name != each.name for each in roster.parts), "a part is in the roster once"
    roster = replace(roster, parts=_sorted((*roster.parts, part)))
    kind = kind_of(part.name)
    return with_wanted(roster, kind, max(wanted(roster, kind), len(staying(roster, kind))))


def require_part(roster: Roster, name: str, kind: str) -> None:
    """Check that the cluster has a part of a kind.

    Raises:
        NotFoundError: it has none of this name.
    """
    names = [part.name for part in roster.parts if kind_of(part.name) == kind]
    if name not in names:
        raise NotFoundError(f"the cluster has no {kind} {name!r}", field=kind, limit=", ".join(names))


def part_named(roster: Roster, name: str) -> RosterPart:
    """Return a part. Raises NotFoundError if there is none of that name."""
    for part in roster.parts:
        if part.name == name:
            return part
    raise NotFoundError(
        f"the cluster has no part {name!r}", field="part", limit=", ".join(part.name for part in roster.parts)
    )


def _moved(roster: Roster, name: str, to: PartState) -> Roster:
    """Return the roster with a part in another state.

    Raises:
        NotFoundError: there is no such part.
        ConflictError: the part cannot have that state now.
    """
    now = part_named(roster, name).state
    if now is not to and to not in PART_LIFE.moves[now]:
        raise ConflictError(f"{name} is {now.value} and cannot be {to.value} now", field="part")
    return _replaced(roster, name, is_held=to is PartState.HELD, is_leaving=to is PartState.LEAVING)


def _replaced(roster: Roster, name: str, **changes: Any) -> Roster:
    part_named(roster, name)
    return replace(
        roster, parts=tuple(replace(part, **changes) if part.name == name else part for part in roster.parts)
    )


def _sorted(parts: Iterable[RosterPart]) -> tuple[RosterPart, ...]:
    return tuple(sorted(parts, key=lambda part: sort_key(part.name)))
