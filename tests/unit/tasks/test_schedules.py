"""Schedules submit one job for each of their times, whichever workers run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from heliograph.errors import BadRequestError, NotFoundError, ProtocolError
from heliograph.tasks.encoding import encode
from heliograph.tasks.schedule import Schedule, Submission, decode
from heliograph.tasks.scheduler import Scheduler, Schedules
from heliograph.tasks.session import QueueSession
from heliograph.tasks.task import Task

Made = Callable[..., Callable[[Callable[..., Any]], Task[Any, Any]]]
Begin = Callable[..., asyncio.Task[None]]
NOON = round(datetime(2026, 3, 28, 12, tzinfo=UTC).timestamp() * 1000)
MINUTE = 60_000
HOUR = 60 * MINUTE
ODD: dict[str, Any] = {"cron": 5}
DAILY = Schedule("report", "30 2 * * *", "Europe/Berlin", NOON, b"x", "pickle")


def of(cron: str, since_ms: int = NOON) -> Schedule:
    return Schedule("report", cron, "UTC", since_ms, b"x", "pickle")


def test_the_next_time_is_one_of_its_zone() -> None:
    next_ms = DAILY.next_ms(NOON)
    gone = datetime.fromtimestamp(next_ms / 1000, UTC)  # 02:30 does not exist that night: clocks go from 02:00 to 03:00
    assert gone == datetime(2026, 3, 29, 1, tzinfo=UTC)
    assert of("*/5 * * * *").next_ms(NOON) == NOON + 5 * MINUTE
    assert of("10 0 12 * * *").next_ms(NOON) == NOON + 10_000


@pytest.mark.parametrize(
    ("submitted_ms", "now_ms", "due_ms"),
    [
        (0, NOON, None),  # the time at which it was made does not count
        (0, NOON + HOUR - 1, None),
        (0, NOON + HOUR, NOON + HOUR),
        (NOON + HOUR, NOON + HOUR, None),
        (NOON + HOUR, NOON + 2 * HOUR - 1, None),
        (NOON + HOUR, NOON + 50 * HOUR + MINUTE, NOON + 50 * HOUR),  # of those that were missed, the last
        (NOON + 3 * HOUR, NOON + 2 * HOUR, None),  # the clock of another worker is ahead
    ],
)
def test_the_last_time_that_was_not_submitted_is_due(submitted_ms: int, now_ms: int, due_ms: int | None) -> None:
    assert of("0 * * * *").due_ms(submitted_ms, now_ms) == due_ms


def test_no_time_is_due_again_in_the_hour_that_comes_twice() -> None:
    hours = Schedule("report", "15 1,2,3 * * *", "Europe/Berlin", NOON, b"x", "pickle")
    submitted, missed = (datetime(2026, 10, day, hour, 15, tzinfo=UTC) for day, hour in ((24, 23), (25, 0)))
    now_ms = round(datetime(2026, 10, 25, 1, tzinfo=UTC).timestamp() * 1000)  # 02:00 for the second time
    due_ms = hours.due_ms(round(submitted.timestamp() * 1000), now_ms)
    assert due_ms == round(missed.timestamp() * 1000)
    assert hours.due_ms(due_ms, now_ms) is None


def test_every_worker_makes_the_same_id() -> None:
    assert DAILY.job_id("daily", NOON) == "daily@2026-03-28T12:00:00Z"


@pytest.mark.parametrize(
    ("schedule", "field"),
    [
        (of("0 0 30 2 *"), "cron"),
        (of("every day"), "cron"),
        (of("61 * * * *"), "cron"),
        (of(""), "cron"),
        (replace(of("0 * * * *"), zone="Mars/Olympus"), "zone"),
        (replace(of("0 * * * *"), zone="../etc/passwd"), "zone"),
    ],
)
def test_a_schedule_that_names_no_time_is_refused(schedule: Schedule, field: str) -> None:
    with pytest.raises(BadRequestError) as refused:
        schedule.next_ms(NOON)
    assert refused.value.field == field


@pytest.mark.parametrize("record", [DAILY, replace(DAILY, key="k", priority=3), Submission(NOON)])
def test_records_come_back(record: Schedule | Submission) -> None:
    assert decode(record.encode()) == record


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\x80",
        b"\x81\xa1v\x02",
        b"\x91\x01",
        b"\x82\xa1v\x01\xa4task\xa1x",
        replace(DAILY, **ODD).encode(),
    ],
)
def test_a_damaged_record_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode(data)


@pytest.mark.slow
async def test_two_workers_run_each_time_once(made: Made, begin: Begin) -> None:
    seen: list[str] = []
    several = asyncio.Event()

    @made(concurrency=4)
    async def tick(word: str, *, loud: bool = False) -> None:
        from heliograph.tasks.current import current_job

        job = current_job()
        assert job is not None
        seen.append(job.id)
        if len(seen) == 3:
            several.set()
        assert (word, loud) == ("tock", True)

    await tick.schedule("clock", "* * * * * *", ("tock",), {"loud": True})
    begin(tick, name="one")
    begin(tick, name="two")
    async with asyncio.timeout(60):
        await several.wait()
    assert len(seen) == len(set(seen))
    assert all(id.startswith("clock@") for id in seen)
    assert {name: each.cron for name, each in (await tick.schedules()).items()} == {"clock": "* * * * * *"}
    await tick.unschedule("clock")
    assert await tick.schedules() == {}
    with pytest.raises(NotFoundError):
        await tick.unschedule("clock")


async def test_a_time_is_submitted_once_though_its_note_was_lost(made: Made, begin: Begin) -> None:
    runs: list[str] = []

    @made()
    async def report(text: str) -> str:
        runs.append(text)
        return text

    async def submit(session: QueueSession) -> None:
        async with Schedules(session.client, session.options) as schedules:
            made = replace(of("0 * * * *"), payload=encode([["a"], {}], "pickle", "arguments"))
            await schedules.set("hourly", made)
            await schedules.note("hourly", NOON)  # a worker ended before it could note 13:00
            await schedules.refresh()
            seconds = await Scheduler(session, schedules, lambda: 0.0, lambda: NOON + HOUR).submit_due()
            assert 0 < seconds <= 1.0
            await schedules.refresh()
            assert schedules.submitted_ms("hourly") == NOON + HOUR

    await report.on_session(submit)
    await report.on_session(submit)
    await report.unschedule("hourly")  # the worker has a clock of today
    begin(report)
    assert await report.job("hourly@2026-03-28T13:00:00Z").result(60) == "a"
    assert await (await report.submit("b")).result(60) == "b"  # behind both messages of the first job
    assert runs == ["a", "b"]


async def test_a_schedule_that_this_worker_cannot_read_does_not_hold_up_the_others(made: Made) -> None:
    @made()
    async def report(text: str) -> str:
        return text

    async def submit(session: QueueSession) -> None:
        async with Schedules(session.client, session.options) as schedules:
            good = replace(of("0 * * * *"), payload=encode([["a"], {}], "pickle", "arguments"))
            await schedules._recorder.send(replace(good, zone="Mars/Olympus"), key="elsewhere")
            await schedules.set("hourly", good)
            await schedules.refresh()
            await Scheduler(session, schedules, lambda: 0.0, lambda: NOON + HOUR).submit_due()
            await schedules.refresh()
            assert schedules.submitted_ms("hourly") == NOON + HOUR

    await report.on_session(submit)


async def test_a_schedule_that_is_kept_does_not_hide_a_later_one(made: Made) -> None:
    @made()
    async def report(text: str) -> str:
        return text

    async def keep(session: QueueSession) -> None:
        async with Schedules(session.client, session.options) as one, Schedules(session.client, session.options) as two:
            await one.set("hourly", of("0 * * * *"))
            await two.refresh()
            for minute in range(1, 20):
                before, after = of(f"{minute - 1} * * * *"), of(f"{minute} * * * *")
                await one.set("hourly", after)
                await two.keep("hourly", before.encode())
                await one.refresh()
                assert one.all()["hourly"] == after

    await report.on_session(keep)


@pytest.mark.parametrize("then", [of("5 * * * *"), None])
async def test_a_schedule_that_is_kept_as_it_changes_does_not_come_back(made: Made, then: Schedule | None) -> None:
    @made()
    async def report(text: str) -> str:
        return text

    async def keep(session: QueueSession) -> None:
        async with Schedules(session.client, session.options) as one, Schedules(session.client, session.options) as two:
            await one.set("hourly", of("0 * * * *"))
            send = one._recorder.send

            async def overtaken(record: Schedule | Submission | None, *, key: str) -> None:
                one._recorder.send = send  # type: ignore[method-assign]
                await send(record, key=key)
                await send(of("0 * * * *"), key="hourly")  # as a worker does that had seen nothing of this

            one._recorder.send = overtaken  # type: ignore[method-assign,assignment]
            await (one.delete("hourly") if then is None else one.set("hourly", then))
            await two.refresh()
            assert two.all().get("hourly") == then

    await report.on_session(keep)


async def test_bad_schedules_are_refused_at_the_call(made: Made) -> None:
    @made()
    async def report(text: str) -> str:
        return text

    for name, cron, args, options, field in (
        ("a@b", "0 * * * *", ("x",), {}, "name"),
        ("", "0 * * * *", ("x",), {}, "name"),
        ("a", "0 0 30 2 *", ("x",), {}, "cron"),
        ("a", "0 * * * *", (), {}, "arguments"),
        ("a", "0 * * * *", ("x",), {"zone": "Nowhere"}, "zone"),
        ("a", "0 * * * *", ("x",), {"priority": 1}, "priority"),
    ):
        with pytest.raises(BadRequestError) as refused:
            await report.schedule(name, cron, args, **options)
        assert refused.value.field == field
    assert await report.schedules() == {}
