"""Names of topics and subscriptions have limits in bytes. Longer ones, of older versions, can be used and deleted."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from heliograph.actors.broker.broker import Broker
from heliograph.actors.broker.config import BrokerConfig
from heliograph.actors.broker.namespaces import catalog as catalog_module
from heliograph.actors.broker.namespaces.catalog import Catalog
from heliograph.actors.broker.topic import topic as topic_module
from heliograph.base.errors import BadRequestError, PolicyLimitError, TopicNotFoundError
from heliograph.metadata.recipes.cluster_init import initialise
from heliograph.metadata.store import MetadataStore
from heliograph.protocol.topic_name import TopicName
from tests.contracts.metadata.backends import EmbeddedBackend
from tests.unit.broker.fake_ledgers import FakeLedgers

pytestmark = pytest.mark.slow

MOST = 900_000  # characters: a record of metadata has room for so many


@pytest.fixture
async def backend(tmp_path: Path) -> AsyncIterator[EmbeddedBackend]:
    running = EmbeddedBackend(tmp_path)
    await running.start()
    await initialise(await running.open())
    yield running
    await running.stop()


async def started(store: MetadataStore, ledgers: FakeLedgers) -> Broker:
    broker = Broker(BrokerConfig("lone"), store, ledgers)
    await broker.start()
    return broker


async def test_a_topic_with_names_of_nearly_a_million_characters_is_loaded_listed_and_deleted(
    backend: EmbeddedBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledgers, names = FakeLedgers(), [f"{number:02d}" + "n" * MOST for number in range(12)]
    broker = await started(await backend.open(), ledgers)
    admin = broker.admin
    await admin.create_topic("orders")
    with pytest.raises(BadRequestError, match="900002 bytes"):
        await admin.create_subscription("orders", names[0])
    with monkeypatch.context() as older:
        older.setattr(topic_module, "check_new_name", lambda *_: None)
        for name in names:
            await admin.create_subscription("orders", name)
    await broker.stop()
    broker = await started(await backend.open(), ledgers)
    try:
        topics = broker.admin
        assert sorted(await topics.subscriptions("orders")) == names
        await topics.delete_subscription("orders", names[0])
        assert sorted(await topics.subscriptions("orders")) == names[1:]
        await topics.delete_topic("orders", force=True)
        with pytest.raises(TopicNotFoundError):
            await topics.subscriptions("orders")
        assert await topics.list_topics("public/default") == []
    finally:
        await broker.stop()


async def test_new_names_have_limits_in_bytes(backend: EmbeddedBackend) -> None:
    broker = await started(await backend.open(), FakeLedgers())
    admin = broker.admin
    try:
        await admin.create_topic("t" * 255)
        await admin.create_topic("ü" * 127)
        with pytest.raises(BadRequestError, match="256 bytes") as refused:
            await admin.create_topic("ü" * 128)
        assert (refused.value.field, refused.value.limit) == ("topic", "255 bytes")
        await admin.create_topic("p" * 235, partitions=2)
        with pytest.raises(BadRequestError, match="400 bytes"):
            await admin.create_topic("ü" * 200, partitions=2)
        with pytest.raises(BadRequestError, match="256 bytes"):
            await admin.namespaces.create_tenant("t" * 256)
        with pytest.raises(BadRequestError, match="256 bytes"):
            await admin.namespaces.create("public/" + "n" * 256)
        with pytest.raises(BadRequestError, match="broker's"):
            await admin.create_subscription("t" * 255, "s", properties={"heliograph.delayed": "1"})
    finally:
        await broker.stop()


async def test_a_topic_has_so_many_subscriptions(backend: EmbeddedBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_module, "SUBSCRIPTIONS_MAX", 2)
    broker = await started(await backend.open(), FakeLedgers())
    try:
        topics = broker.admin
        await topics.create_topic("t0")
        for number in range(2):
            await topics.create_subscription("t0", f"s{number}")
        with pytest.raises(PolicyLimitError, match="2 subscriptions"):
            await topics.create_subscription("t0", "s2")
    finally:
        await broker.stop()


async def test_long_names_of_older_versions_are_listed_and_deleted(
    backend: EmbeddedBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await backend.open()
    old = TopicName.parse("中" * 240)
    monkeypatch.setattr(catalog_module, "check_new_name", lambda *_: None)
    await Catalog(store).create(old, 2)
    monkeypatch.undo()
    catalog = Catalog(store)
    assert [len(page) async for page in catalog.topic_pages("public", "default")] == [2]
    assert await catalog.create_missing_partitions(old, upto=3) == 1, "an old topic may get partitions"
    broker = await started(store, FakeLedgers())
    try:
        await broker.admin.delete_topic(str(old), force=True)
        assert await broker.admin.list_topics("public/default") == []
    finally:
        await broker.stop()
