"""The operations on cursors: what needs the topic's owner is forwarded to it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from typing_extensions import override

from heliograph.actors.broker.admin.forwarding import OwnerCalls
from heliograph.actors.broker.namespaces.bundles import RING, has_bundle, range_of
from heliograph.actors.broker.namespaces.catalog import Catalog
from heliograph.actors.broker.namespaces.records import probe_of
from heliograph.actors.broker.records.properties import changed_properties
from heliograph.actors.broker.subscription.subscription import OWN_PROPERTIES
from heliograph.base.completion import all_ended
from heliograph.base.errors import NotFoundError, TopicNotFoundError
from heliograph.operations.cursors import CursorOperations
from heliograph.operations.table import INTEGER_MAX, IntegerRange
from heliograph.protocol.message_id import MessageId
from heliograph.protocol.topic_name import TopicName

TOPICS_AT_ONCE_MAX = 16  # of a namespace whose subscriptions are changed


class CursorAdminService(CursorOperations):
    """Operations that are not overridden here run at the owner by the method of ``OwnedCursors`` of the same name."""

    def __init__(self, owners: OwnerCalls, catalog: Catalog) -> None:
        self._owners = owners
        self._catalog = catalog
        self.call = owners.call

    @override
    async def skip_all(self, topic: str, subscription: str) -> None:
        await self._owners.at_each_that_has_it("skip", topic, subscription=subscription, count=None)

    @override
    async def expire(self, topic: str, subscription: str | None, seconds: int) -> int:  # type: ignore[override]  # times arrive as numbers
        found = await self._owners.at_each_that_has_it("expire", topic, subscription=subscription, seconds=seconds)
        return sum(found)

    @override
    async def reset(self, topic: str, subscription: str, to: str | int, excluded: bool = False) -> None:  # type: ignore[override]  # times arrive as numbers
        if not isinstance(to, str):
            IntegerRange(0, INTEGER_MAX).check("to", to)
            await self._owners.at_each_that_has_it("reset_to_time", topic, subscription=subscription, time_ms=to)
            return
        is_end = MessageId.parse(to) in (MessageId.EARLIEST, MessageId.LATEST)
        run = self._owners.at_each_that_has_it if is_end else self._owners.at_one
        await run("reset_to_id", topic, subscription=subscription, message_id=to, excluded=bool(excluded))

    @override
    async def clear_namespace(self, namespace: str, bundle: str | None = None, subscription: str | None = None) -> int:
        async def clear(topic: TopicName) -> int:
            if subscription is None:
                names = await self._owners.at(topic, "subscriptions", is_lasting=True)
            else:
                names = [subscription]
            return sum([await self._has(topic, "skip", subscription=name, count=None) for name in names])

        return await self._on_each(namespace, bundle, clear)

    @override
    async def unsubscribe_namespace(self, namespace: str, subscription: str, bundle: str | None = None) -> int:
        async def remove(topic: TopicName) -> int:
            return await self._has(topic, "delete_subscription", name=subscription, force=False)

        return await self._on_each(namespace, bundle, remove)

    async def _has(self, topic: TopicName, method: str, **arguments: Any) -> int:
        """Run a method at the owner; return 1, or 0 if there is no such topic or subscription."""
        try:
            await self._owners.at(topic, method, **arguments)
        except NotFoundError:
            return 0
        return 1

    async def _on_each(self, namespace: str, bundle: str | None, work: Callable[[TopicName], Awaitable[int]]) -> int:
        """Run some work for the persistent topics of a namespace or bundle, and return the sum of its answers.

        Raises:
            NotFoundError: there is no such bundle.
        """
        probe = probe_of(namespace)
        policies = await self._catalog.policies(probe)
        low, high = range_of(bundle) if bundle is not None else (0, RING)
        if bundle is not None and not has_bundle(policies, bundle):
            raise NotFoundError(f"{namespace} has no bundle {bundle}", field="bundle")
        limit = asyncio.Semaphore(TOPICS_AT_ONCE_MAX)

        async def run(topic: TopicName) -> int:
            async with limit:
                try:
                    return await work(topic)
                except TopicNotFoundError:
                    return 0  # deleted meanwhile

        total = 0
        async for page in self._catalog.topic_pages(probe.tenant, probe.namespace_name):
            total += sum(await all_ended(run(topic) for topic in page if low <= topic.bundle_hash < high))
        return total

    @override
    async def properties(self, topic: str, subscription: str) -> dict[str, str]:
        merged: dict[str, str] = {}
        for found in await self._owners.at_each_that_has_it(
            "subscription_properties", topic, subscription=subscription
        ):
            merged.update(found)
        return merged

    @override
    async def set_properties(self, topic: str, subscription: str, properties: Mapping[str, str]) -> None:
        wanted = changed_properties({}, properties, OWN_PROPERTIES)
        await self._owners.at_each_that_has_it(
            "set_subscription_properties", topic, subscription=subscription, properties=wanted
        )
