"""Policies: which hold for a topic, which values are refused, and that loaded topics apply changes."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import fields, replace
from typing import Any

import pytest

from heliograph.actors.broker.config import BrokerConfig
from heliograph.actors.broker.namespaces.catalog import Catalog
from heliograph.actors.broker.namespaces.policies import (
    check_policies,
    effective,
    flat,
    own_policies,
    with_policies,
    without_policies,
)
from heliograph.actors.broker.namespaces.records import NamespaceRecords
from heliograph.actors.broker.policy_defaults import PolicyDefaults
from heliograph.base.errors import (
    BadRequestError,
    ConflictError,
    HeliographError,
    InvalidQuorumError,
    InvalidTopicNameError,
    NamespaceNotFoundError,
    NotFoundError,
    PolicyLimitError,
    ServiceNotReadyError,
    TooFewBookiesError,
    TopicExistsError,
    TopicNotFoundError,
)
from heliograph.metadata import codec, paths
from heliograph.metadata.model import NamespacePolicies, Persistence, Policies, TopicPolicies
from heliograph.protocol.topic_name import DOMAINS, TopicName
from tests.unit.broker.clients import LoneBroker
from tests.unit.broker.world import World

COPIES = {"ensemble_size": 5, "write_quorum": 3, "ack_quorum": 2}


def test_overrides_go_before_what_a_topic_was_created_with_and_that_before_the_namespace() -> None:
    namespace = NamespacePolicies(retention_seconds=5, persistence=Persistence(1, 1, 1))
    created_with = Persistence(2, 2, 2)
    assert effective(namespace, {}).persistence == Persistence(1, 1, 1)
    assert effective(namespace, {}, created_with).persistence == created_with
    found = effective(namespace, {**COPIES, "max_producers": 3, "of_a_newer_version": 1}, created_with)
    assert (found.persistence, found.max_producers, found.retention_seconds) == (Persistence(5, 3, 2), 3, 5)
    assert isinstance(found, Policies)
    assert not isinstance(found, NamespacePolicies)


def test_setting_and_removing_policies() -> None:
    namespace = NamespacePolicies()
    changed = with_policies(namespace, {**COPIES, "auto_create_partitions": 4, "message_ttl_seconds": 60})
    assert (changed.persistence, changed.auto_create_partitions) == (Persistence(5, 3, 2), 4)
    restored = without_policies(changed, ["write_quorum", "auto_create_partitions", "message_ttl_seconds"])
    assert restored == replace(namespace, own=())
    assert replace(with_policies(NamespacePolicies(), flat(changed)), own=changed.own) == changed
    check_policies(flat(changed), of_namespace=True)


def test_a_namespace_knows_which_policies_it_sets_itself() -> None:
    older = NamespacePolicies(message_ttl_seconds=60, persistence=Persistence(1, 1, 1))  # a record without `own`
    assert own_policies(older) == ["ack_quorum", "ensemble_size", "message_ttl_seconds", "write_quorum"]
    changed = with_policies(older, {"max_producers": 0})
    assert own_policies(changed) == sorted([*own_policies(older), "max_producers"])
    assert own_policies(without_policies(changed, ["max_producers", "ack_quorum"])) == ["message_ttl_seconds"]


@pytest.mark.parametrize(
    ("own", "default", "expected"),
    [
        ({}, -1, (-1, -1)),
        ({}, 0, (0, 0)),
        ({}, 3600, (3600, -1)),
        ({"retention_seconds": -1}, 0, (-1, -1)),
        ({"retention_bytes": 1024}, 0, (-1, 1024)),
        ({"message_ttl_seconds": 5}, 0, (0, 0)),
    ],
)
async def test_the_retention_of_the_cluster_holds_where_a_namespace_sets_none(
    own: dict[str, Any], default: int, expected: tuple[int, int]
) -> None:
    world = World()
    store = await world.session()
    catalog = Catalog(store, BrokerConfig("b", default_retention_seconds=default).policy_defaults)
    records = NamespaceRecords(store, catalog)
    await records.set_policies("public/default", own)
    found = await catalog.policies(TopicName.parse("t"))
    assert (found.retention_seconds, found.retention_bytes) == expected
    assert set(await records.policies("public/default", own=True)) == set(own)


async def test_the_defaults_of_the_cluster_hold_where_a_namespace_sets_none() -> None:
    world = World()
    store = await world.session()
    defaults = PolicyDefaults(message_ttl_seconds=60, deduplication=True, auto_create_type="partitioned",
                              auto_create_partitions=4, retention_bytes=1_024)  # fmt: skip
    catalog = Catalog(store, BrokerConfig("b", defaults=defaults).policy_defaults)
    records = NamespaceRecords(store, catalog)
    await records.create("public/own", policies={"message_ttl_seconds": 0, "retention_seconds": 7})
    for namespace, expected in (("public/default", (60, True, 4, -1, 1_024)), ("public/own", (0, True, 4, 7, -1))):
        found = await catalog.policies(TopicName.parse(f"{namespace}/t"))
        assert (found.message_ttl_seconds, found.deduplication, found.auto_create_partitions) == expected[:3]
        assert (found.retention_seconds, found.retention_bytes) == expected[3:]
    assert await catalog.auto_partitions(TopicName.parse("t"), may_create=True) == 4
    assert await records.policies("public/default", own=True) == {}, "the record keeps none of them"
    await records.remove_policies("public/own", ["message_ttl_seconds"])
    assert (await catalog.policies(TopicName.parse("public/own/t"))).message_ttl_seconds == 60


async def test_more_copies_than_there_are_bookies_are_refused_at_once() -> None:
    """Otherwise no topic of the namespace could be opened, not even to be deleted."""
    async with LoneBroker("orders") as lone:
        namespaces, store = lone.broker.admin.namespaces, lone.broker._store
        copies = {"ensemble_size": 3, "write_quorum": 3, "ack_quorum": 2}
        lone.ledgers.shortage_error = TooFewBookiesError("1 bookie takes entries")
        await store.create(f"{paths.BOOKIES_COOKIES}/bookie-1", b"", parents=True)
        for refused in (
            namespaces.set_policies("public/default", copies),
            namespaces.set_topic_policies("orders", copies),
            namespaces.create("public/new", policies=copies),
        ):
            with pytest.raises(InvalidQuorumError, match="1 bookies") as caught:
                await refused
            assert (caught.value.field, caught.value.limit) == ("ack_quorum", "at most 1")
        await store.create(f"{paths.BOOKIES_COOKIES}/bookie-2", b"")  # though it may be down now
        await namespaces.set_policies("public/default", copies)


def test_each_default_is_that_of_a_policy_and_a_valid_value() -> None:
    values = PolicyDefaults().values()
    fixed = NamespacePolicies()
    assert values == {name: getattr(fixed, name) for name in values}
    check_policies(values, of_namespace=True)


async def test_the_copies_of_the_cluster_hold_where_a_namespace_sets_none() -> None:
    world = World()
    store = await world.session()
    catalog = Catalog(store, {"persistence": Persistence(1, 1, 1)})
    records = NamespaceRecords(store, catalog)
    await records.create("public/mine")
    await records.create("public/own", policies={"ensemble_size": 3, "write_quorum": 2, "ack_quorum": 2})

    async def copies(namespace: str) -> Persistence:
        return (await catalog.policies(TopicName.parse(f"{namespace}/t"))).persistence

    assert await copies("public/mine") == Persistence(1, 1, 1)
    assert await copies("public/own") == Persistence(3, 2, 2)
    assert await copies("public/default") == Persistence(1, 1, 1)
    older = NamespacePolicies(persistence=Persistence(3, 3, 2))  # does not tell what was set
    await store.set(paths.namespace("public", "default"), codec.encode(older))
    assert await copies("public/default") == Persistence(3, 3, 2)
    assert set(await records.policies("public/default", own=True)) <= set(COPIES)
    older = NamespacePolicies(persistence=Persistence(1, 1, 1))  # to which the cluster's were written
    await store.set(paths.namespace("public", "default"), codec.encode(older))
    assert await records.policies("public/default", own=True) == {}
    await records.remove_policies("public/own", ["ensemble_size", "write_quorum", "ack_quorum"])
    assert await copies("public/own") == Persistence(1, 1, 1)
    assert await records.policies("public/mine", own=True) == {}


@pytest.mark.parametrize("domain", ["persistent", "non-persistent"])
async def test_a_namespace_has_as_many_topics_as_it_may(domain: str) -> None:
    world = World()
    store = await world.session()
    catalog = Catalog(store)
    records = NamespaceRecords(store, catalog)
    name = f"{domain}://public/default/"
    await catalog.create(TopicName.parse(f"{name}a"))
    await records.set_policies("public/default", {"max_topics": 3})
    with pytest.raises(PolicyLimitError, match="may have 3 topics, and has 1"):
        await catalog.create(TopicName.parse(f"{name}b"), 3)
    await catalog.create(TopicName.parse(f"{name}b"), 2)
    for refused in (catalog.create, catalog.ensure):
        with pytest.raises(PolicyLimitError):
            await refused(TopicName.parse(f"{name}c"))
    with pytest.raises(PolicyLimitError):
        await catalog.create_missing_partitions(TopicName.parse(f"{name}b"), upto=4)
    await catalog.ensure(TopicName.parse(f"{name}a"))  # it exists
    await records.remove_policies("public/default", ["max_topics"])
    await catalog.create(TopicName.parse(f"{name}c"))


async def test_a_tenant_has_as_many_namespaces_as_it_may() -> None:
    store = await World().session()
    catalog = Catalog(store)
    records = NamespaceRecords(store, catalog)
    catalog.namespaces_per_tenant_max = 2
    await records.create("public/second")
    with pytest.raises(PolicyLimitError, match="tenant public may have 2 namespaces, and has 2"):
        await records.create("public/third")
    with pytest.raises(NotFoundError):
        await records.create("nobody/first")
    catalog.namespaces_per_tenant_max = 0
    await records.create("public/third")


async def test_creations_at_once_do_not_exceed_the_limit() -> None:
    world = World()
    catalogs = [Catalog(await world.session()) for _ in range(3)]
    await NamespaceRecords(await world.session(), catalogs[0]).set_policies("public/default", {"max_topics": 4})
    names = [f"{domain}://public/default/t{number}" for number in range(5) for domain in DOMAINS]
    outcomes = await asyncio.gather(
        *(catalog.create(TopicName.parse(name)) for name in names for catalog in catalogs), return_exceptions=True
    )
    assert sum(outcome is None for outcome in outcomes) == 4
    assert all(isinstance(one, PolicyLimitError | TopicExistsError) for one in outcomes if one is not None)
    assert sum([len(page) async for page in catalogs[0].left_in("public", "default")]) == 4


def test_every_policy_can_be_set() -> None:
    values = flat(Policies())
    check_policies(values)
    assert set(values) == {field.name for field in fields(Policies)} - {"persistence"} | set(COPIES)


@pytest.mark.parametrize(
    ("values", "error", "field"),
    [
        ({"nothing": 1}, BadRequestError, "nothing"),
        ({"bundles": 4}, BadRequestError, "bundles"),
        ({"auto_create_topics": True}, BadRequestError, "auto_create_topics"),  # a namespace's only
        ({"retention_seconds": -2}, BadRequestError, "retention_seconds"),
        ({"message_ttl_seconds": -1}, BadRequestError, "message_ttl_seconds"),
        ({"message_ttl_seconds": True}, BadRequestError, "message_ttl_seconds"),
        ({"ledger_entries_max": 0}, BadRequestError, "ledger_entries_max"),
        ({"deduplication": 1}, BadRequestError, "deduplication"),
        ({"subscription_types": "Shared,Loud"}, BadRequestError, "subscription_types"),
        ({"backlog_quota_action": "cry"}, BadRequestError, "backlog_quota_action"),
        ({"ensemble_size": 3}, BadRequestError, "ensemble_size"),
        ({**COPIES, "ack_quorum": 4}, InvalidQuorumError, "ensemble_size,write_quorum,ack_quorum"),
    ],
)
def test_invalid_policies_are_refused(values: dict[str, Any], error: type[HeliographError], field: str) -> None:
    with pytest.raises(error) as caught:
        check_policies(values)
    assert caught.value.field == field


async def test_tenants_namespaces_and_policies_in_metadata() -> None:
    store = await World().session()
    catalog = Catalog(store)
    records = NamespaceRecords(store, catalog)
    await records.create_tenant("acme", ["boss"], ["standalone"])
    assert await records.tenant("acme") == {"admin_roles": ["boss"], "allowed_clusters": ["standalone"]}
    assert (await records.tenant("public"))["admin_roles"] == []  # made without a record
    await records.update_tenant("acme")
    assert await records.tenants() == ["acme", "public"]
    await records.create("acme/a", 4, {"message_ttl_seconds": 9})
    assert (await records.policies("acme/a"))["bundles"] == 4
    await records.set_policies("acme/a", {"message_ttl_seconds": 10, "auto_create_partitions": 2})
    await records.remove_policies("acme/a", ["auto_create_partitions"])
    found = await records.policies("acme/a")
    assert (found["message_ttl_seconds"], found["auto_create_partitions"]) == (10, 0)
    assert await records.list() == ["acme/a", "public/default"]
    assert await records.list("acme") == ["acme/a"]
    await catalog.create(TopicName.parse("acme/a/t"), 2)
    await records.set_topic_policies("acme/a/t-partition-1", {"max_producers": 1})
    await records.set_topic_policies("acme/a/t", {"max_consumers": 2})
    assert await records.topic_policies("acme/a/t") == {"max_producers": 1, "max_consumers": 2}
    await records.remove_topic_policies("acme/a/t", ["max_producers"])
    assert (await records.topic_policies("acme/a/t", applied=True))["message_ttl_seconds"] == 10
    for name, partitions in (("acme/a/one", 0), ("acme/a/many", 2)):
        await catalog.create(TopicName.parse(name), partitions, Persistence(5, 4, 3))
        applied = await records.topic_policies(name, applied=True)
        assert [applied[number] for number in COPIES] == [5, 4, 3]
    await records.mark("acme/a", is_deleted=True)
    with pytest.raises(NamespaceNotFoundError):
        await catalog.create(TopicName.parse("acme/a/late"))
    await records.remove("acme/a")
    assert await store.exists(paths.topic_policies("acme", "a", "t")) is None
    await records.delete_tenant("acme")
    assert await records.tenants() == ["public"]


async def test_a_persistent_and_a_non_persistent_topic_of_one_name_have_their_own_policies() -> None:
    store = await World().session()
    catalog = Catalog(store)
    records = NamespaceRecords(store, catalog)
    kept, passing = "persistent://public/default/x", "non-persistent://public/default/x"
    for name in (kept, passing):
        await catalog.create(TopicName.parse(name))
    await records.set_topic_policies(kept, {"max_producers": 1})
    assert await records.topic_policies(passing) == {}
    await records.set_topic_policies(passing, {"max_consumers": 2})
    assert await records.topic_policies(kept) == {"max_producers": 1}
    own = await catalog.topics_with_policies(TopicName.parse(kept))
    for name, others in ((kept, "y"), (passing, "non-persistent://public/default/y")):
        assert catalog.may_override(TopicName.parse(name), own)
        assert not catalog.may_override(TopicName.parse(others), own)
    await catalog.forget_topic_policies(TopicName.parse(passing))
    assert await records.topic_policies(kept) == {"max_producers": 1}
    assert await records.topic_policies(passing) == {}
    await records.set_topic_policies(passing, {"max_consumers": 2})
    await records.mark("public/default", is_deleted=True)
    await records.remove("public/default")
    assert await store.exists(catalog.policies_path(TopicName.parse(passing))) is None


async def test_policies_of_non_persistent_topics_at_the_path_of_an_older_version_hold() -> None:
    store = await World().session()
    catalog = Catalog(store)
    records = NamespaceRecords(store, catalog)
    passing = TopicName.parse("non-persistent://public/default/x")
    await catalog.create(passing)
    old = codec.encode(TopicPolicies({"max_producers": 1, "max_consumers": 3}))
    await store.create(paths.topic_policies("public", "default", "x"), old, parents=True)
    assert catalog.may_override(passing, await catalog.topics_with_policies(passing))
    await records.remove_topic_policies(str(passing), ["max_consumers"])
    await records.set_topic_policies(str(passing), {"max_subscriptions": 2})
    assert await records.topic_policies(str(passing)) == {"max_producers": 1, "max_subscriptions": 2}
    await catalog.forget_topic_policies(passing)
    assert await records.topic_policies(str(passing)) == {}


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda r: r.create_tenant("public"), ConflictError),
        (lambda r: r.create_tenant("a/b"), InvalidTopicNameError),
        (lambda r: r.update_tenant("nobody"), NotFoundError),
        (lambda r: r.tenant("nobody"), NotFoundError),
        (lambda r: r.delete_tenant("nobody"), NotFoundError),
        (lambda r: r.delete_tenant("public"), ConflictError),
        (lambda r: r.list("nobody"), NotFoundError),
        (lambda r: r.create("nobody/a"), NotFoundError),
        (lambda r: r.create("public/default"), ConflictError),
        (lambda r: r.create("public"), BadRequestError),
        (lambda r: r.create("public/a", 0), BadRequestError),
        (lambda r: r.create("public/a", None, {"x": 1}), BadRequestError),
        (lambda r: r.policies("public/none"), NamespaceNotFoundError),
        (lambda r: r.set_policies("public/none", {}), NamespaceNotFoundError),
        (lambda r: r.remove_policies("public/default", ["x"]), BadRequestError),
        (lambda r: r.topic_policies("none"), TopicNotFoundError),
        (lambda r: r.set_topic_policies("none", {}), TopicNotFoundError),
    ],
)
async def test_what_records_refuse(call: Any, error: type[HeliographError]) -> None:
    store = await World().session()
    with pytest.raises(error) as caught:
        await call(NamespaceRecords(store, Catalog(store)))
    assert type(caught.value) is error


async def test_a_topic_is_created_in_few_round_trips(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    store = await world.session()
    catalog, topic, waiting, rounds = Catalog(store), TopicName.parse("new"), 0, 0

    def delayed(call: Any) -> Any:
        async def answered(*arguments: Any) -> Any:
            nonlocal waiting, rounds
            rounds += not waiting  # what is asked while another answer is awaited shares its round trip
            waiting += 1
            for _ in range(5):
                await asyncio.sleep(0)
            waiting -= 1
            return await call(*arguments)

        return answered

    for name in ("get", "exists", "multi"):
        monkeypatch.setattr(store, name, delayed(getattr(store, name)))
    assert await catalog.auto_partitions(topic, may_create=True) == 0
    assert rounds == 1
    await catalog.ensure(topic)  # with the parents of the first topic
    before = rounds
    await catalog.ensure(TopicName.parse("second"))
    assert rounds - before == 3  # that it is not there, its namespace, its creation
    with pytest.raises(TopicExistsError):
        await catalog.create(topic)


async def test_a_topic_is_created_only_while_its_namespace_exists() -> None:
    """A change of policies during the creation does no harm."""
    world = World()
    store = await world.session()
    catalog, records = Catalog(store), NamespaceRecords(store, Catalog(store))
    changes = [records.set_policies("public/default", {"message_ttl_seconds": number}) for number in range(1, 6)]
    creations = [catalog.create(TopicName.parse(f"t{number}")) for number in range(5)]
    await asyncio.gather(*changes, *creations)
    assert [len(page) async for page in catalog.topic_pages("public", "default")] == [5]
    record = (await catalog.namespace_of(TopicName.parse("t"))).record
    assert replace(record, message_ttl_seconds=0, own=None) == NamespacePolicies()


@pytest.mark.parametrize("placement", ["this.c", "os.abort", "this:c", "nothing"])
async def test_a_placement_that_no_broker_has_is_refused_with_the_list(placement: str) -> None:
    store = await World().session()
    catalog = Catalog(store)
    records = NamespaceRecords(store, catalog, ("near", "rack"))
    await catalog.create(TopicName.parse("public/default/t"))
    for setting in (
        records.set_policies("public/default", {"placement": placement}),
        records.set_topic_policies("public/default/t", {"placement": placement}),
        records.create("public/other", policies={"placement": placement}),
    ):
        with pytest.raises(BadRequestError, match="this cluster has near, rack") as refused:
            await setting
        assert refused.value.field == "placement"
    await records.set_policies("public/default", {"placement": "near"})
    assert "this" not in sys.modules


async def test_a_partition_is_created_only_as_one_of_its_topic() -> None:
    store = await World().session()
    catalog, topic = Catalog(store), TopicName.parse("many")
    with pytest.raises(TopicNotFoundError, match="no partitioned topic"):
        await catalog.ensure(TopicName.parse("many-partition-0"))
    await catalog.create(topic, 2)
    first = topic.partitions(1)[0]
    await store.delete(catalog.topic_path(first))
    await catalog.ensure(first)
    with pytest.raises(TopicNotFoundError, match="2 partitions"):
        await catalog.ensure(TopicName.parse("many-partition-2"))
    assert [page async for page in catalog.topic_pages("public", "default")] == [topic.partitions(2)]


async def test_a_partition_does_not_come_back_while_its_topic_is_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    store = await World().session()
    catalog, topic = Catalog(store), TopicName.parse("many")
    await catalog.create(topic, 1)
    [first] = topic.partitions(1)
    await store.delete(catalog.topic_path(first))
    multi = store.multi

    async def deleted_before(operations: Any) -> Any:
        monkeypatch.undo()
        await catalog.mark_deleting(topic)
        return await multi(operations)

    monkeypatch.setattr(store, "multi", deleted_before)
    with pytest.raises(ServiceNotReadyError, match="being deleted"):
        await catalog.ensure(first)
    assert not await catalog.exists(first)


async def test_a_slow_deletion_leaves_alone_what_was_made_since() -> None:
    """Two brokers may finish one deletion; the slower one finds a name that is in use again."""
    store = await World().session()
    catalog = Catalog(store)
    records, topic = NamespaceRecords(store, catalog), TopicName.parse("public/default/parted")
    await catalog.create(topic, 2)
    await catalog.forget_partitioned(topic)
    assert await store.exists(catalog.partitioned_path(topic)) is not None
    await records.remove("public/default")
    assert await store.exists(paths.namespace("public", "default")) is not None
