"""Small sabotages of deletions of topics and namespaces."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any
from unittest.mock import patch

from heliograph.actors.broker.admin.admin import AdminService
from heliograph.actors.broker.namespaces import catalog
from heliograph.actors.broker.namespaces.catalog import Catalog
from heliograph.base.errors import TopicNotFoundError
from heliograph.protocol.topic_name import TopicName
from tests.simulation.mutants.mutant import DELETION, changed, mutant, replaced


@replaced(Catalog, "mark_deleting", world=DELETION)
async def delete_without_a_mark(self: Catalog, topic: TopicName, *, if_empty: bool = False) -> bool:
    """A partitioned topic is deleted, and its record never says so (deletion)."""
    return not if_empty or not await self.partitions_left(topic)


@mutant(world=DELETION)
def leave_the_last_partition() -> Iterator[None]:
    """The record of a topic goes, and one of its partitions stays (deletion)."""
    real = Catalog.partitions_left

    async def partitions_left(self: Catalog, topic: TopicName) -> list[TopicName]:
        return (await real(self, topic))[:-1]

    async def has_partition(self: Catalog, record: Any) -> bool:
        return False

    one, other = ("partitions_left", partitions_left), ("_has_partition", has_partition)
    with patch.object(Catalog, *one), patch.object(Catalog, *other):
        yield


@changed(AdminService, "delete_topic", world=DELETION)
async def delete_the_record_first(
    real: Callable[..., Awaitable[None]], self: AdminService, topic: str, force: bool = False
) -> None:
    """The record of a topic goes before its partitions (deletion)."""
    name = TopicName.parse(topic)
    partitions = await self._catalog.partitions_left(name)
    if await self._catalog.mark_deleting(name):
        await self._catalog.forget_partitioned(name)
    for partition in partitions:
        await real(self, str(partition), force)


@mutant(world=DELETION)
def call_a_topic_below_its_mark_missing() -> Iterator[None]:
    """Clients hear that there is no topic while it is being deleted, which they take for final (deletion)."""
    with patch.object(catalog, "_is_being_deleted", lambda topic: TopicNotFoundError(f"there is no topic {topic}")):
        yield


@replaced(Catalog, "auto_partitions", world=DELETION)
async def look_up_what_is_being_deleted(self: Catalog, topic: TopicName, **options: Any) -> int:
    """A look-up finds a topic that is being deleted (deletion)."""
    return await self.partitions(topic)


@mutant(start=2, world=DELETION)
def leave_deletions_to_administrators() -> Iterator[None]:
    """No broker finishes what another one began to delete (liveness)."""

    async def finish_deletions(self: AdminService) -> None:
        """Look for nothing."""

    with patch.object(AdminService, "finish_deletions", finish_deletions):
        yield
