"""Bundles: the hash ranges that a namespace's topics are spread over, each served by one broker (pure).

The hash of a topic is the CRC-32 of its name. The hashes 0 to 2**32 - 1 are cut into equal ranges when a namespace is
created, and ranges are split in two later. The name of a range is Pulsar's, ``0x40000000_0x80000000``; its upper end is
exclusive, except for the last range.
"""

from __future__ import annotations

import functools
import hashlib
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from heliograph.base.errors import BadRequestError, NotFoundError
from heliograph.metadata import paths
from heliograph.metadata.model import NamespacePolicies
from heliograph.protocol.topic_name import TopicName

RING = 1 << 32  # hashes of topics
# Of one namespace, so 16 million topics at the 1,000 of `split.topics`: its record has 180 KB then, of the 960 KiB
# that it may have, and is decoded in 1 ms (I15, I23, I24).
BUNDLES_MAX = 16_384
BUNDLES_AT_FIRST_MAX = 4_096  # of a new namespace, as in earlier releases, which read any number of splits
BUNDLES_LEAST, BUNDLES_USUAL_MAX = 8, 128  # of a namespace whose creator names no number
BUNDLES_PER_BROKER = 4  # so that the loads of brokers differ by less than a bundle's share of one

_NAME = re.compile(r"0x([0-9a-f]{8})_0x([0-9a-f]{8})")


@dataclass(frozen=True, slots=True)
class Bundle:
    """A hash range, and the version of the namespace's record from which it was read.

    Args:
        path: the ephemeral node that the owner of the range creates.
        namespace_path: the node of the namespace's policies.
        version: of that node; the range is valid while the node has this version.
    """

    path: str
    namespace_path: str
    version: int


def bundles_for(brokers: int) -> int:
    """Return how many bundles a new namespace gets in a cluster of so many brokers: a power of two."""
    wanted = max(BUNDLES_LEAST, BUNDLES_PER_BROKER * brokers)
    return min(BUNDLES_USUAL_MAX, 1 << (wanted - 1).bit_length())


def boundaries(policies: NamespacePolicies) -> tuple[int, ...]:
    """Return the hashes at which the namespace's bundles begin, in order, and the end of the last one."""
    return _boundaries(policies.bundles, policies.bundle_splits)


def bundle_names(policies: NamespacePolicies) -> list[str]:
    """Return the names of all bundles of a namespace, in order."""
    cuts = boundaries(policies)
    return [range_name(low, high) for low, high in pairwise(cuts)]


def bundle_count(policies: NamespacePolicies) -> int:
    return len(boundaries(policies)) - 1


def has_bundle(policies: NamespacePolicies, name: str) -> bool:
    """Return whether a namespace has a bundle of that name, without making the names of the others."""
    low, high = range_of(name)
    cuts = boundaries(policies)
    at = bisect_left(cuts, low)
    return at + 1 < len(cuts) and cuts[at] == low and cuts[at + 1] == high


def bundle_path(topic: TopicName, policies: NamespacePolicies) -> str:
    """Return the path of the node that the owner of the topic's bundle creates."""
    cuts = boundaries(policies)
    at = bisect_right(cuts, topic.bundle_hash) - 1
    return paths.bundle(topic.tenant, topic.namespace_name, range_name(cuts[at], cuts[at + 1]))


def namespace_of_bundle(path: str) -> tuple[str, str]:
    """Return the path of the policies of a bundle's namespace, and the bundle's name, from the path of its node."""
    _, tenant, namespace, name = path.rsplit("/", 3)
    return f"{paths.NAMESPACES}/{tenant}/{namespace}", name


def range_name(low: int, high: int) -> str:
    """Return the name of the range from ``low`` to before ``high``."""
    return f"0x{low:08x}_0x{min(high, RING - 1):08x}"


def range_of(name: str) -> tuple[int, int]:
    """Return the range of a bundle's name, with an exclusive end.

    Raises:
        BadRequestError: the name is malformed.
    """
    match = _NAME.fullmatch(name.lower())
    low, high = (int(match[1], 16), int(match[2], 16)) if match else (0, 0)
    if low >= high:
        raise BadRequestError(
            f"{name!r} is not the name of a bundle",
            field="bundle",
            limit="such as 0x40000000_0x80000000, lower end first",
        )
    return low, RING if high == RING - 1 else high


def with_split(policies: NamespacePolicies, name: str, at: int) -> NamespacePolicies:
    """Return the policies with one bundle split in two; ``at`` begins the second half.

    Raises:
        NotFoundError: there is no such bundle; it may have been split already.
        BadRequestError: ``at`` is not inside the bundle, or there are too many bundles.
    """
    low, high = range_of(name)
    cuts = boundaries(policies)
    if not has_bundle(policies, name):
        raise NotFoundError(f"there is no bundle {name}", field="bundle")
    if not low < at < high:
        raise BadRequestError(f"0x{at:08x} is not inside {name}", field="boundary", limit="between its ends")
    if len(cuts) > BUNDLES_MAX:
        raise BadRequestError(f"there are {len(cuts) - 1} bundles", field="bundle", limit=f"{BUNDLES_MAX} bundles")
    return replace(policies, bundle_splits=tuple(sorted({*policies.bundle_splits, at})))


def middle(name: str, hashes: Sequence[int] = ()) -> int:
    """Return the hash at which to split a bundle: half of its topics on each side, or the middle of its range.

    Args:
        hashes: of the loaded topics.
    """
    low, high = range_of(name)
    inside = sorted({each for each in hashes if low <= each < high})
    if len(inside) >= 2:
        return inside[len(inside) // 2]
    return (low + high) // 2


def candidate(path: str, broker_ids: Iterable[str]) -> str | None:
    """Choose the owner of a bundle by rendezvous hashing, for when no leader assigns it. Return None without brokers.

    Every broker chooses the same one, and only the bundles of a broker that leaves move.
    """
    return max(broker_ids, key=lambda broker_id: _weight(path, broker_id), default=None)


def _weight(path: str, broker_id: str) -> bytes:
    return hashlib.blake2b(f"{broker_id}\0{path}".encode(), digest_size=8).digest()


@functools.lru_cache(maxsize=1_024)
def _boundaries(count: int, splits: tuple[int, ...]) -> tuple[int, ...]:
    assert 1 <= count <= BUNDLES_AT_FIRST_MAX, "a namespace has at least one bundle"
    even = {-(-index * RING // count) for index in range(count)}
    return (*sorted(even | {place for place in splits if 0 < place < RING}), RING)
