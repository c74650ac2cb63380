"""Pages of topics: they are read from the store in pages, too, however many topics a namespace has."""

from __future__ import annotations

import os

import pytest

from heliograph.actors.broker.broker import Broker
from heliograph.actors.broker.config import BrokerConfig
from heliograph.actors.broker.namespaces import topic_lists
from heliograph.base.clock import wall_ms
from heliograph.base.errors import BadRequestError, UnsupportedError
from heliograph.metadata import codec, paths
from heliograph.metadata.backends.memory import MemoryServer
from heliograph.metadata.model import TopicRecord
from heliograph.metadata.recipes.cluster_init import initialise
from heliograph.metadata.store import CHILDREN_PAGE_MAX, Create, Watcher
from heliograph.operations.table import TOPICS_PAGE
from heliograph.protocol.topics_pattern import TopicsPattern
from tests.unit.broker.fake_ledgers import FakeLedgers

pytestmark = pytest.mark.slow

BEGIN = "persistent://public/default/"
MANY = 1_000_000 if os.environ.get("FULL") else 100_000
AT_ONCE = 10_000  # topics of one transaction


async def test_a_page_of_many_topics_reads_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    server = MemoryServer()
    store = server.open_session()
    await initialise(store)
    broker = Broker(BrokerConfig("lone"), store, FakeLedgers())
    await broker.start()
    try:
        await broker.admin.create_topic("first")
        record = codec.encode(TopicRecord("t", created_ms=wall_ms()))
        folder = paths.topic("public", "default", "any").rpartition("/")[0]
        for first in range(0, MANY, AT_ONCE):
            numbers = range(first, first + AT_ONCE)
            server.apply(store.session_id, [Create(f"{folder}/t{number:06}", record) for number in numbers])
        names: list[int] = []
        whole = store.children_from

        async def counted(path: str, start: str = "", limit: int = CHILDREN_PAGE_MAX) -> list[str]:
            page = await whole(path, start, limit)
            names.append(len(page))
            return page

        all_of = store.children

        async def refused(path: str, watcher: Watcher | None = None) -> list[str]:
            assert path != folder, "a list of all of them was asked for"
            return await all_of(path, watcher)

        monkeypatch.setattr(store, "children_from", counted)
        monkeypatch.setattr(store, "children", refused)
        page = await broker.admin.list_topics("public/default", f"{BEGIN}t070000", 50)
        assert [each["name"] for each in page] == [f"{BEGIN}t{number:06}" for number in range(70_001, 70_051)]
        found = await broker.admin.list_topics("public/default", prefix="t09999")
        assert len(found) == 10
        assert max(names) <= CHILDREN_PAGE_MAX
        assert len(names) <= 8, "the folders of topics and of partitioned topics, of two domains, once for each list"
        await broker.admin.create_topic("one-more")  # there is no bound to their number
        with pytest.raises(BadRequestError, match="ask for pages") as caught:  # I15
            await broker.admin.list_topics("public/default")
        assert caught.value.field == "limit"
        names.clear()
        pages = [len(page) async for page in broker.admin.topic_pages("public/default")]
        assert (sum(pages), max(pages)) == (MANY + 2, TOPICS_PAGE)
        assert max(names) <= CHILDREN_PAGE_MAX
        assert sum(names) <= 2.1 * MANY, "a page is read once, and up to a page more behind its end"
        lists = broker._topic_lists
        for pattern, count, most in (("t09999.", 10, CHILDREN_PAGE_MAX), (".*99999", MANY // 100_000, MANY + 2)):
            names.clear()
            matched = await lists.matching("public/default", TopicsPattern(f"public/default/{pattern}"))
            assert len(matched) == count
            assert sum(names) <= most
            assert max(names) <= CHILDREN_PAGE_MAX
        names.clear()
        monkeypatch.setattr(topic_lists, "NAMES_BYTES_MAX", 1 << 20)
        with pytest.raises(UnsupportedError, match="too many"):  # I15
            await lists.matching("public/default", None)
        assert sum(names) <= (1 << 20) / len(BEGIN), "it ends where the answer is full"
    finally:
        await broker.stop()


async def test_pages_hold_every_topic_once_whatever_their_names() -> None:
    store = MemoryServer().open_session()
    await initialise(store)
    broker = Broker(BrokerConfig("lone"), store, FakeLedgers())
    await broker.start()
    try:
        admin = broker.admin
        wholes = {"orders": 3, "p": 1, "späße": 2}
        plain = ["a b", "ab", "a%b", "orders-b", "orders-partition", "中", "Z", "~", "orders.", "p-partition-x"]
        for name in plain:
            await admin.create_topic(name)
        await admin.create_topic("non-persistent://public/default/n")
        for name, count in wholes.items():
            await admin.create_topic(name, count)
        expected = {f"{BEGIN}{name}": 0 for name in plain} | {f"{BEGIN}{name}": n for name, n in wholes.items()}
        expected["non-persistent://public/default/n"] = 0
        for limit in (1, 2, 5, 0):
            after, found = "", dict[str, int]()
            while page := await admin.list_topics("public/default", after, limit):
                assert not found.keys() & {each["name"] for each in page}
                found |= {each["name"]: each["partitions"] for each in page}
                after = page[-1]["name"]
                if not limit:
                    break
            assert found == expected
        after_partition = await admin.list_topics("public/default", f"{BEGIN}orders-partition-1", 1)
        assert [each["name"] for each in after_partition] == [f"{BEGIN}orders-b"], "a page over HTTP ends so"
        assert [each["name"] for each in await admin.list_topics("public/default", prefix="p")] == [
            f"{BEGIN}p", f"{BEGIN}p-partition-x",
        ]  # fmt: skip
        assert await admin.list_topics("public/default", "persistent://public/e/x") == []
        assert len(await admin.list_topics("public/default", "persistent://public/d/x")) == len(expected) - 1
    finally:
        await broker.stop()
