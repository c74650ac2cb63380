"""One of three bookies is gone, in each way in which that happens, and everything goes on (I20).

A stock producer publishes all the time into small ledgers. Meanwhile the owner crashes, and a topic, a subscription and
a compaction are made. Then the bookie is back, and every entry has all of its copies.
"""

from __future__ import annotations

import asyncio
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pulsar
import pytest

import heliograph
from heliograph.actors.auditor.auditor import Auditor
from heliograph.actors.auditor.config import AuditorConfig
from heliograph.actors.auditor.replacement import DiskReplacement
from heliograph.actors.auditor.worker import ReplicationWorker
from heliograph.actors.bookie.bookie import Bookie
from heliograph.actors.bookie.config import BookieConfig
from heliograph.actors.errors import LedgerError
from heliograph.actors.ledger.driver import LedgerClient
from heliograph.actors.ledger.schedule import is_vacancy
from heliograph.base.clock import monotonic_ms
from heliograph.base.errors import HeliographError, TooFewBookiesError
from heliograph.metadata.model import LedgerMetadata
from tests.cluster.support.bookie_metadata import all_ledgers
from tests.cluster.support.broker_cluster import BrokerCluster, broker_cluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

TOPIC = "persistent://public/default/busy"
VICTIM = 2
NAME = f"bookie-{VICTIM}"
LEDGER_ENTRIES_MAX = 40  # many rollovers
AWAY_MESSAGES = 400  # confirmed while the bookie is away, and as many again after the owner crashed
SECONDS = 120.0
# Every delay of the auditor passes many times while the bookie is away.
AUDITOR = AuditorConfig(
    lost_bookie_delay_ms=500, audit_interval_ms=500, open_ledger_grace_ms=500, worker_poll_ms=100, task_retry_ms=100
)


@dataclass
class Publisher:
    """Publishes numbers until told to stop, each once it knows that the one before is stored."""

    client: pulsar.Client
    confirmed: list[int] = field(default_factory=list)
    longest_pause: float = 0.0
    failure: Exception | None = None
    is_over: bool = False

    def __post_init__(self) -> None:
        self._producer = self.client.create_producer(TOPIC, send_timeout_millis=60_000, block_if_queue_full=True)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        try:
            while not self.is_over:
                begun = time.monotonic()
                self._producer.send(b"%d" % number, partition_key=str(number % 7))
                self.longest_pause = max(self.longest_pause, time.monotonic() - begun)
                self.confirmed.append(number)
                number += 1
        except Exception as error:
            self.failure = error

    def wait_for_more(self, count: int) -> None:
        """Wait until so many more messages were confirmed."""
        goal = len(self.confirmed) + count
        wait_for(lambda: len(self.confirmed) >= goal or self.failure is not None, f"{count} messages")
        assert self.failure is None, f"publishing stopped: {self.failure}"

    def stop(self) -> None:
        self.is_over = True
        self._thread.join(SECONDS)
        assert not self._thread.is_alive(), "the last message was never confirmed"


class Repair:
    """An auditor with its worker, beside the brokers of a cluster."""

    def __init__(self, cluster: BrokerCluster) -> None:
        self.cluster = cluster
        self.store = cluster.metadata.open_session()
        cluster.run(self._start())

    async def _start(self) -> None:
        self.ledgers = await LedgerClient.start(self.store)
        self.auditor = Auditor(self.store, self.ledgers, AUDITOR, lambda: self.worker.wake())
        membership = self.auditor.membership
        self.worker = ReplicationWorker(
            self.auditor.tasks, self.ledgers, membership.alive, membership.draining, AUDITOR, monotonic_ms
        )
        self.replacement = DiskReplacement(self.store, self.auditor)
        self._tasks = [asyncio.create_task(self.auditor.run()), asyncio.create_task(self.worker.run())]

    def stop(self) -> None:
        self.cluster.run(self._stop())

    async def _stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.ledgers.close()

    @property
    def recovered(self) -> int:
        """How many open ledgers the worker fenced."""
        return int(self.worker.statistics()["ledgers_recovered"])

    def records(self) -> list[LedgerMetadata]:
        return self.cluster.run(all_ledgers(self.store))

    def is_whole(self) -> bool:
        """Whether no task is left, nothing names a vacancy, and all closed ledgers have every copy."""

        async def look() -> bool:
            if await self.auditor.tasks.tasks():
                return False
            for record in await all_ledgers(self.store):
                if any(is_vacancy(name) for segment in record.segments for name in segment.bookies):
                    return False
                if record.is_closed and await self.ledgers.check(record.ledger_id):
                    return False
            return True

        try:
            return self.cluster.run(look())
        except LedgerError:  # a ledger was deleted meanwhile, or a bookie is slow
            return False


def wait_for(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"gave up waiting for {what}"
        time.sleep(0.05)


@contextmanager
def running(directory: Path, **policies: Any) -> Iterator[tuple[BrokerCluster, Repair]]:
    with broker_cluster(directory, brokers=2, ledger_entries_max=LEDGER_ENTRIES_MAX, **policies) as cluster:
        repair = Repair(cluster)
        try:
            yield cluster, repair
        finally:
            repair.stop()


# -- the kinds of loss: each takes the bookie away, and returns what brings it back


def start_bookie(cluster: BrokerCluster, number: int) -> None:
    folder = cluster.directory / f"bookie-{number}"
    config = BookieConfig(f"bookie-{number}", (folder / "journal",), (folder / "data",))
    bookie = Bookie(config, cluster.metadata.open_session())
    cluster.run(bookie.start())
    cluster.bookies[number] = bookie


def lose_process(cluster: BrokerCluster, repair: Repair) -> Callable[[], None]:
    cluster.run(cluster.bookies[VICTIM].stop())
    return lambda: start_bookie(cluster, VICTIM)


def lose_disk(cluster: BrokerCluster, repair: Repair) -> Callable[[], None]:
    cluster.run(cluster.bookies[VICTIM].stop())
    shutil.rmtree(cluster.directory / NAME)

    def replace() -> None:  # as ``helio bookies replace`` does
        cluster.run(repair.replacement.permit(NAME))
        start_bookie(cluster, VICTIM)
        cluster.run(repair.replacement.recover(NAME, is_replaced=True))

    return replace


def fill_disk(cluster: BrokerCluster, repair: Repair) -> Callable[[], None]:
    bookie = cluster.bookies[VICTIM]
    space, update = bookie._space, bookie._space.update

    def full(usages: Any) -> None:
        update(usages)
        space.is_full = space.is_read_only = True

    space.update = full  # type: ignore[method-assign]
    cluster.run(measured(bookie))

    def free() -> None:
        space.update = update  # type: ignore[method-assign]
        space.is_full = False
        cluster.run(measured(bookie))

    return free


async def measured(bookie: Bookie) -> None:
    """Have the bookie measure its disks and tell, as it does every few seconds."""
    await bookie._measure()
    assert bookie._registrar is not None
    await bookie._report_space(bookie._registrar)


@pytest.mark.parametrize("lose", [lose_process, lose_disk, fill_disk])
def test_everything_goes_on_without_one_of_three_bookies(  # I1, I12, I20
    lose: Callable[[BrokerCluster, Repair], Callable[[], None]], tmp_path: Path
) -> None:
    with running(tmp_path) as (cluster, repair), cluster.client() as client:
        early = client.subscribe(TOPIC, "early", initial_position=pulsar.InitialPosition.Earliest)
        publisher = Publisher(client)
        try:
            publisher.wait_for_more(100)
            bring_back = lose(cluster, repair)
            publisher.wait_for_more(AWAY_MESSAGES)
            client.create_producer("persistent://public/default/made-meanwhile").send(b"first")
            late = client.subscribe(TOPIC, "late", initial_position=pulsar.InitialPosition.Earliest)
            cluster.run(cluster.admin.compact_topic(TOPIC))
            wait_for(lambda: compacted(cluster) == "SUCCESS", "the compaction")
            cluster.crash(cluster.owner_of(TOPIC))
            publisher.wait_for_more(AWAY_MESSAGES)
            assert any(is_vacancy(name) for one in repair.records() for name in one.last_segment.bookies)
            assert repair.recovered == 0, "a ledger was fenced that nothing could complete"
            pause_away, publisher.longest_pause = publisher.longest_pause, 0.0
            bring_back()
            publisher.wait_for_more(100)
            wait_for(repair.is_whole, "all copies")
            publisher.wait_for_more(100)
        finally:
            publisher.stop()
        print(f"{lose.__name__}: longest pause {pause_away:.2f} s while away, {publisher.longest_pause:.2f} s after")
        sent = [b"%d" % number for number in publisher.confirmed]
        for consumer in (early, late):
            received = read(consumer, sent[-1])
            assert list(dict.fromkeys(received)) == sent


def compacted(cluster: BrokerCluster) -> str:
    return str(cluster.run(cluster.admin.compaction_status(TOPIC))["status"])


def read(consumer: pulsar.Consumer, last: bytes) -> list[bytes]:
    received: list[bytes] = []
    while not received or received[-1] != last:
        message = consumer.receive(timeout_millis=60_000)
        received.append(message.data())
        consumer.acknowledge(message)
    return received


SEND_MS = 8_000


def test_below_the_ack_quorum_every_topic_refuses_with_the_same_reason_and_goes_on(tmp_path: Path) -> None:  # I20
    """The refusal comes within the producer's time-out, and names the bookies and the way out."""
    with (
        broker_cluster(tmp_path) as cluster,
        heliograph.connect(cluster.service_url) as user,
        user.producer("existing", send_timeout_ms=SEND_MS) as existing,
    ):
        existing.send(b"0")
        for number in (1, 2):
            cluster.run(cluster.bookies[number].stop())
        reasons = [refusal_of(existing.send), refusal_of(existing.send)]
        new = user.producer("new", send_timeout_ms=SEND_MS)
        reasons.append(refusal_of(new.send))  # the first use opens it
        for reason in reasons:
            assert "2 copies are required, 1 bookie takes entries; bookie-1 is down, bookie-2 is down" in reason
            assert "helio bookies replace" in reason
        start_bookie(cluster, 1)
        wait_for(lambda: is_sent(existing), "publishing to go on")
        wait_for(lambda: is_sent(new), "publishing to the new topic")
        new.close()
        with user.reader("existing", "earliest") as reader:
            assert reader.receive(60).value == b"0"  # I1
            second = reader.receive(60).value
            if second == b"refused":  # it was under way when the bookies went, and one had it
                second = reader.receive(60).value
            assert second == b"again"


def test_a_namespace_with_a_minimum_of_copies_refuses_where_others_go_on(tmp_path: Path) -> None:  # I20
    with (
        broker_cluster(tmp_path, minimum_write_copies=3) as cluster,
        heliograph.connect(cluster.service_url) as user,
        user.producer("strict", send_timeout_ms=SEND_MS) as strict,
    ):
        strict.send(b"0")
        consumer = user.consumer("strict", "s", initial_position="earliest")
        assert consumer.receive(60).value == b"0"
        cluster.run(cluster.bookies[VICTIM].stop())
        reasons: list[str] = []

        def is_refused() -> bool:
            try:
                strict.send(b"with two copies")  # until the writer notices
            except TooFewBookiesError as error:
                reasons.append(str(error))
            return bool(reasons)

        wait_for(is_refused, "a refusal")
        assert f"3 copies are required, 2 bookies take entries; {NAME} is down" in reasons[0]
        late = user.consumer("strict", "late", initial_position="earliest")  # subscriptions go on
        assert late.receive(60).value == b"0"
        start_bookie(cluster, VICTIM)
        wait_for(lambda: is_sent(strict), "publishing to go on")


def refusal_of(send: Callable[[bytes], Any]) -> str:
    begun = time.monotonic()
    with pytest.raises(TooFewBookiesError) as caught:
        send(b"refused")
    print(f"refused after {time.monotonic() - begun:.1f} s: {caught.value}")
    return str(caught.value)


def is_sent(producer: heliograph.Producer) -> bool:
    try:
        producer.send(b"again")
    except HeliographError:
        return False
    return True
