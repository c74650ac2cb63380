"""Jobs of a queue: each runs until it has a result or a letter, once for each id, and as its options say."""

from __future__ import annotations

import asyncio
import pickle
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

import pydantic
import pytest

import heliograph
from heliograph.errors import (
    BadRequestError,
    ConflictError,
    ConnectionLostError,
    InvalidConfigError,
    JobFailedError,
    JobRevokedError,
    RequestTimeoutError,
)
from heliograph.protocol.frame import MESSAGE_BYTES_MAX
from heliograph.tasks.current import current_job
from heliograph.tasks.job import Job
from heliograph.tasks.letters import Letters
from heliograph.tasks.records import JobRecord, JobState
from heliograph.tasks.session import QueueSession
from heliograph.tasks.task import Task

SECONDS = 60
Made = Callable[..., Callable[[Callable[..., Any]], Task[Any, Any]]]
Begin = Callable[..., asyncio.Task[None]]


class Document(pydantic.BaseModel):
    """An argument that JSON expresses."""

    text: str


@pytest.fixture
async def letters(client: heliograph.Client, queue: str) -> AsyncIterator[Letters]:
    async with await heliograph.connect_async(client.options.service_urls[0]) as own:
        yield Letters(own, queue)


async def until(job: Job[Any], holds: Callable[[JobRecord | None], bool]) -> JobRecord | None:
    """Return the state of a job once it is as a test expects."""
    async with asyncio.timeout(SECONDS):
        while True:
            record = await job.record()
            if holds(record):
                return record


async def test_a_job_has_the_result_of_its_function(made: Made, begin: Begin) -> None:
    @made()
    async def double(number: int) -> int:
        return 2 * number

    begin(double)
    job = await double.submit(21)
    assert await job.result(SECONDS) == 42
    assert await job.status() is JobState.SUCCESS
    assert await double(4) == 8, "a plain call runs here"


@pytest.mark.parametrize("size", [1_000_000, MESSAGE_BYTES_MAX + 1])
async def test_a_large_result_is_kept_beside_the_state(made: Made, begin: Begin, size: int) -> None:
    @made()
    def large() -> bytes:
        return b"x" * size

    begin(large)
    job = await large.submit()
    assert await job.result(SECONDS) == b"x" * size
    record = await job.record()
    assert record is not None
    assert (record.result, record.result_at is None) == (None, False)


async def test_a_result_in_chunks_is_found_behind_what_other_workers_stored_between_them(
    made: Made, client: heliograph.Client
) -> None:
    @made()
    def large() -> bytes:
        return b""

    async def store_and_load(session: QueueSession) -> bytes:
        async with await heliograph.connect_async(client.options.service_urls[0]) as own:
            others = [await own.producer(session.options.results_topic) for _ in range(4)]
            async with asyncio.timeout(SECONDS):
                while True:
                    storing = asyncio.ensure_future(session.store_result(b"x" * 4 * MESSAGE_BYTES_MAX))
                    while not storing.done():
                        await asyncio.gather(*(other.send(b"y") for other in others))
                    at = str((await storing)[1])
                    begin, end = (int(each.split(":")[1]) for each in at.split(";"))
                    if end - begin > 5:  # something came between the chunks
                        break
        return await session.load_result(JobRecord("large", JobState.SUCCESS, 0, result_at=at))

    assert await large.on_session(store_and_load) == b"x" * 4 * MESSAGE_BYTES_MAX


async def test_the_same_id_is_the_same_job(made: Made, begin: Begin) -> None:
    runs: Counter[int] = Counter()

    @made()
    async def count(number: int) -> int:
        runs[number] += 1
        return number

    begin(count)
    jobs = await asyncio.gather(*(count.submit(number, id="one") for number in range(20)))
    results = {await job.result(SECONDS) for job in jobs}
    assert (len(results), sum(runs.values())) == (1, 1)
    assert await (await count.submit(7, id="one")).result(SECONDS) in results
    assert sum(runs.values()) == 1


async def test_an_id_of_another_task_is_refused(made: Made, begin: Begin) -> None:
    @made()
    async def first() -> None: ...

    @made()
    async def second() -> None: ...

    begin(first, second)
    await (await first.submit(id="one")).result(SECONDS)
    with pytest.raises(ConflictError, match="first"):
        await second.submit(id="one")


@pytest.mark.slow
async def test_a_failure_is_tried_again_and_then_a_letter(letters: Letters, made: Made, begin: Begin) -> None:
    attempts: list[int] = []

    @made(retries=2)
    async def fail(right: bool) -> str:
        job = current_job()
        assert job is not None
        attempts.append(job.attempt)
        if not right or len(attempts) < 3:
            raise ValueError("not yet")
        return "done"

    begin(fail)
    assert await (await fail.submit(True)).result(SECONDS) == "done"
    assert attempts == [1, 2, 3]
    job = await fail.submit(False)
    with pytest.raises(JobFailedError, match="ValueError: not yet"):
        await job.result(SECONDS)
    (letter,) = await letters.found()
    assert (letter.id, letter.task, letter.attempts) == (job.id, "fail", 3)
    assert letter.reason == "ValueError: not yet"
    assert 'raise ValueError("not yet")' in letter.traceback
    attempts[:] = [0, 0, 0]
    assert await letters.submit_again([job.id]) == [job.id]
    with pytest.raises(JobFailedError):
        await job.result(SECONDS)
    assert await letters.purge() == [job.id]
    assert await letters.found() == []


async def test_jobs_of_one_key_run_one_at_a_time_and_in_order(made: Made, begin: Begin) -> None:
    running: Counter[str] = Counter()
    order: dict[str, list[int]] = {"a": [], "b": []}

    @made(per_key=1, concurrency=4)
    async def work(owner: str, number: int) -> None:
        running[owner] += 1
        assert running[owner] == 1, "another job of this key runs"
        await asyncio.sleep(0.002)
        order[owner].append(number)
        running[owner] -= 1

    jobs = [await work.submit(owner, number, key=owner) for number in range(15) for owner in "ab"]
    begin(work)
    begin(work)
    await asyncio.gather(*(job.result(SECONDS) for job in jobs))
    assert order == {"a": list(range(15)), "b": list(range(15))}


async def test_no_job_waits_behind_a_long_one_while_a_worker_is_idle(made: Made, begin: Begin) -> None:
    is_over = asyncio.Event()

    @made(concurrency=1)
    async def work(number: int) -> int:
        if number == 0:
            await is_over.wait()
        return number

    begin(work)
    begin(work)
    blocked = await work.submit(0)
    others = [await work.submit(number) for number in range(1, 10)]
    assert [await job.result(SECONDS) for job in others] == list(range(1, 10))
    is_over.set()
    assert await blocked.result(SECONDS) == 0


async def test_urgent_jobs_are_begun_first(made: Made, begin: Begin) -> None:
    order: list[int] = []

    @made(concurrency=1, priorities=2)
    async def work(number: int) -> None:
        order.append(number)

    late = [await work.submit(1, priority=1) for _ in range(12)]
    urgent = [await work.submit(0) for _ in range(12)]
    begin(work)
    await asyncio.gather(*(job.result(SECONDS) for job in late + urgent))
    assert 5 <= order[:12].count(0) < 12, "twice as many turns, and nobody starves"


async def test_a_job_that_takes_too_long_has_failed(made: Made, begin: Begin) -> None:
    @made(retries=0, timeout=0.05)
    async def sleep() -> None:
        await asyncio.sleep(SECONDS)

    begin(sleep)
    with pytest.raises(JobFailedError, match=r"longer than 0\.05 s"):
        await (await sleep.submit()).result(SECONDS)


async def test_a_thread_that_is_too_late_keeps_its_slot(made: Made, begin: Begin) -> None:
    is_over = threading.Event()
    running: list[int] = []

    @made(retries=0, timeout=0.05, concurrency=1)
    def block(number: int) -> None:
        running.append(number)
        if number == 0:
            is_over.wait(SECONDS)

    begin(block)
    with pytest.raises(JobFailedError):
        await (await block.submit(0)).result(SECONDS)
    after = await block.submit(1)
    with pytest.raises(RequestTimeoutError):
        await after.result(0.1)
    is_over.set()
    await after.result(SECONDS)
    assert running == [0, 1]


async def test_a_cancelled_job_ends(made: Made, begin: Begin) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    @made()
    async def work() -> None:
        begun.set()
        try:
            await asyncio.sleep(SECONDS)
        except asyncio.CancelledError:
            ended.set()
            raise

    waiting = await work.submit(delay=SECONDS)
    assert await waiting.cancel()
    begin(work)
    running = await work.submit()
    await asyncio.wait_for(begun.wait(), SECONDS)
    assert await running.cancel()
    assert await running.cancel(), "it is revoked already"
    for job in (waiting, running):
        with pytest.raises(JobRevokedError):
            await job.result(SECONDS)
    await asyncio.wait_for(ended.wait(), SECONDS)


async def test_a_job_says_how_far_it_is(made: Made, begin: Begin) -> None:
    may_end = asyncio.Event()

    @made()
    async def work() -> None:
        job = current_job()
        assert job is not None
        for step in range(100):
            job.report(step / 100, f"step {step}")
        await may_end.wait()
        with pytest.raises(BadRequestError):
            job.report(2)

    begin(work, name="one")
    job = await work.submit()
    record = await until(job, lambda record: record is not None and record.progress == 0.99)
    assert record is not None
    assert (record.state, record.note, record.worker) == (JobState.STARTED, "step 99", "one")
    may_end.set()
    await job.result(SECONDS)


async def test_a_parent_that_runs_again_submits_no_child_twice(made: Made, begin: Begin) -> None:
    children: Counter[int] = Counter()
    failed: list[bool] = []

    @made(name="child")
    async def child(number: int) -> int:
        children[number] += 1
        return number

    @made()
    async def parent() -> int:
        jobs = [await child.submit(number) for number in range(3)]
        if not failed:
            failed.append(True)
            raise RuntimeError("after its children")
        return sum([await job.result(SECONDS) for job in jobs])

    begin(parent, child)
    job = await parent.submit()
    assert await job.result(SECONDS) == 3
    assert children == {0: 1, 1: 1, 2: 1}
    record = await child.job(f"{job.id}/1").record()
    assert record is not None
    assert record.parent == job.id


async def test_json_carries_models(made: Made, begin: Begin) -> None:
    @made(encoding="json", retries=0)
    async def length(document: Document, times: int = 1) -> list[Document]:
        return [Document(text=str(len(document.text) * times))]

    begin(length)
    job = await length.submit(Document(text="four"), times=2)
    assert await job.result(SECONDS) == [Document(text="8")]
    with pytest.raises(JobFailedError, match="ValidationError"):
        await (await length.submit("no document")).result(SECONDS)


async def test_a_worker_that_is_stopped_lets_its_jobs_end(made: Made, begin: Begin) -> None:
    begun, may_end = asyncio.Event(), asyncio.Event()
    runs: list[int] = []

    @made(concurrency=2)
    async def work() -> str:
        runs.append(1)
        begun.set()
        await may_end.wait()
        return "done"

    worker = begin(work)
    job = await work.submit()
    await asyncio.wait_for(begun.wait(), SECONDS)
    worker.cancel()
    late = await work.submit()
    assert await job.status() is JobState.STARTED
    may_end.set()
    assert await job.result(SECONDS) == "done"
    await asyncio.wait([worker])
    assert (await late.status(), len(runs)) == (JobState.PENDING, 1), "it takes no further job"


async def test_a_pickle_in_a_queue_of_json_is_not_read(
    client: heliograph.Client, queue: str, made: Made, begin: Begin
) -> None:
    @made(encoding="json")
    async def work(number: int) -> int:
        return number

    begin(work)
    await (await work.submit(1)).result(SECONDS)
    properties = {"heliograph.job": "bad", "heliograph.task": "work", "heliograph.encoding": "pickle"}
    await asyncio.to_thread(lambda: client.producer(queue).send(pickle.dumps([[1], {}]), properties=properties))
    with pytest.raises(JobFailedError, match="written as 'pickle'"):
        await work.job("bad").result(SECONDS)


@pytest.mark.parametrize("raised", [SystemExit(3), asyncio.CancelledError(), KeyError("x"), ValueError("\ud800")])
@pytest.mark.parametrize("is_thread", [False, True])
async def test_whatever_a_function_raises_the_worker_goes_on(
    made: Made, begin: Begin, raised: BaseException, is_thread: bool
) -> None:
    def fail(number: int) -> int:
        if number == 0:
            raise raised
        return number

    async def fail_here(number: int) -> int:
        return fail(number)

    work = made(retries=0, concurrency=1)(fail if is_thread else fail_here)
    worker = begin(work)
    with pytest.raises(JobFailedError, match=type(raised).__name__):
        await (await work.submit(0)).result(SECONDS)
    assert await (await work.submit(1)).result(SECONDS) == 1
    assert not worker.done()


async def test_an_interrupt_of_a_thread_ends_no_worker(made: Made, begin: Begin) -> None:
    @made(retries=0)
    def stop() -> None:
        raise KeyboardInterrupt

    worker = begin(stop)
    with pytest.raises(JobFailedError, match="KeyboardInterrupt"):
        await (await stop.submit()).result(SECONDS)
    assert not worker.done()


async def test_a_result_whose_class_does_not_pickle_ends_no_worker(made: Made, begin: Begin) -> None:
    class Sealed:
        def __getstate__(self) -> object:
            raise RuntimeError("sealed")

    @made(retries=0)
    def work() -> object:
        return Sealed()

    worker = begin(work)
    with pytest.raises(JobFailedError, match=r"the result cannot be written as pickle: RuntimeError: sealed"):
        await (await work.submit()).result(SECONDS)
    assert not worker.done()


@pytest.mark.parametrize("key", [None, "k" * 4_096])
async def test_a_letter_has_what_fits_of_a_long_failure(
    letters: Letters, made: Made, begin: Begin, key: str | None
) -> None:
    """It was given back until it counted as one that ends its worker, with that as the reason."""

    @made(retries=0)
    def fail() -> None:
        raise ValueError("\u00e4" * 20_000)

    begin(fail)
    with pytest.raises(JobFailedError, match=r"ValueError: \u00e4{1000}"):
        await (await fail.submit(key=key)).result(SECONDS)
    (letter,) = await letters.found()
    assert letter.attempts == 1
    assert letter.reason.startswith("ValueError: \u00e4")
    assert key is not None or letter.traceback.endswith("\u00e4\n")


async def test_a_result_that_cannot_be_stored_now_ends_no_worker(
    made: Made, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, sessions = QueueSession.store_result, list[QueueSession]()

    async def store_later(session: QueueSession, data: bytes) -> tuple[bytes | None, str | None]:
        sessions.append(session)
        if len(sessions) == 1:
            raise ConnectionLostError("the broker is away")
        return await store(session, data)

    monkeypatch.setattr(QueueSession, "store_result", store_later)

    @made()
    async def work() -> int:
        return 1

    worker = begin(work)
    job = await work.submit()
    assert await job.result(SECONDS) == 1
    assert not worker.done()
    assert len(sessions) == 2
    await until(job, lambda _: not sessions[0]._watchers)


async def test_what_a_late_thread_reports_changes_nothing(made: Made, begin: Begin) -> None:
    is_over, told = threading.Event(), threading.Event()

    @made(retries=0, timeout=0.05, concurrency=1)
    def block(number: int) -> None:
        job = current_job()
        assert job is not None
        if number == 0:
            is_over.wait(SECONDS)
            job.report(0.5)
            told.set()

    begin(block)
    late = await block.submit(0)
    with pytest.raises(JobFailedError):
        await late.result(SECONDS)
    is_over.set()
    await (await block.submit(1)).result(SECONDS)
    assert told.is_set()
    assert await late.status() is JobState.FAILURE


async def test_a_worker_that_stood_still_does_not_hide_a_result(made: Made, begin: Begin) -> None:
    @made()
    async def work() -> int:
        return 1

    begin(work)
    job = await work.submit()
    assert await job.result(SECONDS) == 1
    record = await job.record()
    assert record is not None
    late = replace(record, state=JobState.RETRY)
    assert not await work.on_session(lambda session: session.settle(job.id, late))
    await work.on_session(lambda session: session.record(job.id, late))
    assert await job.status() is JobState.SUCCESS
    assert not await job.cancel()


async def test_the_state_of_a_job_that_has_not_ended_does_not_expire(made: Made, begin: Begin) -> None:
    may_end = asyncio.Event()

    @made(results_for=0.1)
    async def work() -> int:
        await may_end.wait()
        return 1

    begin(work)
    job = await work.submit()
    await until(job, lambda record: record is not None)
    other = await work.submit(id="other")
    await asyncio.sleep(0.3)
    assert await job.status() is JobState.STARTED
    may_end.set()
    assert await other.result(SECONDS) == 1


async def test_results_expire(made: Made, begin: Begin) -> None:
    @made(results_for=0.2)
    async def answer() -> int:
        return 1

    begin(answer)
    job = await answer.submit(id="one")
    assert await job.result(SECONDS) == 1
    await until(job, lambda record: record is None)
    assert await job.status() is JobState.PENDING


async def test_an_unknown_task_is_a_letter(letters: Letters, made: Made, begin: Begin) -> None:
    @made(name="old")
    async def old() -> None: ...

    @made(name="new")
    async def new() -> None: ...

    job = await old.submit()
    begin(new)
    with pytest.raises(JobFailedError, match="no worker of this queue knows the task 'old'"):
        await job.result(SECONDS)
    (letter,) = await letters.found()
    assert letter.task == "old"


async def test_a_blocking_program_needs_no_loop(made: Made, begin: Begin) -> None:
    @made()
    async def double(number: int) -> int:
        return 2 * number

    begin(double)

    def program() -> int:
        job = double.blocking.submit(4)
        assert double.blocking.job(job.id).result(SECONDS) == 8
        assert job.status() is JobState.SUCCESS
        assert not job.cancel()
        return int(job.result(SECONDS))

    assert await asyncio.to_thread(program) == 8


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"concurrency": 0}, "concurrency"),
        ({"per_key": 0}, "per_key"),
        ({"retries": -1}, "retries"),
        ({"backoff": (2, 1)}, "backoff"),
        ({"backoff": 3}, "backoff"),
        ({"rate": "0/s"}, "rate"),
        ({"rate": 0}, "rate"),
        ({"rate": "9" * 20 + "/s"}, "rate"),
        ({"rate": "fast"}, "rate"),
        ({"timeout": 0}, "timeout"),
        ({"priorities": 9}, "priorities"),
        ({"encoding": "yaml"}, "encoding"),
        ({"queue": "queue-partition-0"}, "queue"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_a_wrong_option_is_refused_at_once(made: Made, options: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidConfigError) as caught:
        made(**options)
    assert caught.value.field == field


async def test_a_wrong_call_is_refused_at_once(made: Made) -> None:
    @made()
    async def work(number: int) -> None: ...

    calls: list[tuple[Callable[[], Awaitable[object]], str]] = [
        (lambda: work.submit(), "arguments"),
        (lambda: work.submit(1, 2), "arguments"),
        (lambda: work.submit(threading.Lock()), "arguments"),
        (lambda: work.submit(1, priority=1), "priority"),
        (lambda: work.submit(1, priority="high"), "priority"),  # type: ignore[arg-type]
        (lambda: work.submit(1, id=""), "id"),
        (lambda: work.submit(1, id=7), "id"),  # type: ignore[arg-type]
        (lambda: work.submit(1, id="\ud800"), "id"),
        (lambda: work.submit(1, key="\ud800"), "key"),
        (lambda: work.submit(1, key="k" * 4_097), "key"),
        (lambda: work.submit(1, delay=-1), "delay"),
    ]
    for call, field in calls:
        with pytest.raises(BadRequestError) as caught:
            await call()
        assert caught.value.field == field

    def of_keys(key: str) -> None: ...

    decorate = made()
    with pytest.raises(BadRequestError, match="rename it"):
        decorate(of_keys)


@heliograph.task(queue="named")
def named(number: int) -> int:
    """A task that a pickle names."""
    return number


def test_a_task_of_a_module_is_pickled_by_its_name() -> None:
    assert pickle.loads(pickle.dumps(named)) is named
    assert pickle.loads(pickle.dumps(named.job("one"))) == named.job("one")
