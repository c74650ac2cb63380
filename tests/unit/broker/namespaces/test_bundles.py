"""Bundles as hash ranges: they cover every hash once, and a split moves only topics of its bundle."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heliograph.actors.broker.config import SplitLimits
from heliograph.actors.broker.namespaces.bundles import (
    BUNDLES_MAX,
    RING,
    boundaries,
    bundle_count,
    bundle_names,
    bundle_path,
    bundles_for,
    has_bundle,
    middle,
    range_name,
    range_of,
    with_split,
)
from heliograph.base.errors import BadRequestError, HeliographError, NotFoundError
from heliograph.metadata.codec import bytes_max, encode
from heliograph.metadata.model import NamespacePolicies
from heliograph.protocol.topic_name import TopicName

TOPICS = [TopicName.parse(f"t{number}") for number in range(60)]


@settings(deadline=None)
@given(st.integers(1, 40), st.lists(st.integers(0, 1 << 20), max_size=12))
def test_splits_keep_topics_together(count: int, picks: list[int]) -> None:
    policies = NamespacePolicies(bundles=count)
    for pick in picks:
        names = bundle_names(policies)
        name = names[pick % len(names)]
        low, high = range_of(name)
        before = {topic: bundle_path(topic, policies).rpartition("/")[2] for topic in TOPICS}
        if high - low < 2:
            continue
        at = middle(name, [topic.bundle_hash for topic in TOPICS])
        policies = with_split(policies, name, at)
        halves = {range_name(low, at), range_name(at, high)}
        for topic, old in before.items():
            new = bundle_path(topic, policies).rpartition("/")[2]
            assert new in halves if old == name else new == old
    cuts = boundaries(policies)
    assert (cuts[0], cuts[-1]) == (0, RING)
    assert all(low < high for low, high in pairwise(cuts))
    assert [range_of(name) for name in bundle_names(policies)] == list(pairwise(cuts))


def test_names_are_pulsars() -> None:
    assert bundle_names(NamespacePolicies(bundles=4)) == [
        "0x00000000_0x40000000",
        "0x40000000_0x80000000",
        "0x80000000_0xc0000000",
        "0xc0000000_0xffffffff",
    ]
    assert range_of("0xC0000000_0xFFFFFFFF") == (0xC0000000, RING)


def test_a_split_lies_between_the_topics() -> None:
    name = "0x00000000_0x40000000"
    assert middle(name) == 0x20000000
    assert middle(name, [5, 6, 7, 8, RING - 1]) == 7
    assert middle(name, [5]) == 0x20000000


@pytest.mark.parametrize(
    ("name", "at", "error"),
    [
        ("0x00000000_0x20000000", 1, NotFoundError),
        ("0x00000000_0x40000000", 0, BadRequestError),
        ("0x00000000_0x40000000", 0x40000000, BadRequestError),
        ("0x40000000_0x00000000", 1, BadRequestError),
        ("first", 1, BadRequestError),
    ],
)
def test_invalid_splits_are_refused(name: str, at: int, error: type[HeliographError]) -> None:
    with pytest.raises(error) as caught:
        with_split(NamespacePolicies(bundles=4), name, at)
    assert caught.value.field in ("bundle", "boundary")


def test_there_are_not_too_many_bundles() -> None:
    policies = NamespacePolicies(bundles=4, bundle_splits=tuple(range(RING - BUNDLES_MAX, RING - 4)))
    assert bundle_count(policies) == BUNDLES_MAX
    assert len(encode(policies)) < bytes_max(NamespacePolicies) / 4  # I23
    assert SplitLimits().bundles_max == BUNDLES_MAX, "a broker splits as far as a namespace goes"
    name = bundle_names(policies)[-1]
    assert has_bundle(policies, name)
    assert not has_bundle(policies, range_name(0, RING))
    with pytest.raises(BadRequestError):
        with_split(policies, name, middle(name))


@pytest.mark.parametrize(("brokers", "bundles"), [(0, 8), (1, 8), (2, 8), (3, 16), (8, 32), (16, 64), (500, 128)])
def test_a_new_namespace_has_bundles_for_all_brokers(brokers: int, bundles: int) -> None:
    assert bundles_for(brokers) == bundles
