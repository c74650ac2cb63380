"""Policies as watches tell them: what costs no request, what is read again, and what a silent store leaves known."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from heliograph.actors.broker.namespaces import ownership
from heliograph.actors.broker.namespaces.catalog import Catalog
from heliograph.actors.broker.namespaces.ownership import LastKnown
from heliograph.metadata import codec, paths
from heliograph.metadata.backends.memory import MemoryStore
from heliograph.metadata.model import NamespacePolicies, TopicPolicies
from heliograph.metadata.recipes.changes import Changes
from heliograph.metadata.store import CHILDREN_PAGE_MAX
from heliograph.protocol.topic_name import TopicName
from tests.unit.broker.world import World

TOPIC, OTHER = TopicName.parse("orders"), TopicName.parse("invoices-partition-3")
PATH = paths.namespace("public", "default")
OWN = codec.encode(TopicPolicies(overrides={"retention_seconds": 7}))


class Followed:
    """A catalog whose known policies are told all changes, and the requests that it makes."""

    def __init__(self, store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self.catalog = Catalog(store)
        self.known = self.catalog.known
        self.requests: list[str] = []
        get, page = store.get, store.children_from

        async def counted(path: str, *rest: Any) -> Any:
            self.requests.append(path)
            return await get(path, *rest)

        async def counted_page(path: str, *rest: Any) -> Any:
            self.requests.append(path)
            return await page(path, *rest)

        monkeypatch.setattr(store, "get", counted)
        monkeypatch.setattr(store, "children_from", counted_page)
        trees = (paths.NAMESPACES, paths.TOPIC_POLICIES, paths.NON_PERSISTENT_POLICIES)
        self.changes = Changes(store, trees, self.known.changed, self.known.forget)

    async def start(self) -> Followed:
        await self.changes.start()
        self.known.is_followed = True
        return self

    async def asked(self, topic: TopicName = TOPIC) -> list[str]:
        """Return the paths that are read for a topic."""
        self.requests.clear()
        await self.known.namespace_of(topic)
        await self.known.topic_policies(topic)
        return list(self.requests)


async def test_further_topics_of_a_namespace_cost_no_request(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    followed = await Followed(await world.session(), monkeypatch).start()
    assert len(await followed.asked()) == 2
    assert await followed.asked() == []
    assert await followed.asked(OTHER) == []
    assert (await followed.known.bundle_of(OTHER)) == await followed.catalog.bundle_of(OTHER)


async def test_without_a_watch_everything_is_read(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    followed = Followed(await world.session(), monkeypatch)
    assert await followed.asked() == await followed.asked() != []


async def test_all_who_ask_at_once_share_a_read(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    followed = await Followed(await world.session(), monkeypatch).start()
    await asyncio.gather(*(followed.known.namespace_of(TOPIC) for _ in range(100)))
    assert followed.requests == [PATH]


async def test_a_change_is_seen_by_the_next_caller(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    followed, admin = await Followed(await world.session(), monkeypatch).start(), await world.session()
    await followed.asked()
    record = (await Catalog(admin).namespace_of(TOPIC)).record
    await admin.set(PATH, codec.encode(NamespacePolicies(bundles=record.bundles, max_topics=5)))
    assert (await followed.known.namespace_of(TOPIC)).record.max_topics == 5
    await admin.create(followed.catalog.policies_path(OTHER), OWN, parents=True)
    assert (await followed.known.topic_policies(OTHER)).overrides == {"retention_seconds": 7}
    assert await followed.asked(TOPIC) == []
    await admin.delete(followed.catalog.policies_path(OTHER))
    assert await followed.known.topic_policies(OTHER) == TopicPolicies()
    assert await followed.asked(OTHER) == []


async def test_a_read_during_which_something_changed_is_not_kept(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its answer may be older than the change, whose event has been told already."""
    followed, admin = await Followed(await world.session(), monkeypatch).start(), await world.session()
    old = await followed.catalog.namespace_of(TOPIC)

    async def late(topic: TopicName) -> Any:
        await admin.set(PATH, codec.encode(NamespacePolicies(max_topics=5)))
        await asyncio.sleep(0.05)
        return old

    with monkeypatch.context() as patched:
        patched.setattr(followed.catalog, "namespace_of", late)
        assert await followed.known.namespace_of(TOPIC) == old
    assert (await followed.known.namespace_of(TOPIC)).record.max_topics == 5


async def test_topics_of_a_namespace_with_many_policies_are_asked_for_one_by_one(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await world.session()
    followed = await Followed(store, monkeypatch).start()
    first = followed.catalog.policies_path(OTHER)
    await store.create(first, OWN, parents=True)
    for number in range(CHILDREN_PAGE_MAX):
        await store.create(f"{first}-{number}", OWN)
    assert (await followed.known.topic_policies(OTHER)).overrides == {"retention_seconds": 7}
    assert await followed.asked(TOPIC) == [PATH, followed.catalog.policies_path(TOPIC)]


async def test_nothing_is_known_while_the_store_is_silent(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    followed = await Followed(await world.session(), monkeypatch).start()
    await followed.asked()
    monkeypatch.setattr("heliograph.actors.broker.namespaces.known_policies.is_connected", lambda store: False)
    assert len(await followed.asked()) == 2


def test_the_latest_answers_are_known_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ownership, "ANSWERS_MAX", 2)  # I15
    known: LastKnown[str, int] = LastKnown()
    assert known.get("a") is None
    assert [known.note(key, number) for number, key in enumerate("ab")] == [0, 1]
    assert known.note("a", 7) == 7
    assert known.get("a") == 7
    known.note("c", 2)
    assert [known.get(key) for key in "abc"] == [7, None, 2]
