"""The actors of a cluster: which, on which nodes, and in which order."""

from pathlib import Path

import pytest

from heliograph.base.errors import ResourceError
from heliograph.cluster import labels
from heliograph.cluster.config import ClusterConfig
from heliograph.cluster.naming import START_ORDER, kind_of, sort_key
from heliograph.cluster.parts import parts_of

ONE_MACHINE = [labels.ONE_MACHINE]


def test_parts_come_in_starting_order_with_their_places(tmp_path: Path) -> None:
    config = ClusterConfig(home=tmp_path, bookies=3, brokers=2, broker_port=6650, gateway_port=8080)
    parts = parts_of(config, ONE_MACHINE)
    assert [part.name for part in parts] == [
        "metadata", "bookie-1", "bookie-2", "bookie-3", "broker-1", "broker-2", "auditor", "gateway",
    ]  # fmt: skip
    assert [part.port for part in parts if part.kind == "broker"] == [6650, 6652]
    assert parts[1].directory == tmp_path / "data" / "bookie-1"
    assert parts[1].selector == {labels.BOOKIE: "true"}
    assert parts[-1].port == 8080


def test_parts_that_are_not_wanted_are_left_out() -> None:
    config = ClusterConfig(metadata_url="etcd://127.0.0.1:2379", gateway=False, auditor=False, brokers=1)
    assert {part.kind for part in parts_of(config, ONE_MACHINE)} == {"bookie", "broker"}


def test_a_node_labelled_with_an_id_holds_that_bookie_and_its_rack_counts() -> None:
    nodes = [
        {labels.BOOKIE: f"bookie-{number}", labels.RACK: f"r{number}", labels.BROKER: "true"} for number in (1, 2, 3)
    ]
    parts = {part.name: part for part in parts_of(ClusterConfig(), nodes)}
    assert parts["bookie-2"].selector == {labels.BOOKIE: "bookie-2"}
    assert parts["bookie-2"].rack == "r2"
    assert parts["metadata"].selector == {labels.BOOKIE: "bookie-1"}


def test_a_missing_label_is_named_with_the_command_that_sets_it() -> None:
    with pytest.raises(ResourceError, match=r"ray start --labels heliograph\.io/bookie=true"):
        parts_of(ClusterConfig(), [{}])
    with pytest.raises(ResourceError, match=r"heliograph\.io/broker"):
        parts_of(ClusterConfig(), [{labels.BOOKIE: "true"}])


def test_two_nodes_for_any_bookie_are_refused_since_a_disk_is_on_one() -> None:
    with pytest.raises(ResourceError, match="label the node that holds the disk of bookie-1"):
        labels.bookie_selector("bookie-1", [{labels.BOOKIE: "true"}, {labels.BOOKIE: "true"}])


def test_without_labels_any_node_will_do() -> None:
    assert all(part.selector == {} for part in parts_of(ClusterConfig(require_labels=False), [{}]))


def test_a_selector_matches_and_reads_well() -> None:
    selector = labels.bookie_selector("bookie-1", ONE_MACHINE)
    assert labels.matches(selector, labels.ONE_MACHINE)
    assert not labels.matches(selector, {})
    assert labels.describe(selector) == "a node labelled heliograph.io/bookie=true"


def test_names_sort_by_start_and_by_number() -> None:
    names = ["gateway", "bookie-10", "bookie-2", "metadata", "broker-1", "auditor", "stranger"]
    ordered = ["metadata", "bookie-2", "bookie-10", "broker-1", "auditor", "gateway", "stranger"]
    assert sorted(names, key=sort_key) == ordered
    assert [kind_of(name) for name in ("bookie-2", "gateway")] == ["bookie", "gateway"]
    assert START_ORDER[0] == "metadata"
