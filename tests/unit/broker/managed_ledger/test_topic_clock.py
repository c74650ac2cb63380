"""The topic's clock and searches by time against a plain model, over clocks of producers and brokers that are wrong."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock, patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heliograph.actors.broker.managed_ledger.managed_ledger import ManagedLedger
from heliograph.actors.broker.managed_ledger.reader import TopicReader
from heliograph.actors.broker.managed_ledger.tail_cache import TailCache
from heliograph.actors.broker.records import topic_chain
from heliograph.actors.broker.records.entry_stamp import APART_MS_MAX, LATEST, begin_stamps
from heliograph.actors.broker.records.ledgers import LedgerReaderPort
from heliograph.actors.broker.records.topic_entry import TopicEntry
from heliograph.actors.errors import QuorumLostError
from heliograph.base import clock
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.batch import encode_single, full_head
from heliograph.protocol.entry import broker_metadata_size, metadata_of
from tests.examples import examples
from tests.unit.broker.world import Outcomes, World, turns

SECOND, HOUR, YEAR = 1_000, 3_600_000, 365 * 86_400_000
NOW = 1_800_000_000_000

# -- a broker whose clock is set


class Clock:
    """The clocks of this process."""

    def __init__(self) -> None:
        self.ms, self.steady_ms = NOW, 0

    def go_on(self, ms: int) -> None:
        self.ms += ms
        self.steady_ms += ms

    @contextmanager
    def in_use(self) -> Iterator[None]:
        times = SimpleNamespace(time_ns=lambda: self.ms * 1_000_000, monotonic_ns=lambda: self.steady_ms * 1_000_000)
        with patch.object(clock, "time", times):
            yield


class Unreadable:
    """Ledgers whose bookies do not answer."""

    async def open(self, ledger_id: int, known: Any = None) -> None:
        raise QuorumLostError(f"ledger {ledger_id} cannot be read")


class TailLost:
    """Ledgers whose newest entries cannot be read for a while."""

    def __init__(self, ledgers: Any, lost: int) -> None:
        self._ledgers = ledgers
        self._lost = lost  # of each ledger

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledgers, name)

    async def open(self, ledger_id: int, known: Any = None) -> Any:
        reader = await self._ledgers.open(ledger_id)
        read, first_lost = reader.read, await reader.read_last_add_confirmed() + 1 - self._lost

        async def reading(first: int, last: int, *rest: Any) -> Any:
            if last >= first_lost:
                raise QuorumLostError(f"entry {last} cannot be read")
            return await read(first, last, *rest)

        reader.read = reading
        return reader


class Topic:
    """A topic with one owner after another, and what the plain model knows of it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.clock = Clock()
        self.published: list[int] = []
        self.seen: list[tuple[int, int]] = []  # at each publication: the wall clock, and the latest that it ever said
        self._latest_ms = NOW

    async def open(self) -> None:
        self.ledger: ManagedLedger = await self.world.open(await self.world.session())
        self.reader = TopicReader(self.ledger.chain, TailCache(1 << 20), self.world.ledgers)

    async def publish(self, published_ms: int) -> None:
        outcomes = Outcomes()
        self.published.append(published_ms)
        self.look()
        self.seen.append((self.clock.ms, self._latest_ms))
        metadata = pb.MessageMetadata(producer_name="p", sequence_id=len(self.seen), publish_time=published_ms)
        outcomes.publish_bytes(self.ledger, encode_single(metadata, full_head(1, None, None, None), b"x"))
        await turns(lambda: len(outcomes.confirmed) == 1)

    def look(self) -> None:
        self._latest_ms = max(self._latest_ms, self.clock.ms)

    async def trim(self) -> None:
        """Delete all ledgers but the last one, as retention does."""
        await self.ledger.trim(lambda: 1 << 62, NOW + 1_000 * YEAR, keeps_retained=False)

    async def times(self) -> list[int]:
        chain = self.ledger.chain
        return [await self.reader.stored_ms(index) for index in range(chain.first, chain.end)]

    def first(self, times: list[int], wanted: int) -> int:
        """Return the index of the first entry at or after a time."""
        return next((index for index, one in enumerate(times) if one >= wanted), len(times))


@asynccontextmanager
async def opened_topic(**policies: int) -> AsyncIterator[Topic]:
    topic = Topic(World())
    topic.world.policies = replace(topic.world.policies, **policies)  # type: ignore[arg-type]
    with topic.clock.in_use():
        await topic.open()
        yield topic


# What a producer's clock says, in ms from the broker's; None: 1970.
PRODUCER = st.one_of(
    st.just(0), st.integers(-3 * SECOND, SECOND), st.integers(-30 * HOUR, 30 * HOUR), st.just(YEAR), st.none()
)
STEPS = st.one_of(
    st.tuples(st.just("publish"), PRODUCER),
    st.tuples(st.just("wait"), st.integers(0, 5 * HOUR)),
    st.tuples(st.just("be off"), st.integers(-10 * HOUR, 10 * HOUR)),
    st.tuples(st.just("crash"), st.just(0)),
    st.tuples(st.just("close"), st.just(0)),
    st.tuples(st.just("roll"), st.just(0)),
)


async def step(topic: Topic, name: str, value: int | None) -> None:
    topic.look()
    if name == "publish":
        await topic.publish(0 if value is None else topic.clock.ms + value)
    elif name == "wait":
        topic.clock.go_on(value or 0)
    elif name == "jump":
        topic.clock.ms += value or 0
    elif name == "be off":
        topic.clock.ms = NOW + topic.clock.steady_ms + (value or 0)
    elif name == "trim":
        await topic.trim()
    elif name == "roll":
        await topic.ledger.roll()
        await turns(lambda: not topic.ledger._is_rolling)
    else:
        if name == "close":
            await topic.ledger.close()
        await topic.open()


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(STEPS, max_size=40), st.lists(st.integers(-40 * HOUR, 40 * HOUR), max_size=5), st.integers(1, 6))
async def test_a_search_by_time_finds_what_a_plain_search_finds(
    steps: list[tuple[str, int | None]], wanted: list[int], entries_max: int
) -> None:
    async with opened_topic(ledger_entries_max=entries_max) as topic:
        for name, value in steps:
            await step(topic, name, value)
        times = await topic.times()
        assert all(wall <= one <= latest for one, (wall, latest) in zip(times, topic.seen, strict=True))
        assert times == sorted(times)  # I21
        capped = [min(one, stored + APART_MS_MAX) for one, stored in zip(topic.published, times, strict=True)]
        for time in {*topic.published, *times, *(topic.clock.ms + one for one in wanted), 0, topic.clock.ms}:
            found = await topic.reader.index_at_time(time)
            assert found == topic.first(capped, time) or time <= 1
            assert await topic.reader.index_at_time(time, stored=True) == topic.first(times, time)


JUMPS = st.tuples(st.just("jump"), st.sampled_from((-YEAR, YEAR)))
TRIMS = st.tuples(st.just("trim"), st.just(0))


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.one_of(STEPS, JUMPS, TRIMS), max_size=40))
async def test_times_never_go_back_whatever_the_clocks_of_brokers_do(steps: list[tuple[str, int | None]]) -> None:
    newest = 0  # of all entries, those that were trimmed among them
    async with opened_topic(ledger_entries_max=4) as topic:
        for name, value in steps:
            await step(topic, name, value)
            times = await topic.times()
            assert all(one <= two for one, two in pairwise(times))  # I21
            assert not times or times[-1] >= newest  # I21
            if times:
                newest, first = times[-1], topic.ledger.chain.first
                found = await topic.reader.index_at_time(times[-1], stored=True)
                assert found == first + topic.first(times, times[-1])


# -- cases


async def test_a_last_entry_that_cannot_be_read_keeps_no_topic_closed() -> None:
    async with opened_topic() as topic:
        await topic.publish(NOW)
        await topic.publish(NOW)
        await topic.ledger.close()
        record = topic.ledger.record
        assert record.ledgers[-1].closed_ms
        without = replace(record, properties={})
        unreadable: Any = Unreadable()
        _, stamp = await begin_stamps(without, {}, unreadable, "time")
        assert stamp.time_ms >= NOW
        assert stamp.latest_ms == record.ledgers[-1].closed_ms + APART_MS_MAX
        with pytest.raises(QuorumLostError):  # an index would be given twice
            await begin_stamps(without, {}, unreadable, "both")


@pytest.mark.parametrize(("lost", "goes_on_at"), [(1, HOUR), (2, HOUR - SECOND), (5, 0)])
async def test_no_time_goes_back_after_last_entries_that_cannot_be_read(lost: int, goes_on_at: int) -> None:
    """An owner that is an hour behind cannot read them either, and they can be read again later."""
    async with opened_topic() as topic:
        for number in range(5):
            topic.clock.ms = NOW + HOUR + (number - 3) * SECOND
            await topic.publish(NOW)
        topic.clock.ms = NOW
        ledgers = topic.world.ledgers
        topic.world.ledgers = cast(Any, TailLost(ledgers, lost))
        await topic.open()
        topic.world.ledgers = ledgers
        await topic.publish(NOW)
        topic.reader = TopicReader(topic.ledger.chain, TailCache(1 << 20), ledgers)
        times = await topic.times()
        assert times == sorted(times)  # I21
        assert times[-1] == NOW + goes_on_at
        for wanted in {NOW - 1, NOW, *times, times[-1] + 1}:
            assert await topic.reader.index_at_time(wanted, stored=True) == topic.first(times, wanted)


async def test_a_broker_that_is_behind_sets_no_clock_back() -> None:
    """The topic lived through the day after this broker's time, or is younger than it: the broker is wrong."""

    async with opened_topic() as topic:
        for _ in range(3):
            await topic.publish(NOW)
            await topic.ledger.roll()
            await turns(lambda: not topic.ledger._is_rolling)
            topic.clock.go_on(20 * HOUR)
        newest = (await topic.times())[-1]
        for behind in (3 * 24 * HOUR, 50 * YEAR):
            topic.clock.ms = NOW + 45 * HOUR - behind
            await topic.open()
            await topic.publish(NOW)
            assert (await topic.times())[-1] >= newest


@pytest.mark.parametrize("ending", ["crash", "close"])
async def test_a_topic_that_was_trimmed_whole_keeps_its_clock(ending: str) -> None:
    """No ledger with entries is left in the record, which could tell the next owner how far the clock had come."""
    async with opened_topic() as topic:
        topic.clock.ms = NOW + HOUR
        await topic.publish(NOW)
        await topic.ledger.roll()
        await turns(lambda: not topic.ledger._is_rolling)
        await topic.trim()
        topic.clock.ms = NOW
        for _ in range(2):  # the next owner may end before it has stored anything, too
            await step(topic, ending, None)
        await topic.publish(NOW)
        assert await topic.times() == [NOW + HOUR]  # I21


async def test_ledgers_that_only_pieces_name_keep_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last two ledgers of the record were empty, and left it: all that have entries are in pieces."""
    monkeypatch.setattr(topic_chain, "PIECE_LEDGERS", 2)
    monkeypatch.setattr(topic_chain, "TAIL_LEDGERS_MAX", 3)
    async with opened_topic(ledger_entries_max=1) as topic:
        topic.clock.ms = NOW + HOUR
        for _ in range(2):
            await topic.publish(NOW)
            await turns(lambda: not topic.ledger._is_rolling)
        await topic.ledger._append_next()
        record = topic.ledger.record
        assert record.pieces
        assert not any(info.entries for info in record.ledgers)
        topic.clock.ms = NOW
        await topic.open()
        await topic.publish(NOW)
        await topic.ledger.chain.load_index(0)
        assert await topic.times() == [NOW + HOUR] * 3  # I21


async def test_a_search_by_time_goes_on_while_the_entry_that_it_reads_is_trimmed() -> None:
    async with opened_topic(ledger_entries_max=1) as topic:
        for number in range(4):
            topic.clock.ms = NOW + number
            await topic.publish(NOW + number)
            await turns(lambda: not topic.ledger._is_rolling)
        real = topic.world.ledgers.open

        async def opened(ledger_id: int) -> LedgerReaderPort:
            reader = await real(ledger_id)  # the entries of a ledger that is open can be read until it is deleted
            found = await reader.read(0, 0)
            await topic.trim()
            return cast(LedgerReaderPort, SimpleNamespace(last_add_confirmed=0, read=AsyncMock(return_value=found)))

        topic.world.ledgers.open = opened  # type: ignore[method-assign,assignment]
        assert await topic.reader.index_at_time(NOW + 1, stored=True) == 4 == topic.ledger.chain.first
        topic.world.ledgers.open = real  # type: ignore[method-assign]


async def test_the_time_of_an_entry_is_told_though_it_is_trimmed_meanwhile() -> None:
    async with opened_topic(ledger_entries_max=1) as topic:
        await topic.publish(NOW)
        await turns(lambda: not topic.ledger._is_rolling)
        entry = await topic.reader.entry(0)

        async def read(index: int) -> TopicEntry:
            await topic.trim()
            return entry

        topic.reader.entry = read  # type: ignore[method-assign]
        assert await topic.reader.stored_ms(0) == NOW


async def test_the_latest_publish_time_is_read_from_the_last_entry_after_a_crash_only() -> None:
    async with opened_topic() as topic:
        opened: list[int] = []
        real = topic.world.ledgers.open

        async def counted(ledger_id: int, known: Any = None) -> object:
            opened.append(ledger_id)
            return await real(ledger_id)

        topic.world.ledgers.open = counted  # type: ignore[method-assign,assignment]
        await topic.publish(NOW + 5)
        await topic.ledger.close()
        await topic.open()
        assert (opened, topic.ledger.stamp.latest_ms) == ([], NOW + 5)
        await topic.publish(NOW + 7)
        await topic.open()
        assert (len(opened), topic.ledger.stamp.latest_ms) == (1, NOW + 7)


async def test_entries_of_an_earlier_release_count_as_stored_when_their_ledger_was_closed() -> None:
    async with opened_topic() as topic:
        for published in (NOW - HOUR, NOW + YEAR, 1, NOW):
            await topic.publish(published)
        stored = topic.world.ledgers.ledgers[topic.ledger.writer.ledger_id].entries
        stored[:] = [one[broker_metadata_size(one) :] for one in stored]
        assert metadata_of(stored[0]).publish_time == NOW - HOUR
        topic.clock.go_on(30 * SECOND)
        closed = topic.clock.ms
        await topic.open()
        await topic.publish(1)
        assert await topic.times() == [closed] * 5
        assert await topic.reader.index_at_time(closed) == 0
        assert await topic.reader.index_at_time(closed + 1) == 5
        topic.clock.go_on(1)
        await topic.publish(closed + 1)
        assert await topic.reader.index_at_time(closed + 1) == 5
        await topic.ledger.close()
        assert topic.ledger.record.properties[LATEST].endswith(f":{closed + 1}")


def test_a_step_of_the_wall_clock_makes_nothing_old_at_once() -> None:
    ages, here = clock.SteadyClock(), Clock()
    with here.in_use():
        assert ages.now_ms() == NOW
        here.ms += YEAR
        assert ages.now_ms() == NOW
        here.go_on(HOUR // 2)
        assert ages.now_ms() == NOW + HOUR // 2
        here.ms -= YEAR
        assert ages.now_ms() == here.ms == NOW + HOUR // 2
        here.ms += YEAR
        assert ages.now_ms() == NOW + HOUR // 2
        here.go_on(HOUR)
        assert ages.now_ms() == here.ms  # the machine had slept
        here.ms -= YEAR
        assert ages.now_ms() == here.ms  # back at once: nothing gets too old by that
        here.ms += 30 * SECOND
        assert ages.now_ms() == here.ms
