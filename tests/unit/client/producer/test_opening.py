"""The opening of a producer: its options, refusals, and callers that leave."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import heliograph
from heliograph.base import errors
from heliograph.client.options import ClientOptions
from heliograph.protocol import pulsar_pb2 as pb
from tests.unit.client.fake_broker import FakeBroker, T
from tests.unit.client.world import TOPIC, client_of, stored
from tests.waits import until


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (pb.PRODUCER_BUSY, errors.ProducerBusyError),
        (pb.TOPIC_NOT_FOUND, errors.TopicNotFoundError),
        (pb.PRODUCER_FENCED, errors.ProducerFencedError),
        (pb.AUTHORIZATION_ERROR, errors.NotPermittedError),
    ],
)
async def test_opening_raises_what_the_broker_says(code: pb.ServerError, kind: type[Exception]) -> None:
    async with FakeBroker() as broker, await client_of(broker) as client:
        broker.refuse(T.PRODUCER, code)
        producer = client.producer("t")
        with pytest.raises(kind, match="refused by the test"):
            await producer
        await producer.send(b"x")  # the next use opens it again


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"linger": 3}, "linger"),
        ({"batch_messages": 0}, "batch_messages"),
        ({"compression": "gzip"}, "compression"),
        ({"batch_bytes": 1 << 30}, "batch_bytes"),
    ],
)
def test_bad_options_name_their_field(options: dict[str, Any], field: str) -> None:
    client = heliograph.AsyncClient(ClientOptions(("pulsar://127.0.0.1:1",)))
    with pytest.raises(errors.InvalidConfigError) as caught:
        client.producer("t", **options)
    assert caught.value.field == field


async def test_an_opening_is_abandoned_when_its_last_caller_is_cancelled() -> None:
    """Otherwise a producer could be given exclusive access after its caller is gone."""
    async with FakeBroker() as broker, await client_of(broker) as client:
        broker.silent.add(T.PRODUCER)
        producer = client.producer("t", access_mode="wait_for_exclusive")
        first, second = asyncio.ensure_future(producer.open()), asyncio.ensure_future(producer.open())
        await until(lambda: broker.of_type(T.PRODUCER))
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        assert not broker.of_type(T.CLOSE_PRODUCER)  # the other caller still waits
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)
        await until(lambda: broker.of_type(T.CLOSE_PRODUCER))
        broker.silent.clear()
        await producer.send("a later use opens it again")
        assert stored(broker.store) == [b"a later use opens it again"]


def opened(broker: FakeBroker) -> set[int]:
    """Return the commands that the broker received so far; the last may arrive after a cancellation."""
    return {command.producer.producer_id for command in broker.of_type(T.PRODUCER)}


async def test_an_abandoned_opening_closes_the_partitions_that_were_open() -> None:
    async with FakeBroker() as broker, await client_of(broker) as client:
        broker.store.partitions[TOPIC] = 2
        broker.silent_after[T.PRODUCER] = 1
        opening = asyncio.ensure_future(client.producer("t").open())
        await until(lambda: broker.of_type(T.PRODUCER))
        opening.cancel()
        await asyncio.gather(opening, return_exceptions=True)
        await until(lambda: opened(broker) == {c.close_producer.producer_id for c in broker.of_type(T.CLOSE_PRODUCER)})
