"""Messages that delete a key stay in the compacted form for a time: readers that were half through hear of them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heliograph.actors.broker.compaction.deletions import (
    HISTORY_MAX,
    PastCompaction,
    forgotten_up_to,
    with_compaction,
)
from heliograph.actors.broker.compaction.plan import CompactionPlan
from heliograph.actors.broker.compaction.record import decode_history, encode_history, index_blocks
from heliograph.actors.broker.records.position import EARLIEST, Position
from heliograph.actors.errors import EntryDamagedError
from heliograph.base import clock
from tests.unit.broker.compaction.test_compaction import Run, batch, shown, single

KEPT_MS = 1_000
KEYS = [f"k{number}" for number in range(30)]
YEAR_MS = 365 * 86_400_000


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 400)), max_size=150))
def test_a_deletion_is_kept_for_the_time_after_the_compaction_that_first_read_it(
    steps: list[tuple[int, int]],
) -> None:
    """Each step publishes some deletions and compacts after some milliseconds."""
    history: tuple[PastCompaction, ...] = ()
    first_read: dict[int, int] = {}  # entry -> when a compaction first read it
    kept: set[int] = set()
    end = now = 0
    for published, passed in steps:
        now += passed
        gone = forgotten_up_to(history, now, KEPT_MS)
        fresh = range(end, end + published)
        end += published
        for entry in kept:
            if Position(1, entry) <= gone:
                assert now - first_read[entry] >= KEPT_MS
        kept = {entry for entry in kept if Position(1, entry) > gone}
        kept.update(fresh)
        first_read.update(dict.fromkeys(fresh, now))
        history = with_compaction(history, PastCompaction(Position(1, end - 1), now), KEPT_MS)
        assert len(history) <= HISTORY_MAX  # I15
        assert decode_history(encode_history(history)) == history
    assert forgotten_up_to(history, now + KEPT_MS, KEPT_MS) >= max(
        (Position(1, entry) for entry in kept), default=EARLIEST
    )


def test_damage_of_a_history_is_noticed() -> None:
    data = encode_history([PastCompaction(Position(1, 2), 3)])
    for damaged in (b"", data[:-1], b"\x02" + data[1:], data[:1] + b"\x02" + data[2:]):
        with pytest.raises(EntryDamagedError):
            decode_history(damaged)


def test_a_deletion_in_a_batch_keeps_its_place() -> None:
    sections = [batch([("a", b"1"), ("b", b"2"), ("a", b"")]), single(("c", b""))]
    plan = CompactionPlan(0)
    for index, section in enumerate(sections):
        plan.observe(index, section)
    left = [plan.retained(index, section) for index, section in enumerate(sections)]
    assert [shown(section) for section in left if section is not None] == [[("b", b"2"), ("a", b"")], [("c", b"")]]


async def test_a_reader_that_was_half_through_hears_of_every_deletion(monkeypatch: pytest.MonkeyPatch) -> None:
    now = step = 5_000_000
    times = SimpleNamespace(time_ns=lambda: (now + step) * 1_000_000, monotonic_ns=lambda: now * 1_000_000)
    monkeypatch.setattr(clock, "time", times)
    run = await Run.open()
    run.setting.deletions_kept_seconds = 60

    async def compact() -> None:
        run.compaction.start()
        assert (await run.finish()).status == "SUCCESS"

    await run.publish(*((key, b"value") for key in KEYS), ("last", b"1"))
    await compact()
    chain, reader = await run.compaction.view()
    view: dict[str, bytes] = {}
    for index in range(chain.first, chain.first + len(KEYS)):  # all but the last
        view.update(shown((await reader.entry(index)).payload))
    at = chain.position_at(chain.first + len(KEYS) - 1)
    assert set(view) == set(KEYS)
    await run.publish(*((key, b"") for key in KEYS))
    await compact()

    async def go_on() -> None:
        chain, reader = await run.compaction.view()
        for index in range(chain.after(at), chain.end):
            view.update(shown((await reader.entry(index)).payload))

    now += 59_999
    step += YEAR_MS  # of the wall clock: nothing is older for that
    await compact()  # once more, in time
    await go_on()
    assert {key for key in KEYS if view[key]} == set()  # 30 of 30 stayed in the view
    now += 1
    await run.publish(("last", b"2"))
    await compact()
    assert await run.contents() == [("last", b"2")]
    await run.compaction.stop()


async def test_a_compacted_ledger_of_an_older_release_has_no_history() -> None:
    run = await Run.open()
    run.setting.deletions_kept_seconds = 60
    await run.publish(("a", b"1"), ("b", b"1"))
    run.compaction.start()
    await run.finish()
    record = run.compaction.compacted
    assert record is not None
    ledger = run.world.ledgers.ledgers[record.ledger_id]
    assert len(ledger.entries) == record.entries + index_blocks(record.entries) + 1
    await run.compaction.stop()
    ledger.entries.pop()
    ledger.confirmed -= 1
    assert await run.contents() == [("a", b"1"), ("b", b"1")]
    await run.publish(("a", b""))
    run.compaction.start()
    assert (await run.finish()).status == "SUCCESS"
    assert await run.contents() == [("b", b"1"), ("a", b"")]
    await run.compaction.stop()
