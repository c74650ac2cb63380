"""A broker with the product's own catalog, topics and administration, which deletes topics and namespaces."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, cast

from typing_extensions import override

from heliograph.actors.broker.admin.admin import AdminService
from heliograph.actors.broker.admin.namespaces import NamespaceAdminService
from heliograph.actors.broker.managed_ledger.tail_cache import TailCache
from heliograph.actors.broker.namespaces.catalog import Catalog
from heliograph.actors.broker.topic.deletion import delete_topic
from heliograph.actors.broker.topic.topics import Topics
from heliograph.base.errors import HeliographError, ServiceNotReadyError
from heliograph.metadata.model import Persistence
from heliograph.metadata.store import SessionState
from heliograph.protocol.topic_name import TopicName
from tests.simulation.cluster.channel import Channel
from tests.simulation.cluster.runner import Cluster
from tests.simulation.deletion.checkers import DeletionCheckers
from tests.simulation.profile import Profile
from tests.simulation.topic.broker import CACHE_BYTES, TopicBroker
from tests.simulation.topic.upkeep import Administration

FORWARDED_MS_MAX = 4_000  # for which a broker waits for the owner of a topic
SWEEP_EVERY_MS = 700


class Ownership:
    """A broker admits every topic until it knows that its session is over. Ledgers fence what it does not know."""

    def __init__(self, broker: DeletingBroker) -> None:
        self.broker = broker
        self.on_lost: object = None
        self.on_released: object = None
        self.on_reclaimed: object = None

    def admits(self, bundle: str) -> bool:
        return not self.broker.is_lost

    def is_in_doubt(self, bundle: str) -> bool:
        return False


class WatchedCatalog(Catalog):
    """Tells the checkers which broker creates partitions of a topic that has no record yet."""

    def __init__(self, store: Any, broker: DeletingBroker) -> None:
        super().__init__(store)
        self._broker = broker

    @override
    async def create(self, topic: TopicName, partitions: int = 0, *rest: Any, **options: Any) -> None:
        creators = self._broker.marks.creators
        creators.add(self._broker.name)  # and it stays there if it fails: a request may be under way
        await super().create(topic, partitions, *rest, **options)
        creators.discard(self._broker.name)


class Owners:
    """A stand-in for ``OwnerCalls``: a deletion runs at the newest broker, over a connection that may break."""

    def __init__(self, broker: DeletingBroker) -> None:
        self._broker = broker
        self._channels: dict[tuple[str, str], Channel] = {}

    async def at(self, topic: TopicName, method: str, /, *, force: bool = False) -> None:
        """Delete a topic at its owner."""
        assert method == "delete_topic", "nothing else is asked of owners here"
        here, owner = self._broker, self._broker.newest()
        if owner is here:
            await here.delete_here(topic, force)
            return
        answer: asyncio.Future[None] = here.loop.create_future()

        def reply(error: HeliographError | None) -> None:
            def settle() -> None:
                if not answer.done():
                    answer.set_result(None) if error is None else answer.set_exception(error)

            self._channel(owner, here).send(lambda: here.run(settle))

        async def work() -> None:
            try:
                await owner.delete_here(topic, force)
            except HeliographError as error:
                reply(error)
            else:
                reply(None)

        self._channel(here, owner).send(lambda: owner.run(lambda: owner.loop.create_task(work())))
        try:
            async with asyncio.timeout(FORWARDED_MS_MAX / 1000):
                await answer
        except TimeoutError:
            raise ServiceNotReadyError(f"{owner.name} gives no answer") from None

    def _channel(self, source: DeletingBroker, target: DeletingBroker) -> Channel:
        key = source.name, target.name
        if key not in self._channels:
            self._channels[key] = Channel(source.world, source.cluster.network, source, target, "command")
        return self._channels[key]


class Administrator(AdminService):
    """The product's administration of one broker, without what deletions do not need."""

    def __init__(self, broker: DeletingBroker) -> None:
        async def forget(name: TopicName) -> None:
            """Do nothing: there are no schemas and no grants."""

        store = cast(Any, broker.session)
        self._catalog = broker.catalog
        self._owners = cast(Any, Owners(broker))
        self._unfinished: set[str] = set()
        self._context = cast(Any, SimpleNamespace(schemas=SimpleNamespace(forget=forget)))
        self.permissions = cast(Any, SimpleNamespace(forget=forget))
        self.namespaces = NamespaceAdminService(store, broker.catalog, (), self.delete_topic)


class DeletingBroker(TopicBroker):
    """One broker of several. The newest owns all topics; each may run what an administrator asks for."""

    def __init__(
        self,
        name: str,
        cluster: Cluster,
        profile: Profile,
        checkers: DeletionCheckers,
        administration: Administration,
        newest: Callable[[], DeletingBroker],
    ) -> None:
        super().__init__(name, cluster, profile, cast(Any, checkers), administration)
        self.marks = checkers
        self.newest = newest
        store = cast(Any, self.session)
        self.catalog = WatchedCatalog(store, self)
        self.topics = Topics(store, self.ledgers, self.catalog, cast(Any, Ownership(self)), TailCache(CACHE_BYTES))
        self.admin = Administrator(self)
        self.calls = 0  # deletions under way here, its part of those of others included

    @property
    def policies(self) -> Mapping[str, Any]:
        """Return the policies of the namespace."""
        profile = self.profile
        copies = Persistence(profile.ensemble_size, profile.write_quorum, profile.ack_quorum)
        return {"persistence": copies, "ledger_entries_max": profile.ledger_entries_max}

    @override
    def start(self) -> None:
        self.run(lambda: self.loop.create_task(self._sweep()))

    async def delete_here(self, topic: TopicName, force: bool) -> None:
        """Delete a topic as its owner."""
        self.calls += 1
        try:
            await delete_topic(topic, self.topics, self.catalog, cast(Any, self.session), self.ledgers, force=force)
        finally:
            self.calls -= 1

    async def _sweep(self) -> None:
        """Finish deletions that other brokers began, as the elected broker does."""
        random = self.world.stream(f"{self.name}|sweep")
        while not self.is_lost:
            await asyncio.sleep(random.randrange(1, 2 * SWEEP_EVERY_MS) / 1000)
            if self.newest() is self:
                with contextlib.suppress(HeliographError):
                    await self.admin.finish_deletions()

    @override
    def _on_session(self, state: SessionState) -> None:
        if state is SessionState.LOST:
            self.topics.abandon_all(ServiceNotReadyError("this broker lost its session"))  # I13
            self._on_lost()
