"""The chain of a topic in pieces, on every metadata backend: what changes it at once fits into one request."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heliograph.actors.broker.records import topic_chain
from heliograph.actors.broker.records.owned_topic import OwnedTopicRecord
from heliograph.actors.broker.records.topic_chain import TAIL_LEDGERS_MAX, ledgers_after
from heliograph.base.errors import ServiceNotReadyError
from heliograph.metadata import codec
from heliograph.metadata.model import LedgerInfo, TopicRecord
from heliograph.metadata.recipes.update_loop import read
from tests.contracts.metadata.backends import Backend

PATH = "/topics/t"
LARGEST = 12_500  # ledgers of a record that earlier releases could still write


def row(number: int) -> LedgerInfo:
    return LedgerInfo(10**6 + number, 50_000, 1 << 30, 1_764_000_000_000 + number)


async def owned_on(backend: Backend, count: int) -> OwnedTopicRecord:
    store = await backend.open()
    await store.create("/topics")
    record = TopicRecord("persistent://public/default/t", tuple(row(number) for number in range(count)))
    await store.create(PATH, codec.encode(record, has_limit=False))
    return OwnedTopicRecord(store, PATH, await read(store, PATH, TopicRecord))


async def chain_of(owned: OwnedTopicRecord) -> list[LedgerInfo]:
    return [info async for info in ledgers_after(owned.record, -1, owned.piece)]


async def test_the_largest_record_of_an_earlier_release_is_folded_in_one_write(backend: Backend) -> None:  # I23
    owned = await owned_on(backend, LARGEST)
    late = OwnedTopicRecord(owned._store, PATH, await read(owned._store, PATH, TopicRecord))
    await owned.replace(owned.record)
    assert len(owned.record.ledgers) <= TAIL_LEDGERS_MAX
    assert await chain_of(owned) == [row(number) for number in range(LARGEST)]
    with pytest.raises(ServiceNotReadyError):  # I13: the previous owner's copy is void
        await late.replace(late.record)


async def test_pieces_come_and_go_with_the_record(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:  # I9, I12
    monkeypatch.setattr(topic_chain, "PIECE_LEDGERS", 3)
    monkeypatch.setattr(topic_chain, "PIECE_REFS", 2)
    monkeypatch.setattr(topic_chain, "TAIL_LEDGERS_MAX", 6)
    owned = await owned_on(backend, 1)
    model = [row(0)]
    for number in range(1, 40):
        model.append(row(number))
        await owned.replace(replace(owned.record, ledgers=(*owned.record.ledgers, row(number))))
    assert max(ref.level for ref in owned.record.pieces) > 2
    while owned.record.pieces:
        head = await owned.head()
        count = min(2, len(head))
        await owned.drop_head(owned.record, head, count)
        del model[:count]
        assert await chain_of(owned) == model
    assert await owned._store.children(PATH) == []
