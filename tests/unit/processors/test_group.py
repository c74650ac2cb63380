"""What a group keeps, drops and refuses, without a cluster."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from heliograph.client.schemas.choice import schema_of
from heliograph.errors import BadRequestError, InvalidConfigError, ProtocolError, QuotaExceededError
from heliograph.processors.context import Context
from heliograph.processors.group import STALE_TIMERS_MAX, PartitionState, StateForm
from heliograph.processors.options import ProcessorOptions
from heliograph.processors.records import GroupRecord, KeyRecord, ProcessorOutput, StateKey
from heliograph.processors.windows import Window, WindowSpan
from heliograph.protocol.message_id import MessageId

TOPIC, OUT = "persistent://public/default/in", "persistent://public/default/out"


class Work:
    """A partition without a cluster."""

    def __init__(self, window: Window | None = None, **options: Any) -> None:
        self.options = ProcessorOptions("sum", (TOPIC,), **options)
        self.form = StateForm(dict, schema_of(dict))
        self.window = window
        self.state = PartitionState(self.options, self.form, window)

    def context(self, key: str | None, now_ms: int = 0) -> Context:
        """Return the context of a message."""
        return Context(
            key,
            lambda: self.state.cell(StateKey(key or "")),
            window=None,
            partition=0,
            now_ms=now_ms,
            outputs={},
            check=self.options.check_outputs,
            has_timers=True,
            log=logging.getLogger(__name__),
        )

    def commit(self) -> GroupRecord:
        """Commit, and return the group as the changelog has it."""
        group = self.state.sealed(lambda _: 0)
        self.state.stored(group)
        return GroupRecord.decode(group.encode())

    def again(self, last: GroupRecord) -> PartitionState:
        """Return what the next owner has, if no record by key was stored."""
        found = PartitionState(self.options, self.form, self.window)
        found.begin(last)
        return found


def test_what_failed_leaves_nothing() -> None:
    work = Work()
    first, second = work.context("a"), work.context("a")
    first.state["sum"] = 1
    first.send("out", 1)
    work.state.accept([first])
    second.state["sum"] = 2
    second.send("out", 2)
    work.state.drop([second])
    assert work.context("a").state == {"sum": 1}
    assert [output.payload for output in work.commit().outputs] == [b"1"]


def test_states_that_did_not_change_are_not_written() -> None:
    work = Work()
    context = work.context("a")
    assert context.state == {}
    work.state.accept([context])
    assert not work.state.has_changes
    context.state["n"] = 1
    work.state.accept([context])
    assert set(work.commit().states) == {"k:a"}
    context = work.context("a")
    context.state = None
    work.state.accept([context])
    assert work.commit().states == {"k:a": None}
    assert len(work.state) == 0


def test_sequence_ids_go_on_over_groups_and_owners() -> None:
    work = Work()
    for payload in (b"1", b"2"):
        work.state.send([ProcessorOutput(OUT, payload)])
    first = work.commit()
    assert first.next_ids == {(OUT, 0): 0}
    state = work.again(first)
    state.send([ProcessorOutput(OUT, b"3")])
    assert state.sealed(lambda _: 0).next_ids == {(OUT, 0): 2}
    assert state.sealed(lambda _: 1).next_ids == {(OUT, 0): 2, (OUT, 1): 0}


def test_positions_and_late_messages_go_on() -> None:
    work = Work()
    work.state.passed(TOPIC, MessageId(3, 4, -1, 5), 70)
    work.state.late = 2
    state = work.again(work.commit())
    assert not state.is_new(TOPIC, MessageId(3, 4, -1, 5))
    assert state.is_new(TOPIC, MessageId(3, 4, -1, 6))
    assert state.late == 2


@pytest.mark.parametrize("keys_max", [1, 2])
def test_a_state_that_outgrows_its_bound_is_refused(keys_max: int) -> None:
    work = Work(state_bytes_max=20, keys_max=keys_max)
    context = work.context("a")
    context.state["text"] = "x" * 20
    with pytest.raises(QuotaExceededError, match="the state of 'a' has 31 bytes"):
        work.state.accept([context])
    work.state.drop([context])
    for key in ("a", "b", "c")[: keys_max + 1]:
        context = work.context(key)
        context.state["n"] = 1
        if key == "abc"[keys_max]:
            with pytest.raises(QuotaExceededError, match="too many keys"):
                work.state.accept([context])
        else:
            work.state.accept([context])
    assert len(work.state) == keys_max


def test_a_state_that_json_would_change_is_refused() -> None:
    work = Work()
    context = work.context("a")
    context.state["pair"] = (1, 2)
    with pytest.raises(BadRequestError, match="read back from JSON as something else"):
        work.state.accept([context])


def test_timers_are_due_once_and_replaced_by_name() -> None:
    work = Work()
    context = work.context("a", now_ms=1_000)
    context.timer("flush", after=60)
    context.timer("other", at=5_000)
    work.state.accept([context])
    state = work.again(work.commit())
    assert state.due_timer(4_999) is None
    assert state.due_timer(5_000) == (StateKey("a"), "other")
    context = work.context("a", now_ms=30_000)
    context.timer("flush", after=60)
    context.cancel_timer("other")
    work.state.accept([context])
    assert work.state.due_timer(61_000) is None, "it was replaced"
    assert work.state.due_timer(90_000) == (StateKey("a"), "flush")
    assert KeyRecord.decode(work.commit().states["k:a"] or b"").timers == {"flush": 90_000}


def test_timers_that_are_replaced_take_no_memory() -> None:
    work = Work()
    for now_ms in range(3 * STALE_TIMERS_MAX):
        context = work.context("a", now_ms)
        context.timer("flush", after=60)
        work.state.accept([context])
    assert len(work.state._timers) <= STALE_TIMERS_MAX + 2
    assert work.state.due_timer(10**9) == (StateKey("a"), "flush")


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda context: context.timer("x"), "after= or at="),
        (lambda context: context.timer("", after=1), "empty or too long"),
        (lambda context: context.send("in", 1), "would come back"),
        (lambda context: context.send("out", object()), "cannot be sent"),
    ],
)
def test_calls_that_make_no_sense_are_refused(call: Any, error: str) -> None:
    with pytest.raises(BadRequestError, match=error):
        call(Work().context("a"))


def test_a_message_without_a_key_has_no_state() -> None:
    with pytest.raises(BadRequestError, match="has no key"):
        _ = Work().context(None).state


def test_outputs_have_a_bound() -> None:
    context = Work().context("a")
    with pytest.raises(QuotaExceededError, match="sends too much"):
        context.send("out", b"x" * (2 << 20))


@pytest.mark.parametrize(
    "options",
    [
        {"name": ""},
        {"name": "a/b"},
        {"inputs": ()},
        {"inputs": (TOPIC, TOPIC)},
        {"inputs": (f"{TOPIC}-partition-3",)},
        {"instances": 0},
        {"state_bytes_max": 0},
        {"commit_every": -1},
        {"start": "now"},
        {"backoff": (2, 1)},
        {"batch": 0},
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfigError):
        ProcessorOptions(**{"name": "sum", "inputs": (TOPIC,), **options})


def test_windows_divide_event_time() -> None:
    assert Window(60).spans(61_000) == [WindowSpan(60_000, 120_000)]
    assert Window(60, every=30).spans(61_000) == [WindowSpan(30_000, 90_000), WindowSpan(60_000, 120_000)]
    assert Window(60, late=5).watermark({"a": 100_000, "b": 70_000}) == 65_000
    assert Window(60).watermark({}) is None
    with pytest.raises(InvalidConfigError):
        Window(10, every=20)
    with pytest.raises(InvalidConfigError):
        Window(1_000, every=1)


@pytest.mark.parametrize("data", [b"", b"\x80", b"\x81\xa1v\x02", b"\xc1", b"\x81\xa1v\x01"])
def test_bytes_that_are_no_group_are_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError, match="a group in a changelog cannot be read"):
        GroupRecord.decode(data)


def test_keys_of_the_changelog_name_states() -> None:
    for key in (StateKey("a"), StateKey("a:b", 5), StateKey("", -5)):
        assert StateKey.parse(key.text) == key
    assert StateKey.parse("w:x:a") is None
    assert StateKey.parse("group") is None
