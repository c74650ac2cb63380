"""Unloading and splitting bundles, at the broker that owns them."""

from __future__ import annotations

import asyncio
import logging

from heliograph.actors.broker.balance.load_balancer import is_stuck, is_too_large
from heliograph.actors.broker.config import BalanceLimits, SplitLimits
from heliograph.actors.broker.namespaces.bundles import (
    bundle_count,
    middle,
    range_name,
    range_of,
    with_split,
)
from heliograph.actors.broker.namespaces.catalog import Catalog
from heliograph.actors.broker.namespaces.ownership import Ownership
from heliograph.actors.broker.topic.topics import Topics
from heliograph.base.completion import all_ended
from heliograph.base.errors import HeliographError, ServiceNotReadyError
from heliograph.metadata import codec, paths
from heliograph.metadata.model import BrokerLoad
from heliograph.metadata.store import Set
from heliograph.protocol.topic_name import TopicName

SPLIT_ROUNDS_MAX = 10  # of one split, while the namespace's policies change
UNLOADS_AT_ONCE_MAX = 8  # bundles
SPLITS_AT_ONCE_MAX = 4  # for one load report

log = logging.getLogger(__name__)


class BundleChanges:
    """The changes of this broker's bundles. All calls on one event loop.

    Args:
        seconds_max: for the topics of a bundle to confirm what was published, before they are closed anyway.
    """

    def __init__(self, catalog: Catalog, ownership: Ownership, topics: Topics, seconds_max: float) -> None:
        self._catalog = catalog
        self._ownership = ownership
        self._topics = topics
        self.seconds_max = seconds_max

    async def unload(self, path: str) -> bool:
        """Close the topics of a bundle, tell their clients, and release it. Return False if it is not owned here."""
        return await self._topics.unload_bundle(path, self.seconds_max)

    async def unload_all(self) -> int:
        """Unload every bundle. Return how many were."""
        limit = asyncio.Semaphore(UNLOADS_AT_ONCE_MAX)

        async def unload(path: str) -> bool:
            async with limit:
                return await self.unload(path)

        return sum(await all_ended(unload(path) for path in self._ownership.owned))

    async def split(self, namespace: str, name: str, at: int | None = None) -> tuple[str, str]:
        """Split a bundle of this broker in two. The broker owns both halves then, and no client notices.

        Args:
            namespace: ``tenant/namespace``.
            name: of the bundle.
            at: start of the second half; None to split between the loaded topics.

        Returns:
            the names of the halves.

        Raises:
            NotFoundError: there is no such bundle, or it was split already.
            BadRequestError: ``at`` is not inside the bundle.
            ServiceNotReadyError: the bundle is not owned by this broker, or is being changed.
        """
        tenant, _, short = namespace.partition("/")
        low, high = range_of(name)
        path = paths.bundle(tenant, short, range_name(low, high))
        probe = TopicName.parse(f"persistent://{namespace}/any")
        for _ in range(SPLIT_ROUNDS_MAX):
            found = await self._catalog.namespace_of(probe)
            hashes = [topic.name.bundle_hash for topic in self._topics.of_bundle(path)]
            cut = middle(name, hashes) if at is None else at
            record = with_split(found.record, range_name(low, high), cut)
            names = (range_name(low, cut), range_name(cut, high))
            halves = (paths.bundle(tenant, short, names[0]), paths.bundle(tenant, short, names[1]))
            write = Set(paths.namespace(tenant, short), codec.encode(record), found.version)
            if await self._ownership.split(path, halves, write):
                self._topics.split_bundle(path, cut, halves)
                return names
        raise ServiceNotReadyError(f"the policies of {namespace} keep changing, try again")

    async def split_large(self, report: BrokerLoad, limits: SplitLimits, balance: BalanceLimits) -> int:
        """Split the bundles of a report that are too large, or cannot leave as a whole. Return how many were split."""
        done = 0
        for bundle in report.bundles:
            if done == SPLITS_AT_ONCE_MAX:
                break
            is_split = is_too_large(bundle, limits) or is_stuck(report, bundle, balance)
            if not is_split or not self._ownership.admits(bundle.path):
                continue
            tenant, short, name = (paths.last_part("/" + part) for part in bundle.path.rsplit("/", 3)[1:])
            try:
                probe = TopicName.parse(f"persistent://{tenant}/{short}/any")
                if bundle_count(await self._catalog.policies(probe)) >= limits.bundles_max:
                    continue
                halves = await self.split(f"{tenant}/{short}", name)
            except HeliographError as error:
                log.warning("%s is too large and could not be split: %s", bundle.path, error)
            else:
                log.info("%s had %d topics: split into %s and %s", bundle.path, bundle.topics, *halves)
                done += 1
        return done
