"""The operator's decisions: nodes, roster and running parts in, a roster and actions out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heliograph.base.errors import BadRequestError, ConflictError, NotFoundError
from heliograph.cluster import labels
from heliograph.cluster.labels import Node, Place
from heliograph.cluster.operator import roster as rosters
from heliograph.cluster.operator.planning import OperatorPlan, OperatorRules, Sight, plan
from heliograph.cluster.parts import Part
from heliograph.metadata.operator_records import PartState, Roster

BOTH = {labels.BOOKIE: "true", labels.BROKER: "true"}
NODES = [Node(f"10.0.0.{number}", {**BOTH, labels.RACK: f"r{number}"}) for number in (1, 2, 3, 4, 5)]
THREE = NODES[:3]


def first(nodes: list[Node], brokers: int = 2) -> Roster:
    bookies = [
        Part(f"bookie-{number}", "bookie", Place({labels.BOOKIE: "true"}, node.address))
        for number, node in enumerate(nodes, 1)
    ]
    others = [Part(f"broker-{n}", "broker", Place({labels.BROKER: "true"})) for n in range(1, brokers + 1)]
    return rosters.first_roster([Part("metadata", "metadata"), *bookies, *others], nodes)


def seen(roster: Roster, nodes: list[Node], draining: str = "", rules: OperatorRules | None = None) -> OperatorPlan:
    running = frozenset(part.name for part in roster.parts)
    return plan(roster, Sight(nodes, frozenset({draining} - {""}), running), rules or OperatorRules())


def names(roster: Roster, kind: str) -> list[str]:
    return [part.name for part in rosters.staying(roster, kind)]


def test_nodes_that_are_there_at_the_start_get_no_more_parts() -> None:
    found = seen(first(THREE[:2]), THREE[:2])
    assert not found.create
    assert not found.notes
    assert (found.roster.wanted_bookies, found.roster.wanted_brokers) == (2, 2)


def test_one_node_without_labels_is_not_asked_for_any() -> None:
    nodes = [Node("10.0.0.1", {})]
    parts = [Part("metadata", "metadata"), Part("bookie-1", "bookie", Place()), Part("broker-1", "broker", Place())]
    found = seen(rosters.first_roster(parts, nodes), nodes)
    assert not found.notes


def test_a_joining_node_gets_the_parts_of_its_labels_and_keeps_them() -> None:
    found = seen(first(THREE), NODES[:4])
    assert found.create == ("bookie-4",)
    place = {part.name: part for part in found.roster.parts}
    assert (place["bookie-4"].address, place["bookie-4"].rack) == ("10.0.0.4", "r4")
    again = plan(found.roster, Sight(NODES[:4], running=frozenset(place)), OperatorRules())
    assert again == OperatorPlan(found.roster)


def test_a_node_labelled_with_the_name_of_a_bookie_gets_that_one() -> None:
    found = seen(first(THREE), [*THREE, Node("10.0.0.9", {labels.BOOKIE: "bookie-7"})])
    assert found.create == ("bookie-7",)
    assert found.roster.last_bookie == 7
    assert rosters.place_of(found.roster.parts[3]) == Place({labels.BOOKIE: "bookie-7"})


def test_numbers_of_bookies_are_not_given_again() -> None:
    roster = rosters.without(seen(first(THREE), NODES[:4]).roster, "bookie-4")
    assert names(seen(roster, NODES).roster, "bookie")[-1] == "bookie-5"


def test_a_node_whose_bookie_was_taken_out_gets_no_other_unless_it_left() -> None:
    roster = rosters.without(seen(first(THREE), NODES[:4]).roster, "bookie-4")
    assert not seen(roster, NODES[:4]).create
    gone = seen(roster, THREE).roster
    assert seen(gone, NODES[:4]).create == ("bookie-5",)


def with_homes(roster: Roster, nodes: list[Node], leaving: str = "", **homes: str) -> OperatorPlan:
    """Return the plan where brokers run on the nodes of these numbers, all others nowhere."""
    at = {name.replace("_", "-"): f"10.0.0.{number}" for name, number in homes.items()}
    running = frozenset(part.name for part in roster.parts)
    return plan(roster, Sight(nodes, frozenset({leaving} - {""}), running, at), OperatorRules())


def test_machines_that_join_take_brokers_over_and_their_number_stays() -> None:
    """Two brokers on the first machine: the first one that joins gets the younger, and the next one gets none."""
    found = with_homes(first(NODES[:1]), NODES[:2], broker_1="1", broker_2="1")
    assert found.moves == ("broker-2",)
    assert {part.name: part.address for part in rosters.staying(found.roster, "broker")} == {
        "broker-1": "",
        "broker-2": "10.0.0.2",
    }
    third = with_homes(found.roster, THREE, broker_1="1", broker_2="2")
    assert names(third.roster, "broker") == ["broker-1", "broker-2"]
    assert not third.moves
    assert third.roster.wanted_brokers == 2


def test_a_machine_brings_brokers_for_its_cores_and_takes_them_along() -> None:
    roster = replace(rosters.with_configured(first(NODES[:1]), "broker", 2), joining_bring_brokers=True)
    large = Node("10.0.0.2", {**BOTH, labels.BROKERS: "3"})
    joined = with_homes(roster, [NODES[0], large], broker_1="1", broker_2="1")
    assert joined.create == ("bookie-2", "broker-3", "broker-4", "broker-5")
    assert not joined.moves
    assert joined.roster.wanted_brokers == 5
    places = {part.address for part in rosters.staying(joined.roster, "broker") if part.name > "broker-2"}
    assert places == {"10.0.0.2"}
    homes = {"broker_1": "1", "broker_2": "1", "broker_3": "2", "broker_4": "2", "broker_5": "2"}
    again = with_homes(joined.roster, [NODES[0], large], **homes)
    assert again.roster == joined.roster
    assert not again.create
    left = with_homes(joined.roster, [NODES[0], large], "10.0.0.2", **homes)
    assert left.departures == ("bookie-2", "broker-3", "broker-4", "broker-5")
    assert not left.moves


def test_a_machine_brings_no_brokers_where_their_number_was_chosen() -> None:
    """Two brokers became four while the settings said two."""
    large = Node("10.0.0.2", {**BOTH, labels.BROKERS: "2"})
    scaled = rosters.scaled(replace(first(NODES[:1]), joining_bring_brokers=True), "broker", 2, ())
    for roster in (first(NODES[:1]), scaled):
        found = with_homes(roster, [NODES[0], large], broker_1="1", broker_2="1")
        assert found.moves == ("broker-2",)
        assert found.roster.wanted_brokers == 2


@pytest.mark.parametrize("is_asked_to_leave", [True, False])
def test_a_broker_of_a_node_that_is_to_leave_goes_on_elsewhere_where_the_settings_ask_for_it(
    is_asked_to_leave: bool,
) -> None:
    roster = rosters.with_broker_at(first(NODES[:2]), "broker-2", "10.0.0.2")
    roster = rosters.with_configured(roster, "broker", 2)
    leaving = "" if is_asked_to_leave else "10.0.0.2"
    roster = replace(roster, leaving_nodes=("10.0.0.2",) if is_asked_to_leave else ())
    found = with_homes(roster, NODES[:2], leaving, broker_1="1", broker_2="2")
    assert found.departures == ("bookie-2",)
    assert found.moves == ("broker-2",)
    assert found.roster.parts[-1].address == "10.0.0.1"
    unplaced = replace(roster, parts=tuple(replace(part, address="") for part in roster.parts))
    assert with_homes(unplaced, NODES[:2], leaving, broker_1="1", broker_2="2").moves == ("broker-2",)


def test_more_brokers_than_the_settings_ask_for_leave_with_their_node() -> None:
    roster = rosters.with_broker_at(rosters.with_configured(first(NODES[:2]), "broker", 1), "broker-2", "10.0.0.2")
    found = with_homes(roster, NODES[:2], "10.0.0.2", broker_1="1", broker_2="2")
    assert found.departures == ("bookie-2", "broker-2")
    assert not found.moves


def test_two_machines_that_join_at_once_share_the_bookies_that_are_wanted() -> None:
    """The first bookie has a machine by its name, so the first of the two machines is not the only one."""
    own = Node("10.0.0.9", {labels.BOOKIE: "bookie-1"})
    parts = [Part("bookie-1", "bookie", Place({labels.BOOKIE: "bookie-1"}))]
    roster = rosters.with_wanted(rosters.first_roster(parts, [own]), "bookie", 3)
    one = seen(roster, [own, NODES[0]])
    assert one.create == ("bookie-2",)
    assert "1 more bookies are wanted" in one.notes[0]
    both = seen(one.roster, [own, *NODES[:2]])
    assert {part.name: part.address for part in both.roster.parts[1:]} == {
        "bookie-2": "10.0.0.1",
        "bookie-3": "10.0.0.2",
    }


def test_a_machine_with_several_copies_of_an_entry_is_named() -> None:
    place = Place({labels.BOOKIE: "true"}, "10.0.0.1")
    roster = rosters.with_bookie(first(NODES[:2]), place, "r1")
    rules = OperatorRules(copies=3)
    (note,) = seen(roster, NODES[:2], rules=rules).notes
    assert note.startswith("2 of the 3 copies of an entry are on 10.0.0.1 (bookie-1, bookie-3)")
    assert not seen(roster, NODES[:2], rules=OperatorRules(copies=2)).notes
    alone = rosters.with_bookie(first(NODES[:1]), place, "r1")
    assert not seen(alone, NODES[:1], rules=rules).notes, "a cluster on one machine"


@pytest.mark.parametrize("label", [labels.BROKER, labels.BOOKIE])
def test_a_node_of_the_first_start_that_was_away_gets_no_further_parts(label: str) -> None:
    """Its parts have no address: a broker runs on any labelled node, and a bookie may be pinned by its name."""
    own = Node("10.0.0.9", {labels.BROKER: "true"} | ({label: "bookie-4"} if label == labels.BOOKIE else {}))
    nodes = [*THREE, own]
    started = rosters.first_roster(
        [
            Part("bookie-1", "bookie", Place({labels.BOOKIE: "true"}, "10.0.0.1")),
            Part("bookie-4", "bookie", Place({labels.BOOKIE: "bookie-4"})),
            Part("broker-1", "broker", Place({labels.BROKER: "true"})),
        ],
        nodes,
    )
    before = seen(started, nodes).roster
    away = seen(before, THREE).roster
    assert seen(away, nodes).roster == before
    left = plan(before, Sight(nodes, frozenset({own.address})), OperatorRules()).roster
    again = with_homes(seen(left, THREE).roster, nodes, broker_1="1")
    assert own.address in again.roster.nodes, "it left: it is new"
    assert names(again.roster, "broker") == ["broker-1"]


def test_more_bookies_take_nodes_with_room_and_then_wait() -> None:
    roster = rosters.without(seen(first(THREE), NODES[:4]).roster, "bookie-4")
    found = seen(rosters.scaled(roster, "bookie", 5, []), NODES[:4])
    assert found.create == ("bookie-5",)
    assert "1 more bookies are wanted" in found.notes[0]
    assert "helio join --label" in found.notes[0]
    assert found.roster.wanted_bookies == 5
    joined = seen(found.roster, NODES)
    assert joined.roster.wanted_bookies == 5, "the node that joins is the one that was waited for"
    assert names(joined.roster, "bookie")[-1] == "bookie-6"


def test_a_cluster_on_one_node_has_room() -> None:
    roster = rosters.scaled(first(NODES[:1]), "bookie", 3, [])
    assert seen(roster, NODES[:1]).create == ("bookie-2", "bookie-3")


def test_the_youngest_leave_first_and_those_that_are_away_before_them() -> None:
    roster = first(THREE)
    assert rosters.surplus(roster, "bookie", 2) == ["bookie-3"]
    assert rosters.surplus(roster, "bookie", 1, ["bookie-1"]) == ["bookie-1", "bookie-3"]
    smaller = rosters.scaled(roster, "bookie", 2, ["bookie-3"])
    assert names(smaller, "bookie") == ["bookie-1", "bookie-2"]
    assert not seen(smaller, THREE).create
    assert rosters.scaled(smaller, "bookie", 2, rosters.surplus(smaller, "bookie", 2)) == smaller


def test_what_runs_on_a_node_that_is_to_leave_departs() -> None:
    roster = rosters.with_broker(seen(first(THREE), NODES[:4]).roster, Place({labels.BROKER: "true"}, "10.0.0.4"))
    sight = Sight(
        NODES[:4],
        frozenset({"10.0.0.4"}),
        frozenset({"broker-1", "broker-2"}),
        {"broker-1": "10.0.0.4", "broker-2": "10.0.0.1"},
    )
    found = plan(roster, sight, OperatorRules())
    assert found.departures == ("bookie-4", "broker-3")
    assert found.moves == ("broker-1",)
    asked = plan(replace(roster, leaving_nodes=("10.0.0.4",)), replace(sight, draining=frozenset()), OperatorRules())
    assert asked.departures == found.departures
    left = rosters.with_leaving(roster, found.departures)
    assert (left.wanted_bookies, left.wanted_brokers) == (3, 2)
    assert not plan(left, sight, OperatorRules()).departures


def test_a_draining_node_gets_no_parts() -> None:
    assert not seen(first(THREE), NODES[:4], draining="10.0.0.4").create


def test_a_part_that_is_gone_is_created_unless_it_is_held() -> None:
    roster = first(THREE)
    running = frozenset({"bookie-1", "bookie-2", "broker-1"})
    assert plan(roster, Sight(THREE, running=running), OperatorRules()).create == ("bookie-3", "broker-2")
    held = rosters.with_held(roster, "bookie-3")
    assert plan(held, Sight(THREE, running=running), OperatorRules()).create == ("broker-2",)
    assert rosters.without_holds(held) == roster


def test_a_node_that_is_away_is_named_with_its_parts() -> None:
    assert seen(first(THREE), THREE[:2]).notes == (
        "bookie-3: waiting for a node labelled heliograph.io/bookie=true at 10.0.0.3, which is away",
    )


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        (labels.BOOKIE, "maybe", "use true for any bookie"),
        (labels.BROKER, "yes", "use true, or leave it out"),
        (labels.BROKERS, "17", "use a number up to 16"),
        (labels.BROKERS, "true", "use a number up to 16"),
        ("heliograph.io/boookie", "true", "the nearest is heliograph.io/bookie"),
    ],
)
def test_labels_that_nobody_understands_are_named_and_the_node_gets_nothing(key: str, value: str, said: str) -> None:
    found = seen(first(THREE), [*THREE, Node("10.0.0.4", {labels.BOOKIE: "true", key: value})])
    assert not found.create
    assert said in found.notes[0]
    assert "10.0.0.4" in found.notes[0]


def test_other_machines_get_nothing_while_listeners_are_on_loopback() -> None:
    found = seen(first(THREE[:1]), THREE[:2], rules=OperatorRules(is_local=True))
    assert not found.create
    assert "loopback" in found.notes[0]


def test_without_labels_counts_alone_decide() -> None:
    roster = rosters.scaled(rosters.first_roster([], []), "bookie", 2, [])
    found = seen(roster, [Node("10.0.0.1", {})], rules=OperatorRules(require_labels=False))
    assert found.create == ("bookie-1", "bookie-2")
    assert all(rosters.place_of(part) == Place() for part in found.roster.parts)


def test_what_cannot_be_scaled_is_refused() -> None:
    with pytest.raises(BadRequestError, match="asked for"):
        rosters.scaled(first(THREE), "bookie", 0, [])
    with pytest.raises(BadRequestError, match="cannot be scaled"):
        rosters.scaled(first(THREE), "gateway", 2, [])
    with pytest.raises(NotFoundError, match="bookie-9"):
        rosters.with_held(first(THREE), "bookie-9")


def test_a_bookie_that_was_moved_keeps_its_directories_and_place() -> None:
    roster = first(THREE)
    held = rosters.with_held(roster, "bookie-2")
    moved = rosters.with_place(held, "bookie-2", ["/j"], ["/d"], None, "")
    before, after = held.parts[1], moved.parts[1]
    assert after == replace(before, journal_directories=("/j",), data_directories=("/d",))
    place = Place({labels.BOOKIE: labels.ANY}, "10.0.0.9")
    elsewhere = rosters.with_place(moved, "bookie-2", ["/j"], ["/d"], place, "r9").parts[1]
    assert (rosters.place_of(elsewhere), elsewhere.rack) == (place, "r9")
    assert rosters.without_holds(moved) == rosters.released(moved, "bookie-2")
    assert rosters.without_holds(moved, ["bookie-2"]) == moved, "its move is not over"
    there = rosters.with_place(moved, "bookie-2", [], [], place, "r9").parts[1]
    assert (there.address, there.journal_directories) == ("10.0.0.9", ("/j",)), "it has its directories as before"
    assert rosters.released(moved, "bookie-2").parts[1] == replace(after, is_held=False)


def test_a_part_changes_its_state_by_the_table_only() -> None:
    roster = first(THREE)
    assert roster.parts[0].state is PartState.WANTED
    held = rosters.with_held(roster, "bookie-1")
    assert held.parts[0].state is PartState.HELD
    assert rosters.with_held(held, "bookie-1") == held
    leaving = rosters.with_leaving(held, ["bookie-1"])
    assert leaving.parts[0].state is PartState.LEAVING
    assert rosters.released(leaving, "bookie-1") == leaving, "it leaves all the same"
    with pytest.raises(ConflictError, match="bookie-1 is leaving and cannot be held now"):
        rosters.with_held(leaving, "bookie-1")
    back = rosters.with_staying(leaving, "bookie-1")
    assert back == roster
    assert rosters.with_staying(back, "bookie-1") == back


def test_a_part_that_is_held_is_not_created_and_it_is_said_why() -> None:
    roster = rosters.with_held(first(THREE), "bookie-2")
    found = plan(roster, Sight(THREE, running=frozenset({"bookie-1", "bookie-3"})), OperatorRules())
    assert "bookie-2" not in found.create
    assert any("bookie-2 was stopped on request" in note and "helio up" in note for note in found.notes)


DISKS = {"*": ("/data1", "/data2"), "10.0.0.4": ("/data1", "/data2", "/data3"), "one": ()}
WITH_DISKS = OperatorRules(disks=DISKS)


def disks(roster: Roster, address: str) -> dict[str, str]:
    return {part.name: part.disk for part in rosters.staying(roster, "bookie") if part.address == address}


def test_a_node_gets_a_bookie_on_each_of_its_disks_once() -> None:
    found = seen(first(THREE), NODES[:4], rules=WITH_DISKS)
    mine = disks(found.roster, "10.0.0.4")
    assert sorted(mine.values()) == ["/data1", "/data2", "/data3"]
    assert len(set(mine)) == 3
    assert found.roster.wanted_bookies == 3 + 3 * 2 + 3, "those of the first nodes have no disk, and stay"
    again = seen(found.roster, NODES[:4], rules=WITH_DISKS)
    assert again == OperatorPlan(found.roster)


def test_a_disk_that_is_added_gets_a_bookie_and_one_whose_bookie_left_gets_none() -> None:
    roster = seen(first([]), NODES[:1], rules=OperatorRules(disks={"*": ("/data1",)})).roster
    assert disks(roster, "10.0.0.1") == {"bookie-1": "/data1"}
    rules = OperatorRules(disks={"*": ("/data1", "/data2")})
    roster = seen(roster, NODES[:1], rules=rules).roster
    assert disks(roster, "10.0.0.1") == {"bookie-1": "/data1", "bookie-2": "/data2"}
    roster = seen(rosters.without(roster, "bookie-1"), NODES[:1], rules=rules).roster
    assert disks(roster, "10.0.0.1") == {"bookie-2": "/data2"}
    roster = seen(rosters.with_wanted(roster, "bookie", 3), NODES[:1], rules=rules).roster
    assert disks(roster, "10.0.0.1") == {"bookie-2": "/data2", "bookie-3": "/data1"}
    found = seen(roster, NODES[:1], rules=rules)
    assert "1 more bookies are wanted" in found.notes[0], "each disk has its bookie"


def test_the_most_specific_name_of_a_node_decides_its_disks() -> None:
    node = Node("10.0.0.9", {**BOTH, labels.HOST: "outside"}, "storage-9")
    for name, expected in (("*", "/a"), ("10.0.0.9", "/b"), ("storage-9", "/c"), ("outside", "/d")):
        assert labels.disks_of(node, {"*": ("/a",), name: (expected,)}) == (expected,)
    assert labels.disks_of(Node("10.0.0.1", {}, "one"), DISKS) == ()


def test_a_node_for_one_bookie_by_name_says_that_its_disks_are_unused() -> None:
    node = Node("10.0.0.9", {labels.BOOKIE: "bookie-7"})
    assert "use true for a bookie on each disk" in seen(first(THREE), [*THREE, node], rules=WITH_DISKS).notes[-1]


def test_a_node_that_is_gone_for_good_is_given_bookies_again() -> None:
    roster = seen(first([]), NODES[:1], rules=WITH_DISKS).roster
    for part in roster.parts:
        roster = rosters.without(roster, part.name)
    assert seen(roster, [], rules=WITH_DISKS).roster.disks == ()
