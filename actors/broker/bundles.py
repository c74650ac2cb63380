"""Bundles: the ranges that a namespace's topics are spread over, each served by one broker (pure).

A topic's place is the CRC-32 of its name. The places of a namespace, 0 to 2**32 - 1, are cut into equal ranges at
first, and ranges are cut in two later; a range's name is Pulsar's, ``0x40000000_0x80000000``, whose end is not in it
but for the last one's.
"""

from __future__ import annotations

import functools
import hashlib
import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from heliograph.errors import BadRequestError, NotFoundError
from heliograph.protocol.topic_name import TopicName
from metadata import paths
from metadata.model import NamespacePolicies

RING = 1 << 32  # places of topics
BUNDLES_MAX = 4_096  # of one namespace

_NAME = re.compile(r"0x([0-9a-f]{8})_0x([0-9a-f]{8})")


@dataclass(frozen=True, slots=True)
class Bundle:
    """A range of places, and the record of its namespace from which it was read.

    Args:
        path: the node whose ephemeral owner serves the range.
        namespace_path: the node of the namespace's policies.
        version: of that node; as long as it has it, the range is as it is.
    """

    path: str
    namespace_path: str
    version: int


def boundaries(policies: NamespacePolicies) -> tuple[int, ...]:
    """Where the namespace's bundles begin, in order, and the end of the last one."""
    return _boundaries(policies.bundles, policies.bundle_splits)


def bundle_names(policies: NamespacePolicies) -> list[str]:
    """The names of all bundles of a namespace, in order."""
    cuts = boundaries(policies)
    return [range_name(low, high) for low, high in pairwise(cuts)]


def bundle_path(topic: TopicName, policies: NamespacePolicies) -> str:
    """The node whose ephemeral owner serves the topic."""
    cuts = boundaries(policies)
    at = bisect_right(cuts, topic.ring_place) - 1
    return paths.bundle(topic.tenant, topic.namespace_name, range_name(cuts[at], cuts[at + 1]))


def range_name(low: int, high: int) -> str:
    """The name of the places from ``low`` to before ``high``."""
    return f"0x{low:08x}_0x{min(high, RING - 1):08x}"


def range_of(name: str) -> tuple[int, int]:
    """The range that a bundle's name stands for.

    Raises:
        BadRequestError: no such name.
    """
    match = _NAME.fullmatch(name.lower())
    low, high = (int(match[1], 16), int(match[2], 16)) if match else (0, 0)
    if low >= high:
        raise BadRequestError(
            f"{name!r} is no bundle", field="bundle", limit="such as 0x40000000_0x80000000, lower end first"
        )
    return low, RING if high == RING - 1 else high


def with_split(policies: NamespacePolicies, name: str, at: int) -> NamespacePolicies:
    """The policies with one bundle cut in two; ``at`` begins the second half.

    Raises:
        NotFoundError: there is no such bundle; it may have been split already.
        BadRequestError: the place is not inside of it, or there are too many bundles.
    """
    low, high = range_of(name)
    cuts = boundaries(policies)
    if low not in cuts or cuts[cuts.index(low) + 1] != high:
        raise NotFoundError(f"there is no bundle {name}", field="bundle")
    if not low < at < high:
        raise BadRequestError(f"0x{at:08x} is not inside of {name}", field="boundary", limit="between its ends")
    if len(cuts) > BUNDLES_MAX:
        raise BadRequestError(f"there are {len(cuts) - 1} bundles", field="bundle", limit=f"{BUNDLES_MAX} bundles")
    return replace(policies, bundle_splits=tuple(sorted({*policies.bundle_splits, at})))


def middle(name: str, places: Sequence[int] = ()) -> int:
    """Where to cut a bundle: between the topics, half of them on each side, or in the middle of its range.

    Args:
        places: of the topics loaded.
    """
    low, high = range_of(name)
    inside = sorted({place for place in places if low <= place < high})
    if len(inside) >= 2:
        return inside[len(inside) // 2]
    return (low + high) // 2


def candidate(path: str, broker_ids: Iterable[str]) -> str | None:
    """The broker that should own a bundle while nobody assigns any, by rendezvous hashing; None without brokers.

    Every broker comes to the same answer, and a broker that leaves moves only its own bundles.
    """
    return max(broker_ids, key=lambda broker_id: _weight(path, broker_id), default=None)


def _weight(path: str, broker_id: str) -> bytes:
    return hashlib.blake2b(f"{broker_id}\0{path}".encode(), digest_size=8).digest()


@functools.lru_cache(maxsize=1_024)
def _boundaries(count: int, splits: tuple[int, ...]) -> tuple[int, ...]:
    assert 1 <= count <= BUNDLES_MAX, "a namespace has bundles"
    even = {-(-index * RING // count) for index in range(count)}
    return (*sorted(even | {place for place in splits if 0 < place < RING}), RING)
