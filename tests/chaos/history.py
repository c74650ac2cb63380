"""Histories of a topic under faults: what a publisher and a consumer were confirmed, and the promises about that."""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

import pulsar

import heliograph
from heliograph.base.errors import HeliographError

PENDING_MAX = 200
DRAIN_SECONDS_MAX = 300.0
RESUME_SECONDS_MAX = 300.0
QUIET_SECONDS = 1.0  # at the end: time for acknowledged messages to be delivered again, which must not happen


@dataclass
class History:
    """The confirmations that the publisher and the consumer got."""

    confirmed: list[int] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    confirmed_at: list[float] = field(default_factory=list)
    received: list[int] = field(default_factory=list)  # every delivery, in order
    acknowledged: set[int] = field(default_factory=set)  # confirmed with ACK_RESPONSE
    in_doubt: set[int] = field(default_factory=set)  # acknowledged, but neither that nor a refusal was heard
    redelivered: list[int] = field(default_factory=list)  # delivered although their acknowledgement was confirmed
    unasked: list[int] = field(default_factory=list)  # delivered again, and neither refused nor lost with a connection
    miscounted: list[str] = field(default_factory=list)  # of which a broker counts more refusals than there were
    gaps: list[float] = field(default_factory=list)  # seconds from a kill to the stock producer's next receipt
    served: list[float] = field(default_factory=list)  # to the first producer that another client could make


class Publisher:
    """A stock client that sends numbers, pipelined, until it is stopped.

    Args:
        burst: messages between two pauses of 10 ms.
    """

    def __init__(self, client: pulsar.Client, topic: str, history: History, *, burst: int = 20) -> None:
        self._history = history
        self._burst = burst
        self._producer = client.create_producer(
            topic, block_if_queue_full=True, max_pending_messages=PENDING_MAX, send_timeout_millis=0,
            batching_enabled=True, batching_max_publish_delay_ms=5,
        )  # fmt: skip
        self._stop = threading.Event()
        self.sent = 0
        self._thread = threading.Thread(target=self._run, name="publisher", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Wait until every message has its receipt."""
        self._stop.set()
        self._thread.join(DRAIN_SECONDS_MAX)
        assert not self._thread.is_alive(), "every publish has its receipt"

    def _run(self) -> None:
        while not self._stop.is_set():
            self._producer.send_async(b"%d" % self.sent, self._note(self.sent))
            self.sent += 1
            if self.sent % self._burst == 0:
                time.sleep(0.01)
        self._producer.flush()

    def _note(self, number: int) -> Callable[[pulsar.Result, pulsar.MessageId], None]:
        def note(result: pulsar.Result, _: pulsar.MessageId) -> None:
            if result == pulsar.Result.Ok:
                self._history.confirmed.append(number)
                self._history.confirmed_at.append(time.monotonic())
            else:
                self._history.failed.append(f"{number}: {result}")

        return note


class OwnPublisher:
    """Our client: it sends numbers, many in flight, until it is stopped."""

    def __init__(self, client: heliograph.Client, topic: str, history: History, *, burst: int = 2) -> None:
        self._history = history
        self._burst = burst
        self._producer = client.producer(topic, send_timeout_ms=0)
        self._slots = threading.Semaphore(PENDING_MAX)
        self._stop = threading.Event()
        self.sent = 0
        self._thread = threading.Thread(target=self._run, name="own publisher", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Wait until every message has its receipt."""
        self._stop.set()
        deadline = time.monotonic() + DRAIN_SECONDS_MAX
        for _ in range(PENDING_MAX):
            assert self._slots.acquire(timeout=max(0.0, deadline - time.monotonic())), "every publish has its receipt"
        self._thread.join(DRAIN_SECONDS_MAX)

    def _run(self) -> None:
        while not self._stop.wait(0.01):
            for _ in range(self._burst):
                while not self._slots.acquire(timeout=0.1):
                    if self._stop.is_set():
                        return
                self._producer.send_async(b"%d" % self.sent).add_done_callback(self._note(self.sent))
                self.sent += 1

    def _note(self, number: int) -> Callable[[Future[heliograph.MessageId]], None]:
        def note(done: Future[heliograph.MessageId]) -> None:
            self._slots.release()
            if done.cancelled():  # the client was closed before the answer
                self._history.failed.append(f"{number}: cancelled")
            elif (error := done.exception()) is None:
                self._history.confirmed.append(number)
                self._history.confirmed_at.append(time.monotonic())
            else:
                self._history.failed.append(f"{number}: {error!r}")

        return note


class Acknowledger:
    """Our client in a thread: it acknowledges most messages, each confirmed by the broker, and leaves holes.

    An acknowledgement that was confirmed before a kill must survive it: its message must not come again. (A message
    whose acknowledgement is confirmed later may have been delivered a second time before that.)
    """

    def __init__(self, service_url: str, topic: str, history: History, seed: int) -> None:
        self._service_url = service_url
        self._topic = topic
        self._history = history
        self._chance = random.Random(seed)
        self._finished = threading.Event()
        self._confirmed_at: dict[tuple[heliograph.MessageId, int], float] = {}
        self._had: dict[heliograph.MessageId, int] = {}  # on which connection each message was delivered last
        self._refused: Counter[heliograph.MessageId] = Counter()
        self._sent = 0
        self.killed_at = 0.0
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="acknowledger", daemon=True)
        self.error: BaseException | None = None
        self._thread.start()

    def finish(self, sent: int) -> None:
        """Acknowledge the remaining ones of a number of messages, and stop."""
        self._sent = sent
        self._finished.set()
        self._thread.join(DRAIN_SECONDS_MAX)
        assert not self._thread.is_alive(), "the backlog comes to its end"
        if self.error is not None:
            raise self.error

    async def _run(self) -> None:
        try:
            async with await heliograph.connect_async(self._service_url) as client:
                consumer = await client.consumer(self._topic, "s", type="shared", initial_position="earliest")
                quiet_since = time.monotonic()
                while not (self._has_all and time.monotonic() - quiet_since > QUIET_SECONDS):
                    messages = list(await consumer.receive_many(200, 0.3))
                    if messages:
                        quiet_since = time.monotonic()
                    await self._take(consumer, messages)
        except BaseException as error:
            self.error = error

    @property
    def _has_all(self) -> bool:
        history = self._history
        return self._finished.is_set() and len(history.acknowledged | history.in_doubt) >= self._sent

    def _judge(self, message: heliograph.Message) -> None:
        """Compare a delivery with those before it of the same message, whatever batch it is in (I22)."""
        delivery, refused = message._delivery, self._refused[message.message_id]
        assert delivery is not None, "it came from a broker"
        connection = delivery.consumer.epoch
        if self._had.get(message.message_id) == connection:
            self._history.unasked.append(int(message.value))
        if message.redelivery_count > refused:
            self._history.miscounted.append(f"{message.message_id}: {message.redelivery_count} of {refused}")
        self._had[message.message_id] = connection

    async def _take(self, consumer: heliograph.AsyncConsumer, messages: list[heliograph.Message]) -> None:
        history = self._history
        for message in messages:
            number = int(message.value)
            history.received.append(number)
            self._judge(message)
            if self._confirmed_at.get((message.message_id, number), self.killed_at) < self.killed_at:
                history.redelivered.append(number)
        leave = 0.0 if self._finished.is_set() else 0.05
        wanted = [message for message in messages if self._chance.random() >= leave]
        for message in messages:
            if message not in wanted:
                self._had.pop(message.message_id)
                self._refused[message.message_id] += 1
                await consumer.nack(message)
        if not wanted:
            return
        try:
            await consumer.ack_many(wanted)
        except HeliographError:
            history.in_doubt.update(int(message.value) for message in wanted)  # they may come again
            return
        confirmed = time.monotonic()
        self._confirmed_at.update({(message.message_id, int(message.value)): confirmed for message in wanted})
        history.acknowledged.update(int(message.value) for message in wanted)


def check(client: pulsar.Client, topic: str, history: History, sent: int) -> list[int]:
    """Read the topic from the start and compare it with the confirmations.

    Raises:
        AssertionError: a promise was broken.
    """
    assert history.failed == [], history.failed[:5]
    assert history.confirmed == sorted(history.confirmed), "receipts are in order"  # I2
    stored = read_all(client, topic)
    first_seen = list(dict.fromkeys(stored))
    missing = set(history.confirmed) - set(stored)
    assert not missing, f"{topic}: acknowledged and gone: {sorted(missing)[:10]}"  # I1
    turned = [(a, b) for a, b in itertools.pairwise(first_seen) if b != a + 1]
    assert first_seen == list(range(sent)), f"{topic}: not in publish order, of {sent}: {turned[:5]}"  # I12
    assert history.redelivered == [], f"acknowledged, confirmed and delivered again: {history.redelivered[:10]}"  # I11
    assert history.unasked == [], f"delivered again, not refused and not lost: {history.unasked[:10]}"  # I22
    assert history.miscounted == [], f"more refusals than there were: {history.miscounted[:5]}"  # I22
    assert set(history.received) == set(stored), "everything was delivered"
    assert history.acknowledged | history.in_doubt == set(stored), "and acknowledged in the end"
    return stored


def read_all(client: pulsar.Client, topic: str) -> list[int]:
    """Return every entry of the topic."""
    reader = client.create_reader(topic, pulsar.MessageId.earliest, receiver_queue_size=5_000)
    numbers = []
    while reader.has_message_available():
        numbers.append(int(reader.read_next(30_000).data()))
    reader.close()
    return numbers


def wait_for_more(history: History, count: int) -> None:
    """Wait for a number of further receipts."""
    deadline, before = time.monotonic() + RESUME_SECONDS_MAX, len(history.confirmed)
    while len(history.confirmed) < before + count:
        assert time.monotonic() < deadline, "publishing goes on"
        time.sleep(0.01)
