"""Table views: the latest value of each key, over partitions, from the compacted form, and the changes."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import pickle
import time
import urllib.request

import pytest

import heliograph
from heliograph.base.errors import AlreadyClosedError, BadRequestError, QuotaExceededError, RequestTimeoutError
from tests.unit.client.fake_broker import FakeBroker, T
from tests.unit.client.topics import publish
from tests.unit.client.world import client_of

SECONDS = 60


@dataclasses.dataclass
class Price:
    cents: int


def put(cluster: heliograph.LocalCluster, path: str, body: bytes = b"") -> None:
    request = urllib.request.Request(
        f"{cluster.http_url}/admin/v2/persistent/public/default/{path}",
        data=body,
        method="PUT",
        headers={"Content-Type": "application/json"},
    )
    urllib.request.urlopen(request, timeout=SECONDS).close()


def status(cluster: heliograph.LocalCluster, path: str) -> str:
    url = f"{cluster.http_url}/admin/v2/persistent/public/default/{path}"
    with urllib.request.urlopen(url, timeout=SECONDS) as answer:
        return str(json.load(answer)["status"])


def test_a_view_has_the_latest_value_of_each_key_over_partitions(
    cluster: heliograph.LocalCluster, client: heliograph.Client
) -> None:
    put(cluster, "parts/partitions", b"3")
    with client.producer("parts") as producer:
        producer.send_many([f"old {n}" for n in range(20)], keys=[str(n) for n in range(20)])
        producer.send_many([f"new {n}" for n in range(10)], keys=[str(n) for n in range(10)])
        producer.send_many([None, "no key"], keys=["3", None])
        with client.table_view("parts") as view:
            expected = {str(n): f"{'new' if n < 10 else 'old'} {n}".encode() for n in range(20) if n != 3}
            assert view.snapshot() == expected
            assert (len(view), view["4"], view.get("3"), view.get("3", b"?")) == (19, b"new 4", None, b"?")
            assert "4" in view
            assert "3" not in view
            with pytest.raises(KeyError):
                _ = view["3"]
            producer.send("again", key="3")
            view.refresh(SECONDS)
            assert view["3"] == b"again"
    with pytest.raises(AlreadyClosedError):
        view.get("3")


def test_a_view_reads_the_compacted_form_and_what_follows(
    cluster: heliograph.LocalCluster, client: heliograph.Client
) -> None:
    with client.producer("compacted", schema=Price) as producer:
        producer.send_many([Price(n) for n in range(50)], keys=["a", "b"] * 25)
        producer.send_many([Price(7), None], keys=["c", "c"])
        put(cluster, "compacted/compaction")
        while status(cluster, "compacted/compaction") != "SUCCESS":
            time.sleep(0.02)  # the broker tells nobody when it has compacted
        producer.send(Price(99), key="d")
        with client.reader("compacted", "earliest", read_compacted=True) as reader:
            received = [reader.receive(SECONDS) for _ in range(4)]
            assert [(message.key, message.value is None) for message in received][2:] == [("c", True), ("d", False)]
            assert not reader.has_message_available(), "49 others are gone"
        with client.table_view("compacted", schema=Price) as view:
            assert view.snapshot() == {"a": Price(48), "b": Price(49), "d": Price(99)}


def test_changes_come_in_order_and_end_with_the_view(client: heliograph.Client) -> None:
    with client.producer("changes", schema=str) as producer:
        producer.send("before", key="a")
        with client.table_view("changes", schema=str) as view:
            updates = view.updates()
            producer.send("1", key="a")
            assert next(updates) == ("a", "1")
            producer.send_many(["2", None], keys=["b", "a"])
            assert [next(updates) for _ in range(2)] == [("b", "2"), ("a", None)]
            producer.send_many(["3", "4", "5"], keys=["x", "y", "x"])
            view.refresh(SECONDS)
            assert [next(updates) for _ in range(2)] == [("y", "4"), ("x", "5")], "only the newest value of a key"
        assert list(updates) == []


def test_a_value_that_does_not_fit_leaves_its_key(client: heliograph.Client) -> None:
    client.producer("unfit-view", schema=Price).send(Price(1), key="a")
    client.producer("unfit-view").send("{", key="a")
    with client.table_view("unfit-view", schema=Price) as view:
        assert view.snapshot() == {"a": Price(1)}


def test_a_view_does_not_hold_more_keys_than_it_may(client: heliograph.Client) -> None:
    with client.producer("many-keys") as producer:
        producer.send_many(["1", "2"], keys=["a", "b"])
        with client.table_view("many-keys", keys_max=2) as view:
            updates = view.updates()
            producer.send("3", key="c")
            with pytest.raises(QuotaExceededError):
                view.refresh(SECONDS)
            with pytest.raises(QuotaExceededError, match="more keys"):
                view.get("a")
            with pytest.raises(QuotaExceededError):
                list(updates)
    with pytest.raises(QuotaExceededError):
        client.table_view("many-keys", keys_max=2)


async def test_async_views_follow(cluster: heliograph.LocalCluster) -> None:
    async with await heliograph.connect_async(cluster.service_url) as client:
        view = client.table_view("async-view", schema=str)
        with pytest.raises(BadRequestError, match="not open"):
            view.get("a")
        async with view, client.producer("async-view", schema=str) as producer:

            async def follow() -> list[tuple[str, str | None]]:
                return [change async for change in view.updates()]

            following = asyncio.ensure_future(follow())
            await asyncio.sleep(0)
            await producer.send("1", key="a")
            await view.refresh(SECONDS)
            copy = await pickle.loads(pickle.dumps(view))
            assert copy.snapshot() == view.snapshot() == {"a": "1"}
            await copy.client.close()
        assert await following == [("a", "1")]


async def test_a_refresh_that_takes_too_long_says_so() -> None:
    async with FakeBroker() as broker, await client_of(broker) as client:
        await publish(client, ["1"])
        view = await client.table_view("t")
        broker.silent.add(T.GET_LAST_MESSAGE_ID)
        with pytest.raises(RequestTimeoutError):
            await view.refresh(0.01)


def test_a_topic_that_was_terminated_stays_readable(
    cluster: heliograph.LocalCluster, client: heliograph.Client
) -> None:
    client.producer("ended").send("1", key="a")
    with client.table_view("ended") as view:
        url = f"{cluster.http_url}/admin/v2/persistent/public/default/ended/terminate"
        urllib.request.urlopen(urllib.request.Request(url, method="POST"), timeout=SECONDS).close()
        assert list(view.updates()) == []
        assert view.snapshot() == {"a": b"1"}
