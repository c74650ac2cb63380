"""Options and offsets of ``format("heliograph")``: what is said wrong is refused by name, and offsets come back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from hypothesis import given
from hypothesis import strategies as st

from heliograph.base.errors import BadRequestError
from heliograph.pipelines.data_source.offsets import (
    of_topic,
    offsets_after,
    offsets_from_json,
    offsets_to_json,
)
from heliograph.pipelines.data_source.options import parse_options
from heliograph.pipelines.data_source.planner import SourcePlanner
from heliograph.pipelines.planning.conditions import where_of
from heliograph.pipelines.planning.ranges import LedgerRange, limited
from heliograph.pipelines.reading.columns import ALL_COLUMNS
from heliograph.protocol.topic_name import TopicName
from tests.unit.pipelines.test_ranges import a_range, entries_of

TOPIC = "persistent://public/default/t"


def test_options_have_their_usual_values_and_no_case() -> None:
    found = parse_options({"TOPIC": "t", "failondataloss": "FALSE", "maxentriespertrigger": "7"})
    assert found.topics == (TOPIC,)
    assert (found.on_data_loss, found.entries_max, found.columns) == ("skip", 7, ALL_COLUMNS)
    assert (found.start, found.end, found.where) == ("earliest", "latest", None)
    assert parse_options({"path": "t"}).only_topic == TOPIC
    several = parse_options({"topics": "t, persistent://a/b/c"})
    assert several.topics == (TOPIC, "persistent://a/b/c")
    with pytest.raises(BadRequestError, match="one topic"):
        _ = several.only_topic


@pytest.mark.parametrize(
    ("option", "text", "told"),
    [
        ("startingOffset", "earliest", "startingOffsets"),
        ("startingOffsets", "first", "startingOffsets"),
        ("startingOffsets", '{"t": "five"}', "five"),
        ("startingTime", "yesterday", "startingTime"),
        ("failOnDataLoss", "perhaps", "failOnDataLoss"),
        ("onUnreadable", "ignore", "onUnreadable"),
        ("parallelism", "0", "parallelism"),
        ("maxBytesPerTrigger", "1 MB", "maxBytesPerTrigger"),
        ("columns", "value, nonsense", "nonsense"),
        ("schema", "protobuf", "schema"),
        ("topics", "u", "topicsPattern"),
    ],
)
def test_a_wrong_option_is_refused_by_name(option: str, text: str, told: str) -> None:
    with pytest.raises(BadRequestError, match=told):
        parse_options({"topic": "t", option: text})


def test_a_source_names_topics_in_one_way() -> None:
    with pytest.raises(BadRequestError, match="topicsPattern"):
        parse_options({})
    assert parse_options({"topicsPattern": "orders-.*"}).pattern == "orders-.*"


def test_bounds_are_words_positions_and_times() -> None:
    found = parse_options({"topic": "t", "startingOffsets": '{"t": "5:7"}', "endingTime": "2026-01-31T12:00:00"})
    assert found.start == {"t": (5, 7)}
    assert found.where == where_of([("__publishTime", "<", 1_769_860_800_000)])
    later = parse_options({"topic": "t", "startingTime": "1769860800000"})
    assert later.where == where_of([("__publishTime", ">=", 1_769_860_800_000)])
    with pytest.raises(BadRequestError, match="exclude"):
        parse_options({"topic": "t", "startingOffsets": "latest", "startingTime": "5"})


@given(st.dictionaries(st.integers(0, 9), st.tuples(st.integers(0, 1 << 62), st.integers(0, 1 << 40))))
def test_offsets_come_back_from_what_spark_stores(found: dict[int, tuple[int, int]]) -> None:
    offsets = {f"{TOPIC}-partition-{partition}": place for partition, place in found.items()}
    assert offsets_from_json(offsets_to_json(offsets)) == offsets
    assert of_topic(offsets, TopicName.parse(TOPIC)) == found


@given(
    spans=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 40), st.sampled_from([0, 50_000])), max_size=8),
    entries_max=st.none() | st.integers(1, 60),
    bytes_max=st.none() | st.integers(1, 4 << 20),
)
def test_a_micro_batch_is_the_first_part_of_each_partition(
    spans: list[tuple[int, int, int]], entries_max: int | None, bytes_max: int | None
) -> None:
    ranges = [
        replace(a_range(0, last, ledger_id, partition), topic=f"{TOPIC}-partition-{partition}", size=size)
        for ledger_id, (partition, last, size) in enumerate(spans)
    ]
    chosen = limited(ranges, entries_max, bytes_max)
    assert bool(chosen) == bool(ranges)
    assert entries_max is None or sum(piece.entries for piece in chosen) <= entries_max
    for partition in range(3):
        taken = entries_of(_of(chosen, partition))
        assert taken == entries_of(_of(ranges, partition))[: len(taken)]
    after = offsets_after({}, chosen)
    assert set(after) == {piece.topic for piece in chosen}


def _of(ranges: list[LedgerRange], partition: int) -> list[LedgerRange]:
    return [piece for piece in ranges if piece.partition == partition]


def test_how_the_registry_is_read(tmp_path: Path) -> None:
    files = FileDescriptorSet(file=[FileDescriptorProto(name="f.proto")]).SerializeToString()
    (tmp_path / "f.desc").write_bytes(files)
    given = {"topic": "t", "schema": "registry", "recursionDepth": "3"}
    read = parse_options({**given, "protobufDescriptorFile": str(tmp_path / "f.desc")}).read
    assert (read.files, read.message, read.recursion_depth) == (files, "", 3)
    for wrong in {"protobufDescriptorFile": "/nowhere"}, {"recursionDepth": "16"}, {"schema": ""}:
        with pytest.raises(BadRequestError):
            parse_options({**given, **wrong})


def test_a_query_that_ends_at_a_time_looks_at_all_rows() -> None:
    """A row published before that time may be stored after one that was not: no position separates them."""
    timed = parse_options({"topic": "t", "endingTime": "1769860800000"})
    assert SourcePlanner(timed).end() is None, "without asking a cluster, of which there is none"
    assert timed.where == where_of([("__publishTime", "<", 1_769_860_800_000)])
    assert SourcePlanner(parse_options({"topic": "t", "endingOffsets": '{"t": "5:7"}'})).end() == {TOPIC: (5, 7)}
    assert SourcePlanner(parse_options({"topic": "t"})).end() is None


def test_no_query_ends_at_the_earliest_row() -> None:
    with pytest.raises(BadRequestError) as refused:
        parse_options({"topic": "t", "endingOffsets": "earliest"})
    assert refused.value.field == "endingOffsets"
