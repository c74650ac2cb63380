"""A topic's chain of ledgers over rollovers, failed writers, takeovers and trimming, and the sizes of its backlogs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heliograph.actors.broker.managed_ledger.backlog_size import LedgerSize, backlog_bytes, mark_within
from heliograph.actors.broker.managed_ledger.reader import TopicReader
from heliograph.actors.broker.managed_ledger.retention import trimmable_ledgers
from heliograph.actors.broker.managed_ledger.state import WriteState
from heliograph.actors.broker.managed_ledger.tail_cache import TailCache
from heliograph.actors.broker.records.position import Position
from heliograph.actors.broker.records.topic_record import DELETABLE
from heliograph.actors.broker.topic.opening import open_managed_ledger
from heliograph.actors.errors import LedgerFencedError, LedgerRecoveryError, NotEnoughBookiesError, QuorumLostError
from heliograph.base.errors import (
    HeliographError,
    PersistenceError,
    ServiceNotReadyError,
    StorageFullError,
    TooFewBookiesError,
    TopicNotFoundError,
)
from heliograph.metadata.backends.memory import MemoryStore
from heliograph.metadata.model import LedgerInfo, TopicRecord
from heliograph.metadata.recipes.update_loop import read
from tests.unit.broker.world import Outcomes, World, turns


async def test_entries_are_confirmed_in_order_and_counted(world: World, store: MemoryStore) -> None:
    ledger, outcomes = await world.open(store), Outcomes()
    outcomes.publish(ledger, *"abc")
    await turns(lambda: len(outcomes.confirmed) == 3)
    assert outcomes.texts == ["a", "b", "c"]  # I2
    assert [position.entry_id for _, position in outcomes.confirmed] == [0, 1, 2]
    assert ledger.chain.end == 3
    await ledger.close()
    outcomes.publish(ledger, "late")
    assert isinstance(outcomes.failed[0][1], ServiceNotReadyError)


async def test_rollover_keeps_order_and_one_open_ledger(world: World, store: MemoryStore) -> None:
    world.policies = replace(world.policies, ledger_entries_max=10)
    ledger, outcomes = await world.open(store), Outcomes()
    names = [f"m{n}" for n in range(95)]
    for name in names:
        outcomes.publish(ledger, name)
        await asyncio.sleep(0)
    await turns(lambda: len(outcomes.confirmed) == 95)
    assert outcomes.texts == names
    positions = [position for _, position in outcomes.confirmed]
    assert positions == sorted(positions)  # I12
    assert world.contents(ledger) == names
    await turns(lambda: sum(info.closed_ms == 0 for info in ledger.record.ledgers) == 1)
    assert len(ledger.record.ledgers) > 3
    closed = [info for info in ledger.record.ledgers if info.closed_ms]
    assert sum(info.entries for info in closed) + ledger.writer.last_add_confirmed + 1 == 95


async def test_a_closed_topic_leaves_the_cache_to_others(world: World, store: MemoryStore) -> None:
    world.policies = replace(world.policies, ledger_entries_max=2)
    ledger, outcomes = await world.open(store), Outcomes()
    outcomes.publish(ledger, *"abcde")
    await turns(lambda: len(outcomes.confirmed) == 5)
    cache = ledger._tail._cache
    kept = cache.get(outcomes.confirmed[-1][1])
    assert kept is not None
    cache.put(Position(1 << 40, 0), kept)  # of another topic
    cache.drop(outcomes.confirmed[0][1])  # as if room had been needed: the oldest leave first
    await ledger.close()
    await TopicReader(ledger.chain, cache, world.ledgers).close()
    assert len(cache) == 1
    assert cache.get(Position(1 << 40, 0)) is kept


async def test_nothing_goes_to_the_next_ledger_before_the_last_is_confirmed(world: World, store: MemoryStore) -> None:
    world.policies = replace(world.policies, ledger_entries_max=2)
    ledger, outcomes = await world.open(store), Outcomes()
    first = ledger.writer.ledger_id
    world.ledgers.held = True
    outcomes.publish(ledger, "a", "b")
    await turns(lambda: ledger.state is WriteState.DRAINING)
    outcomes.publish(ledger, "c")
    second = ledger.record.ledgers[-1].ledger_id
    assert second != first
    assert world.ledgers.ledgers[second].entries == []  # I12: a crash now leaves a prefix
    world.ledgers.held = False
    world.ledgers.writers[first].release()
    await turns(lambda: outcomes.texts == ["a", "b", "c"])
    assert world.contents(ledger) == ["a", "b", "c"]


@pytest.mark.parametrize("found", [0, 1, 2])
async def test_a_lost_quorum_moves_on_with_what_recovery_found(world: World, store: MemoryStore, found: int) -> None:
    ledger, outcomes = await world.open(store), Outcomes()
    outcomes.publish(ledger, "a")
    await turns(lambda: len(outcomes.confirmed) == 1)
    first = ledger.writer.ledger_id
    world.ledgers.held = True
    world.ledgers.recovery_keeps = found
    outcomes.publish(ledger, "b", "c")
    world.ledgers.held = False
    world.ledgers.writers[first].fail(QuorumLostError("two bookies died"))
    await turns(lambda: ledger.state is WriteState.RECOVERING)
    outcomes.publish(ledger, "d")
    await turns(lambda: len(outcomes.confirmed) == 4)
    assert outcomes.texts == ["a", "b", "c", "d"]
    assert world.contents(ledger) == ["a", "b", "c", "d"]  # I12: nothing twice, nothing lost
    assert ledger.record.ledgers[0].entries == 1 + found
    assert outcomes.failed == []


async def test_a_writer_that_fails_while_a_rollover_is_under_way(world: World, store: MemoryStore) -> None:
    world.policies = replace(world.policies, ledger_entries_max=2)
    ledger, outcomes = await world.open(store), Outcomes()
    first = ledger.writer.ledger_id
    world.ledgers.held = True
    outcomes.publish(ledger, "a", "b")
    await turns(lambda: ledger.state is WriteState.DRAINING)
    outcomes.publish(ledger, "c")
    world.ledgers.held = False
    world.ledgers.writers[first].fail(QuorumLostError("gone"))
    await turns(lambda: outcomes.texts == ["a", "b", "c"])
    assert world.contents(ledger) == ["a", "b", "c"]
    assert [info.entries for info in ledger.record.ledgers if info.ledger_id == first] == [0]


async def test_a_fenced_writer_abandons_the_topic(world: World, store: MemoryStore) -> None:
    old, outcomes = await world.open(store), Outcomes()
    lost: list[HeliographError] = []
    old.on_lost = lost.append
    outcomes.publish(old, "a")
    await turns(lambda: len(outcomes.confirmed) == 1)
    new = await world.open(await world.session())
    outcomes.publish(old, "b")
    await turns(lambda: bool(lost))
    assert isinstance(lost[0], LedgerFencedError)
    assert outcomes.texts == ["a"]  # I13: the old owner confirms nothing more
    assert [text for text, _ in outcomes.failed] == ["b"]
    outcomes.publish(new, "c")
    await turns(lambda: outcomes.texts == ["a", "c"])
    assert world.contents(new) == ["a", "c"]


async def test_a_previous_owner_cannot_append_a_ledger(world: World, store: MemoryStore) -> None:
    """Its writer failed at the moment of the takeover: it may recover its ledger, but not continue in another."""
    old, outcomes = await world.open(store), Outcomes()
    lost: list[HeliographError] = []
    old.on_lost = lost.append
    world.ledgers.held = True
    outcomes.publish(old, "a")
    writer = world.ledgers.writers[old.writer.ledger_id]
    waiting, writer._waiting = writer._waiting, []
    new = await world.open(await world.session())
    writer._waiting = waiting
    writer.fail(QuorumLostError("the network is split"))
    await turns(lambda: bool(lost))
    assert outcomes.confirmed == []  # I13
    assert new.chain.end == 0
    assert all(info.closed_ms for info in new.record.ledgers[:-1])


async def test_takeover_recovers_the_last_two_ledgers(world: World, store: MemoryStore) -> None:
    world.policies = replace(world.policies, ledger_entries_max=2)
    old, outcomes = await world.open(store), Outcomes()
    world.ledgers.held = True
    outcomes.publish(old, "a", "b")
    await turns(lambda: old.state is WriteState.DRAINING)  # crash: two ledgers of the record are open
    assert sum(info.closed_ms == 0 for info in old.record.ledgers) == 2
    world.ledgers.recovery_keeps = 1
    new = await world.open(await world.session())
    assert world.contents(new) == ["a"]
    assert all(world.ledgers.ledgers[info.ledger_id].fenced for info in old.record.ledgers)
    assert [info.ledger_id for info in new.record.ledgers] == [old.writer.ledger_id]


async def test_ledgers_that_stayed_empty_leave_the_chain(world: World, store: MemoryStore) -> None:
    first = await world.open(store)
    await first.close()
    second, outcomes = await world.open(store), Outcomes()
    outcomes.publish(second, "a")
    await turns(lambda: outcomes.texts == ["a"])
    await second.close()
    assert second.chain.ledger_ids == (first.writer.ledger_id, second.writer.ledger_id)
    third = await world.open(store)
    assert third.chain.ledger_ids == (second.writer.ledger_id,)
    assert await third.trim(lambda: 1 << 60, 0) == 0
    assert world.ledgers.deleted == [first.writer.ledger_id]


async def test_a_topic_gets_no_ledger_before_something_is_published(world: World, store: MemoryStore) -> None:
    first, outcomes = await world.open(store), Outcomes()
    outcomes.publish(first, "a")
    await turns(lambda: outcomes.texts == ["a"])
    for _ in range(3):  # three owners that crash, two that end in good order
        taken = await world.open(await world.session())
    await taken.close()
    await (await world.open(await world.session())).close()
    assert len(world.ledgers.ledgers) == 1
    last = await world.open(await world.session())
    assert last.state is WriteState.DORMANT
    assert last.record.ledgers == taken.record.ledgers
    for earlier in (first, taken):
        outcomes.publish(earlier, "lost")
    await turns(lambda: len(outcomes.failed) == 2)  # I13
    outcomes.publish(last, "b", "c")
    await turns(lambda: outcomes.texts == ["a", "b", "c"])
    assert len(world.ledgers.ledgers) == 2
    assert world.contents(last) == ["a", "b", "c"]


async def test_an_owner_knows_whether_the_one_before_it_closed_a_dormant_topic(
    world: World, store: MemoryStore
) -> None:
    """One that did not may not know that it has lost the topic: keys are held back then (I16)."""
    first, outcomes = await world.open(store), Outcomes()
    outcomes.publish(first, "a")
    await turns(lambda: outcomes.texts == ["a"])
    await first.close()
    found = [await world.open(await world.session()) for _ in range(2)]
    await found[1].close()
    found.append(await world.open(await world.session()))
    assert [each.is_taken_over for each in found] == [False, True, False]


async def test_two_owners_that_both_believe_to_own_a_dormant_topic_write_one_chain(
    world: World, store: MemoryStore
) -> None:
    first, outcomes = await world.open(store), Outcomes()
    outcomes.publish(first, "a")
    await turns(lambda: outcomes.texts == ["a"])
    earlier = await world.open(await world.session())
    later = await world.open(await world.session())
    assert {earlier.state, later.state} == {WriteState.DORMANT}
    outcomes.publish(earlier, "lost")
    outcomes.publish(later, "b")
    await turns(lambda: len(outcomes.confirmed) == 2 and bool(outcomes.failed))
    assert [text for text, _ in outcomes.failed] == ["lost"]  # I13: the record decides
    assert earlier.state is WriteState.CLOSED
    assert world.contents(later) == ["a", "b"]


async def test_a_dormant_topic_is_rolled_terminated_and_trimmed(world: World, store: MemoryStore) -> None:
    world.policies = replace(world.policies, retention_seconds=0, retention_bytes=0)
    first, outcomes = await world.open(store), Outcomes()
    outcomes.publish(first, "a")
    await turns(lambda: outcomes.texts == ["a"])
    rolled = await world.open(await world.session())
    await rolled.roll()  # as before everything is deleted
    assert rolled.state is WriteState.WRITING
    assert await rolled.trim(lambda: 1 << 60, 1 << 60) == 1
    outcomes.publish(rolled, "b")
    await turns(lambda: outcomes.texts == ["a", "b"])
    aged = await world.open(await world.session())
    aged.roll_if_due()
    assert aged.state is WriteState.DORMANT
    assert 0 < aged.roll_due_ms(0) <= 1_000 * aged.policies.ledger_age_seconds_max
    aged.policies = replace(aged.policies, ledger_age_seconds_max=0)
    aged.roll_if_due()
    await turns(lambda: aged.state is WriteState.WRITING)  # the last ledger with entries can be trimmed then
    outcomes.publish(aged, "c")
    await turns(lambda: outcomes.texts == ["a", "b", "c"])
    ended = await world.open(await world.session())
    assert await ended.terminate() == ended.chain.position_before(ended.chain.end)
    assert ended.state is WriteState.TERMINATED


async def test_a_topic_that_cannot_be_written_for_long_fails_its_publishers(
    world: World, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heliograph.actors.broker.managed_ledger.failed_ledger.RECOVER_SECONDS_MAX", 0.0)
    monkeypatch.setattr("heliograph.actors.broker.managed_ledger.failed_ledger.RETRY_MS", 0.001)
    ledger, outcomes = await world.open(store), Outcomes()
    world.ledgers.held = True
    outcomes.publish(ledger, "a")
    world.ledgers.fail_create = NotEnoughBookiesError("two of three are left")
    world.ledgers.writers[ledger.writer.ledger_id].fail(QuorumLostError("gone"))
    await turns(lambda: bool(outcomes.failed))
    assert isinstance(outcomes.failed[0][1], PersistenceError)
    assert ledger.state is WriteState.CLOSED


async def test_trimming_takes_whole_ledgers_from_the_head_only(world: World, store: MemoryStore) -> None:
    world.policies = replace(world.policies, ledger_entries_max=5, retention_seconds=0, retention_bytes=0)
    ledger, outcomes = await world.open(store), Outcomes()
    for n in range(17):
        outcomes.publish(ledger, f"m{n}")
        await turns(lambda n=n: len(outcomes.confirmed) == n + 1)  # type: ignore[misc]
    await turns(lambda: sum(info.closed_ms == 0 for info in ledger.record.ledgers) == 1)
    ids = ledger.chain.ledger_ids
    assert await ledger.trim(lambda: ids[1], 1 << 60) == 1  # a cursor still needs the second ledger (I14)
    assert world.ledgers.deleted == [ids[0]]
    assert ledger.chain.first == ledger.chain.at_or_after(outcomes.confirmed[0][1])
    assert await ledger.trim(lambda: 1 << 60, 1 << 60) == len(ids) - 2
    assert ledger.chain.ledger_ids == ids[-1:]
    stored = (await read(store, "/topics/public/default/orders", TopicRecord)).record
    assert [info.ledger_id for info in stored.ledgers] == list(ids[-1:])
    assert DELETABLE not in stored.properties


def test_retention_rules() -> None:
    ledgers = [LedgerInfo(n, entries=1, size=100, closed_ms=1_000 * n) for n in range(1, 5)] + [LedgerInfo(9)]

    def count(needed: int = 100, now_ms: int = 5_000, seconds: int = -1, size: int = -1) -> int:
        return trimmable_ledgers(
            ledgers,
            needed,
            now_ms,
            kept_bytes=sum(one.size for one in ledgers),
            retention_seconds=seconds,
            retention_bytes=size,
        )

    assert count() == 0  # kept for ever
    assert count(seconds=0) == 4  # I14: never the last
    assert count(seconds=3) == 2
    assert count(size=250) == 1
    assert count(seconds=0, needed=3) == 2  # I14
    assert count(seconds=0, needed=1) == 0
    ledgers[1] = replace(ledgers[1], closed_ms=0)
    assert count(seconds=0) == 1


async def test_an_unknown_topic_cannot_be_opened(world: World, store: MemoryStore) -> None:
    ledger = await world.open(store)
    await ledger.close()
    await store.delete("/topics/public/default/orders")
    world.policies = replace(world.policies, auto_create_topics=False)
    with pytest.raises(TopicNotFoundError):
        await open_managed_ledger(
            "orders", "/topics/public/default/orders", store, world.ledgers, TailCache(1), world.policies
        )


async def test_full_disks_refuse_publishers_until_there_is_space(
    world: World, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Consumers go on meanwhile, and what they have read can be deleted."""
    monkeypatch.setattr("heliograph.actors.broker.managed_ledger.failed_ledger.RECOVER_SECONDS_MAX", 0.0)
    monkeypatch.setattr("heliograph.actors.broker.managed_ledger.failed_ledger.RETRY_MS", 0.001)
    world.policies = replace(world.policies, ledger_entries_max=1, retention_seconds=0, retention_bytes=0)
    ledger, outcomes = await world.open(store), Outcomes()
    outcomes.publish(ledger, "a")
    await turns(lambda: len(ledger.record.ledgers) > 1 and ledger.state is WriteState.WRITING)
    world.ledgers.held = True
    world.ledgers.recovery_keeps = 1
    world.ledgers.fail_create = StorageFullError("storage is full: b1 (97% used)")
    outcomes.publish(ledger, "b", "c")
    await turns(lambda: ledger.state is not WriteState.DRAINING)
    world.ledgers.writers[ledger.writer.ledger_id].fail(QuorumLostError("read-only"))
    await turns(lambda: bool(outcomes.failed))
    assert outcomes.texts == ["a", "b"]  # I1: what the recovery found is confirmed
    outcomes.publish(ledger, "d")
    assert [text for text, _ in outcomes.failed] == ["c", "d"]
    assert all(isinstance(error, StorageFullError) for _, error in outcomes.failed)
    assert await ledger.trim(lambda: 1 << 60, 1 << 60) == 1
    world.ledgers.held, world.ledgers.fail_create = False, None
    await turns(lambda: ledger.state is WriteState.WRITING)
    outcomes.publish(ledger, "e")
    await turns(lambda: outcomes.texts == ["a", "b", "e"])
    assert world.contents(ledger)[-2:] == ["b", "e"]  # I12


async def test_while_too_few_bookies_answer_publishing_is_refused_and_goes_on_by_itself(
    world: World,
    store: MemoryStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The end of the failed ledger is not known meanwhile, so what was published to it has no outcome (I20)."""
    monkeypatch.setattr("heliograph.actors.broker.managed_ledger.failed_ledger.RECOVER_SECONDS_MAX", 0.0)
    monkeypatch.setattr("heliograph.actors.broker.managed_ledger.failed_ledger.RETRY_MS", 0.001)
    monkeypatch.setattr("heliograph.actors.broker.managed_ledger.failed_ledger.RETRY_MS_MAX", 0.01)
    ledger, outcomes = await world.open(store), Outcomes()
    world.ledgers.held = True
    world.ledgers.recovery_keeps = 1
    few = TooFewBookiesError("too few bookies: b2 is down, b3 is down")
    world.ledgers.shortage_error = few
    world.ledgers.fail_recover = LedgerRecoveryError("too few bookies could be fenced")
    outcomes.publish(ledger, "a", "b")
    world.ledgers.writers[ledger.writer.ledger_id].fail(QuorumLostError("gone"))
    await turns(lambda: bool(outcomes.delayed))
    assert outcomes.delayed == [("a", few), ("b", few)]
    assert outcomes.failed == []
    outcomes.publish(ledger, "c")
    assert outcomes.failed == [("c", few)]
    await asyncio.sleep(0.05)  # well beyond the time after which a topic is abandoned for other reasons
    assert ledger.state is WriteState.RECOVERING
    world.ledgers.held, world.ledgers.shortage_error, world.ledgers.fail_recover = False, None, None
    await turns_and_time(lambda: ledger.state is WriteState.WRITING)
    assert outcomes.texts == ["a"]  # I1: the recovery found it
    assert outcomes.failed[1:] == [("b", few)]  # its client was told, and sends it again
    outcomes.publish(ledger, "d")
    await turns(lambda: outcomes.texts == ["a", "d"])
    assert world.contents(ledger) == ["a", "d"]  # I12


async def turns_and_time(until: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not until():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def test_a_topic_is_opened_for_consumers_while_disks_are_full(
    world: World, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heliograph.actors.broker.managed_ledger.failed_ledger.RETRY_MS", 0.001)
    old, outcomes = await world.open(store), Outcomes()
    full = StorageFullError("storage is full: b1 (97% used)")
    world.ledgers.fail_create = full
    empty = await world.open(await world.session())
    assert world.contents(empty) == []
    world.ledgers.fail_create = None
    old = await world.open(await world.session())
    outcomes.publish(old, "a", "b")
    await turns(lambda: len(outcomes.confirmed) == 2)
    world.ledgers.fail_create = full
    new = await world.open(await world.session())
    assert world.contents(new) == ["a", "b"]
    outcomes.publish(new, "c")
    await turns(lambda: bool(outcomes.failed))
    assert outcomes.failed == [("c", full)]
    world.ledgers.fail_create = None
    await turns(lambda: new.state is WriteState.WRITING)
    outcomes.publish(new, "d")
    await turns(lambda: len(outcomes.confirmed) == 3)
    assert world.contents(new) == ["a", "b", "d"]  # I12
    assert sum(info.closed_ms == 0 for info in new.record.ledgers) == 1


COUNTS = st.lists(st.tuples(st.integers(0, 20), st.integers(1, 50)), min_size=1, max_size=6)


def ledgers_of(counts: list[tuple[int, int]]) -> tuple[list[LedgerSize], list[int]]:
    """Return ledgers, newest first, whose entries all have the same size, and the size of every entry."""
    ledgers: list[LedgerSize] = []
    entries: list[int] = []
    for count, size in counts:
        ledgers.append(LedgerSize(len(entries), count, count * size))
        entries += [size] * count
    return ledgers[::-1], entries


@given(COUNTS, st.integers(0, 120))
def test_a_backlog_is_the_sum_of_its_entries(counts: list[tuple[int, int]], mark: int) -> None:
    ledgers, entries = ledgers_of(counts)
    assert backlog_bytes(ledgers, mark) == sum(entries[mark:])


@given(COUNTS, st.integers(0, 3_000))
def test_the_mark_keeps_as_much_as_fits(counts: list[tuple[int, int]], bytes_max: int) -> None:
    ledgers, entries = ledgers_of(counts)
    mark = mark_within(ledgers, bytes_max)
    assert sum(entries[mark:]) <= bytes_max
    assert mark == 0 or sum(entries[mark - 1 :]) > bytes_max
