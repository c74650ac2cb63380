"""Back-off of negative acknowledgements, acknowledgements that come too late, dead letters and retries."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import pulsar
import pytest

import heliograph
from heliograph.base.errors import BadRequestError, InvalidConfigError, InvalidTopicNameError, UnsupportedError
from heliograph.client.aio.consumer import redelivery
from heliograph.client.aio.consumer.redelivery import RedeliverySchedule
from heliograph.client.options import ConsumerOptions
from heliograph.protocol import pulsar_pb2 as pb
from tests.unit.client.fake_broker import FakeBroker, T
from tests.unit.client.topics import publish
from tests.unit.client.world import client_of, stored

SECONDS = 60
LONG = "ü" * 120  # 240 bytes
SHARED: dict[str, Any] = {"type": "shared", "initial_position": "earliest", "nack_delay_ms": 0}


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"max_redeliver": 2}, "dead_letter_topic"),  # 240 + 12 + 5 bytes, and fewer characters than a name may have
        ({"retry": True}, "retry_topic"),
        ({"max_redeliver": 2, "retry": True, "dead_letter_topic": "dead"}, "retry_topic"),
    ],
)
def test_a_name_that_no_topic_of_letters_can_have_is_refused_when_the_consumer_is_made(
    client: heliograph.Client, options: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidTopicNameError, match="choose another") as refused:
        client.consumer(LONG, "letter-boxes", **SHARED, **options)
    assert (refused.value.field, "255" in str(refused.value.limit or refused.value)) == (field, True)
    with client.consumer(LONG, "short", **SHARED, max_redeliver=1, dead_letter_topic="dead"):
        pass


class FakeTimer:
    def __init__(self, when: float, call: Any) -> None:
        self._when, self.call, self.cancelled = when, call, False

    def when(self) -> float:
        return self._when

    def cancel(self) -> None:
        self.cancelled = True


class FakeClock:
    """An event loop's clock and timers, which a test moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[FakeTimer] = []

    def time(self) -> float:
        return self.now

    def call_later(self, seconds: float, call: Any) -> FakeTimer:
        return self.call_at(self.now + seconds, call)

    def call_at(self, when: float, call: Any) -> FakeTimer:
        self.timers.append(FakeTimer(when, call))
        return self.timers[-1]

    def move(self, to: float) -> None:
        while due := [one for one in self.timers if not one.cancelled and one.when() <= to]:
            first = min(due, key=FakeTimer.when)
            self.timers.remove(first)
            self.now = max(self.now, first.when())
            first.call()
        self.now = to


def schedule(**options: Any) -> tuple[FakeClock, RedeliverySchedule, list[tuple[float, list[tuple[int, int]]]]]:
    """Return a clock, a schedule by it, and what the schedule asks for with the time of asking."""
    clock = FakeClock()
    asked: list[tuple[float, list[tuple[int, int]]]] = []
    built = ConsumerOptions(("t",), "s", type="shared", **options)
    made = RedeliverySchedule(built, clock, lambda found: asked.append((clock.now, sorted(found))))  # type: ignore[arg-type]
    return clock, made, asked


def test_pauses_grow_with_deliveries_up_to_their_limit() -> None:
    clock, made, asked = schedule(nack_delay_ms=1000, nack_multiplier=2, nack_delay_max_ms=5000)
    for count in (0, 3, 1, 2, 900):
        made.nack((1, count), 0, count)
    clock.move(100)
    assert asked == [(1, [(1, 0)]), (2, [(1, 1)]), (4, [(1, 2)]), (5, [(1, 3), (1, 900)])]


def test_an_earlier_deadline_stays_and_all_that_is_due_is_one_request() -> None:
    clock, made, asked = schedule(nack_delay_ms=1000)
    made.nack((1, 2))
    clock.move(0.001)
    made.nack((1, 1))
    made.nack((1, 2))
    clock.move(100)
    assert asked == [(1, [(1, 1), (1, 2)])]
    made.nack((1, 1))
    made.clear()
    clock.move(200)
    assert len(asked) == 1


class Delivered:
    """What a schedule knows of a delivery."""

    def __init__(
        self, ledger_id: int, entry_id: int, *, chunks: Sequence[tuple[int, int]] = (), count: int = 1
    ) -> None:
        self.position = ledger_id, entry_id
        self.earlier_chunks = chunks
        self.count = count
        self.unacknowledged = (1 << count) - 1
        self.returned = 0
        self.reached = count
        self.is_abandoned = False

    def abandon(self) -> None:
        self.is_abandoned = True


def handed_out(made: RedeliverySchedule, delivered: Delivered) -> Delivered:
    made.handed_out(delivered)  # type: ignore[arg-type]
    return delivered


def test_what_is_not_acknowledged_in_time_is_requested_again() -> None:
    clock, made, asked = schedule(ack_timeout_ms=2000)
    first = handed_out(made, Delivered(1, 1))
    late = handed_out(made, Delivered(1, 2))
    clock.move(1)
    handed_out(made, Delivered(1, 5, chunks=[(1, 3), (1, 4)]))
    handed_out(made, Delivered(1, 7))
    made.acknowledged(first)  # type: ignore[arg-type]
    clock.move(2.5)
    assert asked == [(2, [(1, 2)])]
    assert late.returned, "another delivery has what it had"
    clock.move(100)
    assert asked[1:] == [(3, [(1, 3), (1, 4), (1, 5), (1, 7)])]
    handed_out(made, Delivered(2, 1))
    handed_out(made, Delivered(2, 2))
    made.acknowledged_up_to((2, 1))
    clock.move(200)
    assert asked[2:] == [(102, [(2, 2)])]


def test_only_the_messages_that_are_held_are_requested_again() -> None:
    """Two deliveries have parts of one entry. Some messages are acknowledged, and one was refused before."""
    bits: list[dict[tuple[int, int], int]] = []
    clock = FakeClock()
    built = ConsumerOptions(("t",), "s", type="shared", ack_timeout_ms=2000, nack_delay_ms=7000)
    made = RedeliverySchedule(built, clock, lambda found: bits.append(dict(found)))  # type: ignore[arg-type]
    low, high = Delivered(1, 1, count=8), Delivered(1, 1, count=8)
    low.unacknowledged, high.unacknowledged = 0b0000_1110, 0b1010_0000
    for one in (low, high):
        handed_out(made, one)
    made.nack((1, 1), 0b10)
    made.nack((1, 1), 0b1_0000)
    low.returned |= 0b10
    clock.move(100)
    assert bits == [{(1, 1): 0b1010_1100}, {(1, 1): 0b1_0010}]
    made.nack((1, 1), 0b10)
    made.nack((1, 1))
    clock.move(200)
    assert bits[2:] == [{(1, 1): 0}], "the whole entry has the message, too"


def test_each_message_of_a_batch_has_its_own_time() -> None:
    """A caller takes the messages of a batch one after the other, and acknowledges none."""
    asked: list[tuple[float, dict[tuple[int, int], int]]] = []
    clock = FakeClock()
    built = ConsumerOptions(("t",), "s", type="key_shared", ack_timeout_ms=2000)
    made = RedeliverySchedule(built, clock, lambda found: asked.append((clock.now, dict(found))))  # type: ignore[arg-type]
    batch = Delivered(1, 1, count=4)
    for taken in range(1, 4):
        batch.reached = taken
        handed_out(made, batch)
        clock.move(taken / 2)
    batch.unacknowledged &= ~0b10
    clock.move(100)
    assert asked == [(2, {(1, 1): 0b1}), (3, {(1, 1): 0b100})], "the last one was not handed out"
    assert made._held((1, 1)) == 0b1000, "the inbox still has it, so it is not handed out twice"
    batch.unacknowledged &= ~0b1000
    made.acknowledged(batch)  # type: ignore[arg-type]
    assert made._held((1, 1)) == 0


def test_what_callers_never_acknowledge_is_forgotten_with_its_deadline() -> None:
    clock, made, asked = schedule(ack_timeout_ms=2000)
    for entry in range(3):
        handed_out(made, Delivered(1, entry))
    clock.move(100)
    assert asked == [(2, [(1, 0), (1, 1), (1, 2)])]
    assert not made._handed_out


def test_no_more_entries_are_waited_for_than_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redelivery, "ENTRIES_MAX", 2)
    _, made, asked = schedule(ack_timeout_ms=2000)
    for entry in range(4):
        handed_out(made, Delivered(1, entry))
    assert asked == [(0, [(1, 0)]), (0, [(1, 1)])]


@pytest.mark.parametrize(
    "options",
    [
        {"nack_multiplier": 0.5},
        {"nack_multiplier": 2, "nack_delay_ms": 1000, "nack_delay_max_ms": 10},
        {"ack_timeout_ms": 10},
        {"max_redeliver": -1, "type": "shared"},
        {"max_redeliver": 1},
        {"retry": True, "type": "failover"},
        {"dead_letter_topic": "d", "type": "shared"},
        {"retry_topic": "d", "type": "shared"},
    ],
)
def test_options_that_cannot_be_kept_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfigError):
        ConsumerOptions(("t",), "s", **options)


async def test_a_letter_that_cannot_be_stored_is_delivered_again() -> None:
    async with FakeBroker() as broker, await client_of(broker) as client:
        await publish(client, ["a"])
        consumer = await client.consumer("t", "s", **SHARED, max_redeliver=0)
        broker.refuse(T.PRODUCER, pb.NOT_ALLOWED_ERROR)
        await consumer.nack(await consumer.receive(SECONDS))  # refused: the message stays
        assert not broker.of_type(T.ACK)
        while not broker.of_type(T.ACK):
            assert await consumer.receive_many(1, 0.01) == [], "it comes back as a dead letter"
        assert stored(broker.store, "persistent://public/default/t-s-DLQ") == [b"a"]


def test_a_message_that_fails_again_and_again_becomes_a_dead_letter(client: heliograph.Client) -> None:
    with client.producer("orders") as producer:
        origin = producer.send("bad", key="k", properties={"own": "kept"}, event_time_ms=7)
        producer.send("good")
    deliveries: list[int] = []
    with client.consumer("orders", "billing", **SHARED, max_redeliver=2, dead_letter_subscription="kept") as consumer:
        while len(deliveries) < 3:
            message = consumer.receive(SECONDS)
            if message.value == b"good":
                consumer.ack(message)
            else:
                deliveries.append(message.redelivery_count)
                consumer.nack(message)
    assert deliveries == [0, 1, 2]
    with client.consumer("orders-billing-DLQ", "kept") as dead:
        letter = dead.receive(SECONDS)
    assert (letter.value, letter.key, letter.event_time_ms) == (b"bad", "k", 7)
    assert letter.properties == {
        "own": "kept",
        "REAL_TOPIC": "persistent://public/default/orders",
        "ORIGIN_MESSAGE_ID": str(origin),
        "ORIGIN_MESSAGE_IDY_TIME": str(origin),
        "heliograph.delivery_attempt": "3",
        "heliograph.crashes": "0",
    }
    with client.consumer("orders", "billing", type="shared") as consumer:
        assert consumer.receive_many(1, timeout=0.1) == [], "the original was acknowledged"


def test_what_is_only_known_by_its_id_is_buried_when_it_comes_again(client: heliograph.Client) -> None:
    client.producer("ids").send_many(["0", "1", "2"])
    with client.consumer("ids", "s", **SHARED, max_redeliver=0, dead_letter_topic="ids-dead") as consumer:
        first, *others = (consumer.receive(SECONDS) for _ in range(3))
        consumer.ack_many(others)
        consumer.nack(first.message_id)
        with client.reader("ids-dead", "earliest") as dead:
            while (found := dead.receive_many(10, timeout=0.05)) == []:
                assert consumer.receive_many(1, timeout=0.05) == [], "no caller receives it again"
        assert [each.value for each in found] == [b"0"]


def test_a_message_is_received_again_from_the_retry_topic_and_at_last_from_the_dead_letters(
    client: heliograph.Client,
) -> None:
    with client.producer("jobs") as producer:
        origin = producer.send("job", key="k", properties={"own": "kept"})
    dead = client.consumer("jobs-workers-DLQ", "all", initial_position="earliest")
    with client.consumer("jobs", "workers", **SHARED, retry=True, max_redeliver=2) as consumer:
        consumer.close()
        consumer = pickle.loads(pickle.dumps(consumer))
        topics = []
        for times in range(3):
            message = consumer.receive(SECONDS)
            assert message.properties.get("RECONSUMETIMES", "0") == str(times)
            topics.append(message.topic.rpartition("/")[2])
            consumer.reconsume_later(message, 0.01, properties={f"try{times}": "x"})
        assert topics == ["jobs", "jobs-workers-RETRY", "jobs-workers-RETRY"]
        letter = dead.receive(SECONDS)
        assert letter.value == b"job"
        assert letter.key == "k"
        assert letter.properties == {
            "own": "kept",
            "REAL_TOPIC": "persistent://public/default/jobs",
            "ORIGIN_MESSAGE_ID": str(origin),
            "ORIGIN_MESSAGE_IDY_TIME": str(origin),
            "RECONSUMETIMES": "3",
            "DELAY_TIME": "10",
            **{f"try{times}": "x" for times in range(3)},
        }
        with pytest.raises(BadRequestError):
            consumer.reconsume_later(message.message_id)
        consumer.close()
    with client.consumer("jobs", "plain", **SHARED) as consumer:
        message = consumer.receive(SECONDS)
        with pytest.raises(UnsupportedError, match="retry=True"):
            consumer.reconsume_later(message)


def test_a_stock_client_receives_our_retries(cluster: heliograph.LocalCluster, client: heliograph.Client) -> None:
    client.producer("shared-work").send("job")
    with client.consumer("shared-work", "s", **SHARED, retry=True) as consumer:
        consumer.reconsume_later(consumer.receive(SECONDS))
    stock = pulsar.Client(cluster.service_url)
    try:
        theirs = stock.subscribe("shared-work-s-RETRY", "s", pulsar.ConsumerType.Shared)
        message = theirs.receive(SECONDS * 1000)
        assert (message.data(), message.properties()["RECONSUMETIMES"]) == (b"job", "1")
        theirs.acknowledge(message)
    finally:
        stock.close()


def test_a_message_that_is_held_too_long_is_delivered_again(client: heliograph.Client) -> None:
    client.producer("slow").send_many(["a", "b"])
    with client.consumer("slow", "s", **SHARED, ack_timeout_ms=1000) as consumer:
        messages = [consumer.receive(SECONDS) for _ in range(2)]
        consumer.ack(messages[0])
        again = consumer.receive(SECONDS)
        assert (again.value, again.redelivery_count) == (b"b", 1)
        consumer.ack(again)


@pytest.mark.parametrize("options", [{"ack_timeout_ms": 60_000}, {"max_crashes": 1}])
async def test_what_is_acknowledged_by_its_id_is_in_nobodys_hand(
    cluster: heliograph.LocalCluster, options: dict[str, Any]
) -> None:
    async with await heliograph.connect_async(cluster.service_url) as client:
        topic = f"by-id-{next(iter(options))}"
        await client.producer(topic).send_many(["a", "b"])
        consumer = client.consumer(topic, "s", **SHARED, **options)
        first, second = [await consumer.receive(SECONDS) for _ in range(2)]
        delivery = first._delivery
        assert delivery is not None
        schedule = delivery.consumer.redelivery
        await consumer.ack(first.message_id)
        assert delivery.in_hand == 2, "the other message of the batch"
        await consumer.ack(second.message_id)
        assert delivery.in_hand == 0
        assert schedule._unacknowledged == {}


async def test_async_consumers_bury_and_retry_too(cluster: heliograph.LocalCluster) -> None:
    async with await heliograph.connect_async(cluster.service_url) as client:
        await client.producer("async").send("job")
        consumer = client.consumer("async", "s", **SHARED, retry=True, max_redeliver=0)
        await consumer.reconsume_later(await consumer.receive(SECONDS))
        reader = client.reader("async-s-DLQ", "earliest")
        assert (await reader.receive(SECONDS)).properties["RECONSUMETIMES"] == "1"
