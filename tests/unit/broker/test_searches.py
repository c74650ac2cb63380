"""Searches for a property: what they hold in memory at a time, and how many run."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from heliograph.actors.broker.admin import stored_message
from heliograph.actors.broker.admin.stored_message import SEARCHES_MAX, SEARCHES_WAITING_MAX, Whereabouts
from heliograph.actors.broker.limits import unpacking
from heliograph.actors.broker.records.position import Position
from heliograph.actors.broker.records.topic_entry import TopicEntry
from heliograph.base.errors import QuotaExceededError
from heliograph.protocol import entry as codec
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.topic_name import TopicName

NAME = TopicName.parse("orders")


class Stored:
    """A topic of entries of one message each, which counts those that are read."""

    def __init__(self, entries: int, size: int) -> None:
        self.first, self.end, self.size = 0, entries, size
        self.read: list[int] = []
        self.may_read = asyncio.Event()
        self.may_read.set()
        self.ledger = SimpleNamespace(chain=self)
        self.reader = self

    async def get(self, name: TopicName) -> Any:
        return self

    async def load_index(self, index: int) -> None:
        pass

    def position_at(self, index: int) -> Position:
        return Position(7, index)

    async def entry(self, index: int) -> TopicEntry:
        self.read.append(index)
        await self.may_read.wait()
        metadata = pb.MessageMetadata(producer_name="p", sequence_id=index, publish_time=1)
        metadata.properties.add(key="n", value=str(index % 2))
        return TopicEntry(codec.encode_entry(metadata, b"x" * self.size), 1, False, False, None, False, 0)


async def test_large_entries_are_looked_through_in_batches_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    topic = Stored(20, 1000)
    monkeypatch.setattr(stored_message, "SEARCHED_AT_ONCE_BYTES", 3000)
    batches: list[int] = []
    whole = unpacking.unpacked

    async def unpacked(tenant: str, items: Any, *rest: Any) -> Any:
        batches.append(len(items))
        return await whole(tenant, items, *rest)

    monkeypatch.setattr(stored_message, "unpacked", unpacked)
    find = Whereabouts(topic, topic).methods["find"]  # type: ignore[arg-type]
    found = await find(NAME, "n", "1", 4)
    assert found["message_ids"] == [f"7:{index}:-1" for index in (19, 17, 15, 13)], "the newest come first"
    assert (batches, found["entries"], found["is_cut"]) == ([3, 3, 3], 9, True)
    assert (await find(NAME, "n", "2", 4)) == {"message_ids": [], "entries": 20, "is_cut": False}


async def test_so_many_searches_run_at_the_same_time_so_many_wait_and_others_are_refused() -> None:
    topic = Stored(1, 1)
    topic.may_read.clear()
    find = Whereabouts(topic, topic).methods["find"]  # type: ignore[arg-type]
    searches = [asyncio.ensure_future(find(NAME, "n", "0", 1)) for _ in range(SEARCHES_MAX + SEARCHES_WAITING_MAX)]
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(topic.read) == SEARCHES_MAX
    with pytest.raises(QuotaExceededError, match="too many searches"):
        await find(NAME, "n", "0", 1)
    topic.may_read.set()
    assert all(found["entries"] == 1 for found in await asyncio.gather(*searches))
