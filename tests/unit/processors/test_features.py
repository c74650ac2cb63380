"""Batches, timers, windows, several inputs, letters, and what is refused, in one process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import heliograph
from heliograph.client.aio.table_view import AsyncTableView
from heliograph.errors import BadRequestError, ConflictError, InvalidConfigError, ProducerFencedError
from heliograph.processors.owner import SOURCE
from heliograph.processors.registry import ProcessorRecord, Registry, delete
from heliograph.tasks.records import REASON
from tests.unit.processors.conftest import SECONDS, Begin, Made, ended, read

NAMESPACE = "public/default"


async def send(client: heliograph.Client, topic: str, *pairs: tuple[str, str], times_ms: Any = None) -> None:
    """Publish keys and values, and create the topic."""
    async with heliograph.AsyncClient(client.options) as own, own.producer(topic) as producer:
        keys, values = zip(*pairs, strict=True)
        await producer.send_many(values, keys=keys, event_times_ms=times_ms)


def texts(messages: list[heliograph.Message[Any]]) -> list[tuple[str | None, str]]:
    """Return keys and payloads."""
    return [(message.key, message.data.decode()) for message in messages]


async def test_a_message_that_fails_becomes_a_letter_and_the_others_go_on(
    client: heliograph.Client, name: str, made: Made, begin: Begin
) -> None:
    calls: list[str] = []

    def double(message: Any, context: Any) -> None:  # no coroutine: it runs on a thread
        calls.append(message.data.decode())
        context.send(f"{name}-out", 2 * int(message.data), key=message.key)
        if message.data == b"3":
            raise ValueError("three is too many")

    await send(client, name, ("a", "2"), ("a", "3"), ("a", "4"))
    begin(made(double, retries=2))
    assert texts(await read(client, f"{name}-out", 2)) == [("a", "4"), ("a", "8")]
    letter = (await read(client, f"{name}-letters", 1))[0]
    assert (letter.key, letter.data) == ("a", b"3")
    assert letter.properties[REASON] == "ValueError: three is too many"
    assert name in letter.properties[SOURCE]
    assert calls == ["2", "3", "3", "3", "4"]


@pytest.mark.parametrize("failure", [ValueError("\u00e4" * 20_000), ValueError("\ud800"), SystemExit(3)])
async def test_whatever_a_handler_raises_becomes_a_letter(
    client: heliograph.Client, name: str, made: Made, begin: Begin, failure: BaseException
) -> None:
    def fail(message: Any, context: Any) -> None:
        if message.data == b"3":
            raise failure
        context.send(f"{name}-out", message.data)

    await send(client, name, ("a", "3"), ("a", "4"))
    begin(made(fail, retries=0))
    assert texts(await read(client, f"{name}-out", 1)) == [(None, "4")]
    letter = (await read(client, f"{name}-letters", 1))[0]
    assert letter.data == b"3"
    assert letter.properties[REASON].startswith(type(failure).__name__)


@pytest.mark.parametrize("key", ["k" * 7_100, "k" * 4_096])
async def test_a_long_key_stops_nothing(
    client: heliograph.Client, name: str, made: Made, begin: Begin, key: str
) -> None:
    """What is committed has to be published: a record or a letter that no topic takes would hold the partition."""

    class Long(heliograph.Processor):
        state = dict

        async def on_message(self, message: Any, context: Any) -> None:
            if message.data == b"send":
                context.send(f"{name}-out", b"", key="k" * 7_200)
            context.state["seen"] = True
            context.send(f"{name}-out", message.data)

    await send(client, name, (key, "first"), ("a", "send"), ("b", "last"))
    begin(made(Long, retries=0))
    is_long = len(key) > 4_096
    assert [text for _, text in texts(await read(client, f"{name}-out", 2 - is_long))][-1] == "last"
    letters = await read(client, f"{name}-letters", 1 + is_long)
    assert [(letter.key, letter.data) for letter in letters] == [(None, b"first")] * is_long + [("a", b"send")]
    assert letters[-1].properties[REASON].startswith("MessageTooLargeError: the key and properties")


async def test_a_batch_that_fails_is_handled_one_by_one(
    client: heliograph.Client, name: str, made: Made, begin: Begin
) -> None:
    sizes: list[int] = []

    class Batches(heliograph.Processor):
        state = dict

        async def on_batch(self, messages: Any, contexts: Any) -> None:
            sizes.append(len(messages))
            for message, context in zip(messages, contexts, strict=True):
                context.state["n"] = context.state.get("n", 0) + 1
                context.send(f"{name}-out", context.state["n"], key=message.key)
                if message.data == b"bad":
                    raise ValueError("bad")

    await send(client, name, *(("a", "bad" if number == 5 else "good") for number in range(10)))
    begin(made(Batches, retries=0, batch=4))
    assert texts(await read(client, f"{name}-out", 9)) == [("a", str(number)) for number in range(1, 10)]
    assert len(await read(client, f"{name}-letters", 1)) == 1
    assert max(sizes) == 4


async def test_timers_are_called_once_also_after_a_restart(
    client: heliograph.Client, name: str, made: Made, begin: Begin
) -> None:
    class Later(heliograph.Processor):
        state = dict
        pause = 3_600.0

        async def on_message(self, message: Any, context: Any) -> None:
            context.state["seen"] = message.data.decode()
            context.timer("again", after=0.01 if message.data == b"soon" else 1_000)

        async def on_timer(self, timer: str, context: Any) -> None:
            context.send(f"{name}-out", f"{timer} {context.state['seen']}", key=context.key)

    await send(client, name, ("a", "late"), ("b", "soon"))
    working = begin(made(Later))
    assert texts(await read(client, f"{name}-out", 1)) == [("b", "again soon")]
    await ended(working)
    begin(made(Later))
    await send(client, name, ("a", "soon"))
    assert texts(await read(client, f"{name}-out", 2))[1:] == [("a", "again soon")]


async def test_windows_are_over_by_event_time_and_late_messages_are_told(
    client: heliograph.Client, name: str, made: Made, begin: Begin
) -> None:
    class PerMinute(heliograph.Processor):
        state = dict
        window = heliograph.Window(60, late=10)

        async def on_message(self, message: Any, context: Any) -> None:
            context.state["n"] = context.state.get("n", 0) + 1

        async def on_window(self, context: Any) -> None:
            context.send(f"{name}-out", f"{context.window.start_ms // 1000} {context.state['n']}", key=context.key)

        async def on_late(self, message: Any, context: Any) -> None:
            context.send(f"{name}-out", "late", key=message.key)

    seconds = [1, 65, 59, 71, 2, 131]  # 59 is within the ten seconds, and 2 is late: the window was over at 70
    pairs = [("a", str(second)) for second in seconds]
    await send(client, name, *pairs[:3], times_ms=[1_000 * second for second in seconds[:3]])
    working = begin(made(PerMinute))
    await asyncio.sleep(0.1)
    await ended(working)  # the windows survive it
    begin(made(PerMinute))
    await send(client, name, *pairs[3:], times_ms=[1_000 * second for second in seconds[3:]])
    found = texts(await read(client, f"{name}-out", 2))
    assert sorted(found) == [("a", "0 2"), ("a", "late")]
    await send(client, name, ("a", "x"), times_ms=[1_000 * 500])
    assert texts(await read(client, f"{name}-out", 4))[2:] == [("a", "60 2"), ("a", "120 1")]


async def test_two_topics_are_joined_by_key(client: heliograph.Client, name: str, made: Made, begin: Begin) -> None:
    class Join(heliograph.Processor):
        state = dict

        async def on_message(self, message: Any, context: Any) -> None:
            side = "order" if "orders" in message.topic else "payment"
            context.state[side] = message.data.decode()
            if len(context.state) == 2:
                context.send(f"{name}-out", "{order} for {payment}".format(**context.state), key=message.key)

    inputs = [f"{name}-orders", f"{name}-payments"]
    async with heliograph.AsyncClient(client.options) as own:
        for topic in inputs:
            await own.admin.create_topic(topic, 3)
    for topic, values in zip(inputs, ("tea", "5"), strict=True):
        await send(client, topic, *((f"key-{number}", values) for number in range(20)))
    for number in range(2):
        begin(made(Join, *inputs, instances=2), number)
    found = texts(await read(client, f"{name}-out", 20))
    assert sorted(found) == sorted((f"key-{number}", "tea for 5") for number in range(20))
    await send(client, f"{name}-other", ("a", "b"))
    with pytest.raises(ConflictError, match="different numbers of partitions"):
        await made(Join, inputs[0], f"{name}-other", name=f"{name}-2").work()


async def test_states_are_restored_from_the_compacted_form(
    client: heliograph.Client, name: str, made: Made, begin: Begin
) -> None:
    class Count(heliograph.Processor):
        state = dict

        async def on_message(self, message: Any, context: Any) -> None:
            context.state["n"] = context.state.get("n", 0) + 1
            context.send(f"{name}-out", context.state["n"], key=message.key)

    working = begin(made(Count, commit_every=0))
    for number in range(5):
        await send(client, name, ("a", "x"), ("b", "x"))
        await read(client, f"{name}-out", 2 * number + 2)
    await ended(working)
    async with heliograph.AsyncClient(client.options) as own:
        await own.admin.compact_topic(f"{name}-state")
        for _ in range(20 * SECONDS):
            if (await own.admin.compaction_status(f"{name}-state"))["status"] == "SUCCESS":
                break
            await asyncio.sleep(0.05)
        async with own.reader(f"{name}-state", "earliest", read_compacted=True) as reader:
            assert len(await reader.receive_many(100, timeout=SECONDS)) == 4, "two states, the group and the owner"
    begin(made(Count))
    await send(client, name, ("b", "x"))
    assert texts(await read(client, f"{name}-out", 11))[10:] == [("b", "6")]


async def test_a_processor_pauses_goes_on_and_is_deleted(
    client: heliograph.Client, name: str, made: Made, begin: Begin
) -> None:
    async def copy(message: Any, context: Any) -> None:
        context.log.info("copies %s", message.data.decode())
        context.send(f"{name}-out", message.data)

    await send(client, name, ("a", "1"))
    working = begin(made(copy))
    await read(client, f"{name}-out", 1)
    assert texts(await read(client, f"{name}-log", 1)) == [(None, "copies 1")]
    async with heliograph.AsyncClient(client.options) as own, Registry(own, NAMESPACE) as registry:
        await registry.set_paused(name, is_paused=True)
        await asyncio.sleep(0.2)
        await send(client, name, ("a", "2"))
        async with own.reader(f"{name}-out", "latest") as reader:
            assert await reader.receive_many(1, timeout=0.5) == []
        await registry.set_paused(name, is_paused=False)
        await read(client, f"{name}-out", 2)
        record = registry.record(name)
        assert record is not None
        assert record.outputs == (f"persistent://public/default/{name}-out",), "it was seen to send there"
        assert (await registry.status(name))[0]["instance"] == "all"
        await registry.change(name, lambda _: None)
        await asyncio.wait_for(working, SECONDS)
        assert await registry.status(name) == []


async def test_programs_that_change_records_at_the_same_time_all_come_to_it(
    client: heliograph.Client, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    refresh = AsyncTableView.refresh

    async def slow(view: AsyncTableView[Any]) -> None:
        await refresh(view)
        await asyncio.sleep(0.05)  # in which the next one fences the caller

    monkeypatch.setattr(AsyncTableView, "refresh", slow)

    async def change(number: int) -> None:
        record = ProcessorRecord(f"{name}-{number}", (name,))
        async with heliograph.AsyncClient(client.options) as own, Registry(own, NAMESPACE) as registry:
            await registry.change(record.name, lambda _: record)
            assert await registry.known(record.name) == record
            await registry.change(record.name, lambda _: None)

    await asyncio.gather(*(change(number) for number in range(4)))


async def test_a_processor_that_was_deleted_begins_again(
    client: heliograph.Client, name: str, made: Made, begin: Begin
) -> None:
    async def copy(message: Any, context: Any) -> None:
        context.send(f"{name}-out", message.data)

    await send(client, name, ("a", "1"))
    working = begin(made(copy))
    await read(client, f"{name}-out", 1)
    async with heliograph.AsyncClient(client.options) as own, Registry(own, NAMESPACE) as registry:
        await delete(registry, name)
    await asyncio.wait_for(working, SECONDS)
    begin(made(copy))
    found = await read(client, f"{name}-out", 2)
    assert texts(found) == [(None, "1"), (None, "1")], "sequence ids of before do not count"


async def test_an_instance_that_begins_after_its_processor_was_deleted_makes_nothing(
    client: heliograph.Client, name: str, made: Made
) -> None:
    async def copy(message: Any, context: Any) -> None:
        context.send(f"{name}-out", message.data)

    async with heliograph.AsyncClient(client.options) as own:
        await asyncio.wait_for(made(copy).work_as(own, 0, "a deployment that nobody recorded"), SECONDS)
        assert not list(await own.admin.list_topics(NAMESPACE, prefix=name))


async def test_a_constructor_that_raises_is_reported(client: heliograph.Client, name: str, made: Made) -> None:
    class Broken(heliograph.Processor):
        def __init__(self) -> None:
            raise OSError("the model is not there")

        async def on_message(self, message: Any, context: Any) -> None: ...

    with pytest.raises(OSError, match="the model is not there"):
        await made(Broken).work()
    async with heliograph.AsyncClient(client.options) as own, Registry(own, NAMESPACE) as registry:
        (report,) = await registry.status(name)
        assert (report["error"], report["is_running"]) == ("OSError: the model is not there", False)
        await delete(registry, name)


async def test_an_output_that_its_topic_refuses_ends_the_processor_and_is_not_lost(
    client: heliograph.Client, name: str, made: Made, begin: Begin
) -> None:
    async def copy(message: Any, context: Any) -> None:
        context.send(f"{name}-out", message.data)

    async with heliograph.AsyncClient(client.options) as own, Registry(own, NAMESPACE) as registry:
        await own.admin.create_topic(f"{name}-out", 0)
        await own.admin.namespaces.set_topic_policies(f"{name}-out", {"max_message_bytes": 100})
        await send(client, name, ("a", "small"), ("a", "large" * 100))
        with pytest.raises(BadRequestError, match="100"):
            await asyncio.wait_for(begin(made(copy)), SECONDS)
        (report,) = await registry.status(name)
        assert "100" in report["error"]
        await own.admin.namespaces.set_topic_policies(f"{name}-out", {"max_message_bytes": 1_000})
        begin(made(copy))
        assert texts(await read(client, f"{name}-out", 2)) == [(None, "small"), (None, "large" * 100)]


@pytest.mark.slow
async def test_a_later_process_takes_over_and_the_other_one_ends(
    client: heliograph.Client, name: str, made: Made, begin: Begin
) -> None:
    async def copy(message: Any, context: Any) -> None:
        context.send(f"{name}-out", message.data)

    first = begin(made(copy))
    await send(client, name, ("a", "1"))
    await read(client, f"{name}-out", 1)
    begin(made(copy))
    await send(client, name, ("a", "2"))
    await read(client, f"{name}-out", 2)
    with pytest.raises(ProducerFencedError):
        await asyncio.wait_for(first, SECONDS)


async def test_names_cycles_and_wrong_processors_are_refused(
    client: heliograph.Client, name: str, made: Made, begin: Begin
) -> None:
    async def there(message: Any, context: Any) -> None:
        context.send(f"{name}-b", message.data)

    async def back(message: Any, context: Any) -> None:
        context.send(name, message.data)

    await send(client, name, ("a", "1"))
    begin(made(there))
    await read(client, f"{name}-b", 1)
    with pytest.raises(ConflictError, match=f"the processor {name} reads persistent://public/default/{name}:"):
        await made(there, f"{name}-c").work()
    for outputs in (None, [name]):
        with pytest.raises(ConflictError, match=r"the outputs of .* come back: "):
            await asyncio.wait_for(made(back, f"{name}-b", name=f"{name}-2", outputs=outputs).work(), SECONDS)


class Two(heliograph.Processor):
    """Has two handlers of messages."""

    def on_message(self, message: Any, context: Any) -> None: ...

    def on_batch(self, messages: Any, contexts: Any) -> None: ...


class Mixed(heliograph.Processor):
    """Has a handler that is a coroutine, and one that is none."""

    async def on_message(self, message: Any, context: Any) -> None: ...

    def on_timer(self, name: str, context: Any) -> None: ...


class NoWindow(heliograph.Processor):
    """Has a handler that is never called."""

    def on_message(self, message: Any, context: Any) -> None: ...

    def on_window(self, context: Any) -> None: ...


class OddState(heliograph.Processor):
    """Has a state without a schema."""

    state = set

    def on_message(self, message: Any, context: Any) -> None: ...


@pytest.mark.parametrize("kind", [Two, Mixed, NoWindow, OddState, heliograph.Processor, 5, int])
def test_what_is_no_processor_is_refused(kind: Any) -> None:
    with pytest.raises(BadRequestError):
        heliograph.process("in", kind, name="sum")


def test_outputs_that_are_inputs_and_unknown_options_are_refused() -> None:
    async def copy(message: Any, context: Any) -> None: ...

    with pytest.raises(BadRequestError, match="its outputs would come back"):
        heliograph.process("in", copy, name="sum", outputs=["in"])
    with pytest.raises(InvalidConfigError, match="unknown option 'retires'"):
        heliograph.process("in", copy, name="sum", retires=3)
    wrong: list[tuple[Callable[[], object], str]] = [
        (lambda: heliograph.process("in", copy, name=5), "name"),  # type: ignore[arg-type]
        (lambda: heliograph.process(5, copy, name="sum"), "inputs"),  # type: ignore[arg-type]
        (lambda: heliograph.process("in", copy, name="sum", outputs="out"), "outputs"),
        (lambda: heliograph.process("in", copy, name="sum", backoff=3), "backoff"),
        (lambda: heliograph.Window(60, late=float("inf")), "window"),
    ]
    for call, field in wrong:
        with pytest.raises(BadRequestError) as refused:
            call()
        assert refused.value.field == field
