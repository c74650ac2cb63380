"""The actors of a cluster: which, on which nodes, and in which order."""

from dataclasses import replace
from pathlib import Path

import pytest

from heliograph.base.errors import ConflictError, InvalidConfigError, ResourceError
from heliograph.base.home import ClusterHome
from heliograph.cluster import labels
from heliograph.cluster.config import ClusterConfig
from heliograph.cluster.etcd_members.record import check_moved, members_note, note_formed, with_membership
from heliograph.cluster.labels import Node, Place, further_member_places, storage_places
from heliograph.cluster.naming import START_ORDER, kind_of, sort_key
from heliograph.cluster.parts import Part, parts_of, require_machines
from heliograph.cluster.settings.nodes import on_node

ONE_MACHINE = [Node("10.0.0.1", labels.ONE_MACHINE)]
ANY = {labels.BOOKIE: "true"}
THREE = [Node(f"10.0.0.{number}", {**ANY, labels.BROKER: "true"}) for number in (1, 2, 3)]
BOOKIES = ["bookie-1", "bookie-2", "bookie-3", "bookie-4"]


def parts(config: ClusterConfig, nodes: list[Node], known: dict[str, Place] | None = None) -> dict[str, Part]:
    return {part.name: part for part in parts_of(config, nodes, known or {})}


def test_parts_come_in_starting_order_with_their_places(tmp_path: Path) -> None:
    config = ClusterConfig(home=tmp_path, bookies=3, brokers=2, broker_port=6650, gateway_port=8080)
    found = parts(config, ONE_MACHINE)
    assert list(found) == [
        "metadata", "bookie-1", "bookie-2", "bookie-3", "broker-1", "broker-2", "auditor", "gateway", "operator",
    ]  # fmt: skip
    assert [part.port for part in found.values() if part.kind == "broker"] == [6650, 6652]
    assert found["bookie-1"].directory == tmp_path / "data" / "bookie-1"
    assert found["bookie-1"].place == Place(ANY, "10.0.0.1")
    assert found["gateway"].port == 8080


def test_parts_that_are_not_wanted_are_left_out() -> None:
    config = ClusterConfig(
        metadata_url="etcd://127.0.0.1:2379", gateway=False, auditor=False, operator=False, brokers=1
    )
    assert {part.kind for part in parts(config, ONE_MACHINE).values()} == {"bookie", "broker"}


def test_a_node_labelled_with_an_id_holds_that_bookie_and_its_rack_counts() -> None:
    nodes = [
        Node(f"10.0.0.{n}", {labels.BOOKIE: f"bookie-{n}", labels.RACK: f"r{n}", labels.BROKER: "true"})
        for n in (1, 2, 3)
    ]
    found = parts(ClusterConfig(), nodes)
    assert found["bookie-2"].place == Place({labels.BOOKIE: "bookie-2"})
    assert found["bookie-2"].rack == "r2"
    assert found["metadata"].place == Place({labels.BOOKIE: "bookie-1"})


def test_each_node_with_bookies_has_a_replication_worker() -> None:
    found = parts(ClusterConfig(bookies=4), THREE)
    assert found["auditor"].duties == "audit"
    assert [(name, part.place.address) for name, part in found.items() if part.kind == "replicator"] == [
        ("replicator-1", "10.0.0.1"),
        ("replicator-2", "10.0.0.2"),
        ("replicator-3", "10.0.0.3"),
    ]
    assert parts(ClusterConfig(), ONE_MACHINE)["auditor"].duties == "all"
    assert "replicator" not in {part.kind for part in parts(ClusterConfig(auditor=False), THREE).values()}


def test_a_missing_label_is_named_with_the_command_that_sets_it() -> None:
    with pytest.raises(ResourceError, match=r"helio join --label heliograph\.io/bookie=true"):
        parts(ClusterConfig(), [Node("10.0.0.1", {}), Node("10.0.0.2", {})])
    with pytest.raises(ResourceError, match=r"heliograph\.io/broker"):
        parts(ClusterConfig(), [Node("10.0.0.1", ANY)])


def test_one_node_without_labels_has_everything_and_keeps_it() -> None:
    found = parts(ClusterConfig(), [Node("10.0.0.1", {"ray.io/node-id": "1"})])
    places = {name: found[name].place for name in (*BOOKIES[:3], "metadata")}
    assert all(place == Place(address="10.0.0.1") for place in places.values())
    assert storage_places(list(places), THREE, places) == places


def test_one_node_without_labels_does_not_take_over_what_is_on_labelled_ones() -> None:
    known = storage_places(["bookie-1", "metadata"], THREE, {})
    config = ClusterConfig()
    with pytest.raises(ResourceError, match=r"labelled for bookie-2"):
        list(parts_of(config, [Node("10.0.0.9", {})], known))


def test_bookies_are_spread_over_the_nodes_for_any_of_them_and_each_has_one_address() -> None:
    places = storage_places([*BOOKIES, "metadata"], THREE, {})
    assert [places[name].address for name in BOOKIES] == ["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.1"]
    assert places["metadata"] == places["bookie-1"]


def test_a_bookie_stays_where_its_disk_is_whoever_comes_or_goes() -> None:
    known = storage_places(BOOKIES, THREE[:2], {})
    assert storage_places(BOOKIES, THREE, known) == known
    assert storage_places(BOOKIES, THREE[1:], known) == known, "bookie-1 waits for its node"
    assert storage_places([*BOOKIES, "bookie-5"], THREE, known)["bookie-5"].address == "10.0.0.3"


def test_a_cluster_on_one_machine_follows_the_address_of_the_machine() -> None:
    known = storage_places(BOOKIES, ONE_MACHINE, {})
    moved = storage_places(BOOKIES, [Node("192.168.0.9", labels.ONE_MACHINE)], known)
    assert {place.address for place in moved.values()} == {"192.168.0.9"}


def test_a_label_with_an_id_goes_before_where_a_bookie_was() -> None:
    known = storage_places(BOOKIES, THREE, {})
    nodes = [*THREE, Node("10.0.0.9", {labels.BOOKIE: "bookie-2"})]
    assert storage_places(BOOKIES, nodes, known)["bookie-2"] == Place({labels.BOOKIE: "bookie-2"})


def test_one_node_only_is_for_metadata() -> None:
    nodes = [Node("10.0.0.1", {**ANY, labels.METADATA: "true"}), Node("10.0.0.2", {labels.METADATA: "true"})]
    assert storage_places(["metadata"], nodes[1:], {})["metadata"] == Place({labels.METADATA: "true"})
    with pytest.raises(ResourceError, match="2 nodes are labelled"):
        storage_places(["metadata"], nodes, {})


def test_without_labels_any_node_will_do() -> None:
    found = parts(ClusterConfig(require_labels=False), [Node("10.0.0.1", {})])
    assert all(part.place == Place() for part in found.values())


def test_a_place_admits_nodes_and_reads_well() -> None:
    place = Place(ANY, "10.0.0.1")
    assert place.admits(ONE_MACHINE[0])
    assert not place.admits(THREE[1])
    assert not place.admits(Node("10.0.0.1", {}))
    assert str(place) == "a node labelled heliograph.io/bookie=true at 10.0.0.1"
    assert str(Place()) == "a node"


def test_names_sort_by_start_and_by_number() -> None:
    names = ["gateway", "bookie-10", "bookie-2", "metadata", "replicator-1", "broker-1", "auditor", "stranger"]
    ordered = ["metadata", "bookie-2", "bookie-10", "broker-1", "auditor", "replicator-1", "gateway", "stranger"]
    assert sorted(names, key=sort_key) == ordered
    assert [kind_of(name) for name in ("bookie-2", "gateway")] == ["bookie", "gateway"]
    assert START_ORDER[0] == "metadata"


METADATA = {labels.METADATA: "true"}
FOUR = [Node(f"10.0.0.{number}", {**ANY, **METADATA, labels.BROKER: "true"}) for number in (1, 2, 3, 4)]


def members(config: ClusterConfig, nodes: list[Node], known: dict[str, Place] | None = None) -> dict[str, Part]:
    return {name: part for name, part in parts(config, nodes, known).items() if part.kind == "metadata"}


def test_etcd_has_an_odd_number_of_members_on_the_nodes_labelled_for_it(tmp_path: Path) -> None:
    config = ClusterConfig(home=tmp_path, metadata_kind="etcd", host="node")
    found = members(config, FOUR)
    assert [(part.place, part.port) for part in found.values()] == [
        (Place(METADATA, "10.0.0.1"), 2379),
        (Place(METADATA, "10.0.0.2"), 2381),
        (Place(METADATA, "10.0.0.3"), 2383),
    ]
    assert found["metadata-2"].directory == tmp_path / "data" / "metadata-2"
    assert list(members(config, FOUR[:2])) == ["metadata-1"]
    known = {name: part.place for name, part in found.items()}
    assert {name: part.place for name, part in members(config, FOUR[1:], known).items()} == known, "one waits"


def test_etcd_members_need_a_node_each_but_on_one_machine() -> None:
    wanted = ClusterConfig(metadata_kind="etcd", metadata_members=3, host="node")
    with pytest.raises(ResourceError, match=r"3 etcd members need a node each, and 2 nodes are labelled"):
        members(wanted, FOUR[:2])
    local = members(ClusterConfig(metadata_kind="etcd", metadata_members=3), FOUR[:1])
    assert {part.place.address for part in local.values()} == {"10.0.0.1"}
    bare = members(ClusterConfig(metadata_kind="etcd"), [Node("10.0.0.1", {})])
    assert [part.place for part in bare.values()] == [Place(address="10.0.0.1")]


def test_the_number_of_etcd_members_is_changed_while_the_cluster_runs(tmp_path: Path) -> None:
    known = {name: part.place for name, part in members(ClusterConfig(metadata_kind="etcd"), FOUR).items()}
    five = ClusterConfig(metadata_kind="etcd", metadata_members=5, home=tmp_path)
    kept = members(five, FOUR, known)
    assert {name: part.place for name, part in kept.items()} == known, "a start changes nothing"
    recorded = with_membership(list(kept.values()), FOUR, five, ClusterHome(tmp_path))
    (note,) = members_note(five, recorded)
    assert note.endswith("the cluster has 3: helio metadata members 5 changes that")
    more = further_member_places(FOUR, known, is_local=False, require_labels=True)
    assert {place.address for place in more} == {node.address for node in FOUR} - {p.address for p in known.values()}
    assert all(place.selector == METADATA for place in more)
    on_one = further_member_places(FOUR[:1], known, is_local=True, require_labels=True)
    assert {place.address for place in on_one} == {"10.0.0.1"}
    assert len(on_one) >= 4, "room for all of five"
    assert further_member_places([], known, is_local=True, require_labels=True) == []


def test_one_metadata_store_is_named() -> None:
    with pytest.raises(InvalidConfigError, match="give one"):
        ClusterConfig(metadata_kind="etcd", metadata_url="etcd://10.0.0.1:2379")
    with pytest.raises(InvalidConfigError, match="metadata_members is 2"):
        ClusterConfig(metadata_kind="etcd", metadata_members=2)
    with pytest.raises(InvalidConfigError, match="etcd_port and broker_port are both 6650"):
        ClusterConfig(metadata_kind="etcd", etcd_port=6650)


def test_the_addresses_of_etcd_members_are_kept(tmp_path: Path) -> None:
    config = ClusterConfig(home=tmp_path, metadata_kind="etcd", host="node")
    home = ClusterHome(tmp_path)
    nodes = [*FOUR[:2], Node("10.0.0.3", {**FOUR[2].labels, labels.HOST: "three.example"})]
    first = with_membership(list(members(config, nodes).values()), nodes, config, home)
    membership = first[0].membership
    assert membership is not None
    assert [member.endpoint for member in membership.members] == [
        "10.0.0.1:2379", "10.0.0.2:2381", "three.example:2383",
    ]  # fmt: skip
    note_formed(first, home)
    known = {part.name: part.place for part in first}
    later = with_membership(list(members(config, nodes[:1], known).values()), nodes[:1], config, home)
    assert later[0].membership == replace(membership, is_formed=True), "also of nodes that are away"
    moved = ClusterConfig(home=tmp_path, metadata_kind="etcd", host="node", etcd_port=3379)
    with pytest.raises(InvalidConfigError, match="leave etcd_port at that"):
        with_membership(list(members(moved, nodes, known).values()), nodes, moved, home)


def test_a_cluster_is_not_started_with_the_empty_one_of_its_two_stores(tmp_path: Path) -> None:
    home = ClusterHome(tmp_path)
    etcd, embedded = (ClusterConfig(home=tmp_path, metadata_kind=kind) for kind in ("etcd", "embedded"))
    check_moved(etcd, home)
    check_moved(embedded, home)
    home.keep_members({"cluster_id": "c", "members": [], "is_formed": True})
    check_moved(etcd, home)
    with pytest.raises(ConflictError, match=r"helio metadata migrate --from etcd --to .*/data/metadata"):
        check_moved(embedded, home)
    (tmp_path / "data" / "metadata").mkdir(parents=True)
    check_moved(embedded, home)
    home.forget_places()
    with pytest.raises(ConflictError, match=r"helio metadata migrate --from .*/data/metadata --to etcd"):
        check_moved(etcd, home)


def test_a_lone_etcd_member_moves_with_its_machine(tmp_path: Path) -> None:
    config = ClusterConfig(home=tmp_path, metadata_kind="etcd", host="node")
    home = ClusterHome(tmp_path)
    first = with_membership(list(members(config, FOUR[:1]).values()), FOUR[:1], config, home)
    known = {part.name: part.place for part in first}
    later = with_membership(list(members(config, FOUR[1:2], known).values()), FOUR[1:2], config, home)
    assert first[0].membership is not None
    assert later[0].membership is not None
    assert later[0].membership.members[0].host == "10.0.0.2"
    assert later[0].membership.cluster_id == first[0].membership.cluster_id


def test_new_bookies_take_the_disks_of_their_node_and_known_ones_stay(tmp_path: Path) -> None:
    config = ClusterConfig(home=tmp_path, bookies=3, nodes={"*": {"bookie": {"disks": ["/data1", "/data2"]}}})
    node = Node("10.0.0.1", labels.ONE_MACHINE)
    found = {part.name: part for part in parts_of(config, [node], {}) if part.kind == "bookie"}
    assert [found[f"bookie-{n}"].place.disk for n in (1, 2, 3)] == ["/data1", "/data2", ""]
    assert found["bookie-2"].directory == Path("/data2/bookie-2")
    assert found["bookie-3"].directory == config.data_root / "bookie-3"
    known = {name: part.place for name, part in found.items()}
    known["bookie-1"] = Place(known["bookie-1"].selector, known["bookie-1"].address)  # from before there were disks
    again = {part.name: part.place.disk for part in parts_of(config, [node], known) if part.kind == "bookie"}
    assert again == {"bookie-1": "", "bookie-2": "/data2", "bookie-3": ""}


def test_a_bookie_with_a_disk_has_all_its_directories_there(tmp_path: Path) -> None:
    section = {"journal_directories": ["/journals"]}
    config = ClusterConfig(home=tmp_path, bookie=section, nodes={"*": {"bookie": {"disks": ["/data1"]}}})
    made = config.bookie_config("bookie-4", Path("/data1/bookie-4"), disk="/data1")
    assert made.journal_directories == (Path("/data1/bookie-4/journal"),)
    assert made.data_directories == (Path("/data1/bookie-4/ledgers"),)
    tables = {"*": {"bookie": {"data_directories": ["/other"], "read_cache_bytes": 1 << 20}}}
    on = on_node(made, ["*"], tables)
    assert (on.data_directories, on.read_cache_bytes) == (made.data_directories, 1 << 20)


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ({"disks": "/data1"}, "no list of directories"),
        ({"disks": ["data1"]}, "whole paths"),
        ({"disks": ["/data1", "/data1"]}, "each once"),
        ({"disks": ["/data1"], "data_directories": ["/data2"]}, "has disks and data_directories"),
    ],
)
def test_disks_that_mean_nothing_are_refused(tmp_path: Path, table: dict[str, object], why: str) -> None:
    with pytest.raises(InvalidConfigError, match=why):
        ClusterConfig(home=tmp_path, nodes={"one": {"bookie": table}})


def test_the_record_of_a_place_is_read_by_the_release_before_and_the_one_after() -> None:
    place = Place(ANY, "10.0.0.1")
    assert place.fields() == {"selector": ANY, "address": "10.0.0.1"}, "0.1.0 refuses a field that it lacks"
    assert Place.parse({**place.fields(), "later": 1}) == place
    with_disk = replace(place, disk="/data1")
    assert Place.parse(with_disk.fields()) == with_disk


def test_a_start_that_waits_for_machines_waits_for_as_many_as_copies(tmp_path: Path) -> None:
    """The first of two machines that join at once must not get both bookies that have no machine of their own."""
    config = ClusterConfig(home=tmp_path, bookies=3, host="node")
    own = Node("10.0.0.9", {labels.BOOKIE: "bookie-1", labels.BROKER: "true", labels.METADATA: "true"})
    joining = [Node(f"10.0.0.{number}", {labels.BOOKIE: "true"}) for number in (1, 2)]
    with pytest.raises(ResourceError, match="1 more machines with bookies, because each entry has 3 copies"):
        require_machines(parts_of(config, [own, joining[0]], {}), 3)
    require_machines(parts_of(config, [own, joining[0]], {}), 2)
    require_machines(parts_of(config, [own, *joining], {}), 3)
