"""Requests and replies on a cluster in this process."""

from __future__ import annotations

import asyncio
import dataclasses
import pickle
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

import heliograph
from heliograph.base.clock import wall_ms
from heliograph.base.errors import (
    AlreadyClosedError,
    BadRequestError,
    InvalidConfigError,
    QuotaExceededError,
    ReplyInterruptedError,
    RequestFailedError,
    RequestTimeoutError,
)
from heliograph.client.aio.requests import requester
from heliograph.client.aio.requests.envelope import (
    DEADLINE,
    KIND,
    NUMBER,
    REPLY_ID,
    REPLY_TO,
    REQUEST_ID,
    RUN,
    Request,
    is_reply_topic,
)


@dataclasses.dataclass
class Text:
    """A value with a schema."""

    words: list[str]


async def upper(data: bytes) -> bytes:
    return data.upper()


async def test_a_coroutine_function_answers(client: heliograph.AsyncClient, topic: str) -> None:
    async with client.respond(topic, upper) as responder:
        assert await client.request(topic, "hello") == b"HELLO"
        assert await asyncio.gather(*(client.request(topic, f"a{each}") for each in range(20))) == [
            f"A{each}".encode() for each in range(20)
        ]
        await _until(lambda: responder.answered == 21)


async def test_a_function_answers_on_a_thread_by_schemas(client: heliograph.AsyncClient, topic: str) -> None:
    def count(text: Text) -> dict[str, Any]:
        return {"words": len(text.words), "thread": threading.current_thread().name}

    async with client.respond(topic, count, schema=Text, reply=dict):
        answer = await client.request(topic, Text(["a", "b"]), schema=Text, reply=dict)
    assert answer["words"] == 2
    assert answer["thread"].startswith("heliograph-responder")


async def test_none_is_an_answer(client: heliograph.AsyncClient, topic: str) -> None:
    async with client.respond(topic, lambda _: None):
        assert await client.request(topic, "x") is None


async def test_what_the_function_raises_reaches_the_caller_and_is_not_tried_again(
    client: heliograph.AsyncClient, topic: str
) -> None:
    calls: list[bytes] = []

    def fail(data: bytes) -> bytes:
        calls.append(data)
        raise {b"stop": StopIteration, b"key": KeyboardInterrupt, b"exit": SystemExit}.get(data, ValueError)(
            "no such document \ud800"
        )

    async with client.respond(topic, fail):
        with pytest.raises(RequestFailedError, match="ValueError: no such document"):
            await client.request(topic, "x")
        with pytest.raises(RequestFailedError, match="StopIteration"):
            await client.request(topic, "stop")
        with pytest.raises(RequestFailedError, match="KeyboardInterrupt"):
            await client.request(topic, "key")
        with pytest.raises(RequestFailedError, match="SystemExit"):
            await client.request(topic, "exit")
    assert calls == [b"x", b"stop", b"key", b"exit"]


async def test_a_failure_without_a_text_is_told(client: heliograph.AsyncClient, topic: str) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    async def answer(data: bytes) -> bytes:
        if data == b"fail":
            raise Mute
        return data

    async with client.respond(topic, answer, concurrency=1):
        with pytest.raises(RequestFailedError, match="Mute"):
            await client.request(topic, "fail", timeout=60)
        assert await client.request(topic, "x", timeout=60) == b"x", "the responder goes on"


async def test_an_answer_without_a_schema_has_to_be_bytes(client: heliograph.AsyncClient, topic: str) -> None:
    async with client.respond(topic, lambda _: 17):
        with pytest.raises(RequestFailedError, match="name a schema by reply="):
            await client.request(topic, "x")


async def test_generators_answer_in_parts(client: heliograph.AsyncClient, topic: str) -> None:
    async def tokens(data: bytes) -> AsyncIterator[str]:
        for each in data.decode().split():
            yield each

    def threaded(data: bytes) -> Iterator[bytes]:
        yield from data.split()

    async with client.respond(topic, tokens):
        assert [each async for each in client.stream_request(topic, "to be or")] == [b"to", b"be", b"or"]
        with pytest.raises(RequestFailedError, match="stream_request"):
            await client.request(topic, "to be")
    async with client.respond(topic + "-threads", threaded):
        assert [each async for each in client.stream_request(topic + "-threads", "a b")] == [b"a", b"b"]


async def test_a_function_answers_a_stream_by_one_part(client: heliograph.AsyncClient, topic: str) -> None:
    async with client.respond(topic, upper):
        assert [each async for each in client.stream_request(topic, "a")] == [b"A"]


async def test_a_generator_that_fails_on_the_way(client: heliograph.AsyncClient, topic: str) -> None:
    async def tokens(data: bytes) -> AsyncIterator[str]:
        yield "one"
        raise ValueError("out of tokens")

    async with client.respond(topic, tokens):
        parts = client.stream_request(topic, "")
        assert await anext(parts) == b"one"
        with pytest.raises(RequestFailedError, match="out of tokens"):
            await anext(parts)


async def test_a_caller_that_leaves_a_stream_is_forgotten(client: heliograph.AsyncClient, topic: str) -> None:
    is_over = asyncio.Event()

    async def endless(_: bytes) -> AsyncIterator[str]:
        while not is_over.is_set():
            yield "token"
            await asyncio.sleep(0)

    async with client.respond(topic, endless):
        parts = client.stream_request(topic, "", timeout=60)
        assert await anext(parts) == b"token"
        await parts.aclose()
        assert not client._requests()._waiting
        is_over.set()


async def test_the_deadline_ends_a_generator_that_nobody_reads(client: heliograph.AsyncClient, topic: str) -> None:
    async def endless(_: bytes) -> AsyncIterator[str]:
        while True:
            yield "token"
            await asyncio.sleep(0)

    replies = "non-persistent://public/default/heliograph-replies-" + "1" * 32
    asked = Request("1", replies, wall_ms() + 300, takes_stream=True)
    async with client.producer(topic) as producer:
        await producer.send("", properties=asked.properties)
    async with client.respond(topic, endless) as responder:
        await _until(lambda: responder.expired == 1)


async def test_no_answer_in_time(client: heliograph.AsyncClient, topic: str) -> None:
    with pytest.raises(RequestTimeoutError, match=r"within 0\.05 s"):
        await client.request(topic, "x", timeout=0.05)


async def test_a_request_that_is_too_old_is_not_begun(client: heliograph.AsyncClient, topic: str) -> None:
    begun: list[bytes] = []
    replies = "non-persistent://public/default/heliograph-replies-" + "0" * 32
    async with client.producer(topic) as producer:
        await producer.send("old", properties=Request("1", replies, wall_ms() - 1).properties)
    async with client.respond(topic, begun.append, concurrency=1) as responder:
        assert await client.request(topic, "new") is None
        assert (begun, responder.expired) == ([b"new"], 1)


async def test_the_end_of_a_reply_topic_is_that_of_its_own_requests(client: heliograph.AsyncClient, topic: str) -> None:
    await client.admin.namespaces.create("public/elsewhere")
    elsewhere = f"persistent://public/elsewhere/{topic}"
    began, go_on = asyncio.Event(), asyncio.Event()

    async def answer(data: bytes) -> bytes:
        began.set()
        await go_on.wait()
        return data

    async with client.respond(elsewhere, answer):
        lost = asyncio.ensure_future(client.request(topic, "x"))
        kept = asyncio.ensure_future(client.request(elsewhere, "y"))
        await began.wait()
        await _until(lambda: "public/default" in client._requests()._replies)
        ended = client._requests()._replies["public/default"]
        await ended.open()
        await ended._consumer.close()
        with pytest.raises(AlreadyClosedError):
            await lost
        go_on.set()
        assert await kept == b"y"
    other = f"{topic}-other"  # an answer to what is left in `topic` would go to the reply topic that has ended
    async with client.respond(other, upper):
        assert await client.request(other, "z") == b"Z"
    with pytest.raises(heliograph.errors.TopicNotFoundError):  # the reply topic that the new one follows
        await client.admin.partitions(ended.name)


async def test_a_late_answer_is_dropped(client: heliograph.AsyncClient, topic: str) -> None:
    consumer = await client.consumer(topic, "responders", type="shared", initial_position="earliest")
    asking = asyncio.ensure_future(client.request(topic, "x", timeout=60))
    message = await consumer.receive(60)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    await _reply(client, message, "late")
    asked = client._requests()
    await _until(lambda: asked.dropped == 1)
    await consumer.close()


async def test_the_first_answer_wins(client: heliograph.AsyncClient, topic: str) -> None:
    consumer = await client.consumer(topic, "responders", type="shared", initial_position="earliest")
    asking = asyncio.ensure_future(client.request(topic, "x", timeout=60))
    message = await consumer.receive(60)
    await _reply(client, message, "first")
    await _reply(client, message, "second")
    assert await asking == b"first"
    await _until(lambda: client._requests().dropped == 1)
    await consumer.close()


async def test_another_run_of_a_stream(client: heliograph.AsyncClient, topic: str) -> None:
    consumer = await client.consumer(topic, "responders", type="shared", initial_position="earliest")

    async def parts(resumes: bool) -> list[bytes]:
        return [each async for each in client.stream_request(topic, "x", resumes=resumes)]

    for resumes in (True, False):
        asking = asyncio.ensure_future(parts(resumes))
        message = await consumer.receive(60)
        await _reply(client, message, "a", run="dead", number=0, kind="part")
        await _reply(client, message, "a", run="next", number=0, kind="part")
        await _reply(client, message, "b", run="next", number=1, kind="value")
        if resumes:
            assert await asking == [b"a", b"b"]
        else:
            with pytest.raises(ReplyInterruptedError, match="began the answer again"):
                await asking
    await consumer.close()


@pytest.mark.parametrize(("kind", "told"), [("error", "the model is gone"), ("end", "shorter")])
async def test_another_run_that_ends_before_the_parts_that_are_there(
    client: heliograph.AsyncClient, topic: str, kind: str, told: str
) -> None:
    consumer = await client.consumer(topic, "responders", type="shared", initial_position="earliest")
    parts = client.stream_request(topic, "x", resumes=True, timeout=60)
    first = asyncio.ensure_future(anext(parts))
    message = await consumer.receive(60)
    await _reply(client, message, "a", run="dead", number=0, kind="part")
    await _reply(client, message, "the model is gone", run="next", number=0, kind=kind)
    assert await first == b"a"
    with pytest.raises((RequestFailedError, ReplyInterruptedError), match=told):
        await anext(parts)
    await consumer.close()


async def test_a_part_that_was_lost_is_told(client: heliograph.AsyncClient, topic: str) -> None:
    consumer = await client.consumer(topic, "responders", type="shared", initial_position="earliest")
    parts = client.stream_request(topic, "x")
    first = asyncio.ensure_future(anext(parts))
    message = await consumer.receive(60)
    await _reply(client, message, "a", run="one", number=0, kind="part")
    await _reply(client, message, "c", run="one", number=2, kind="part")
    assert await first == b"a"
    with pytest.raises(ReplyInterruptedError, match="part 1"):
        await anext(parts)
    await consumer.close()


async def test_a_stranger_cannot_choose_where_a_responder_publishes(client: heliograph.AsyncClient, topic: str) -> None:
    called: list[bytes] = []
    async with client.respond(topic, called.append):
        asked = {REQUEST_ID: "1", DEADLINE: str(wall_ms() + 60_000), REPLY_TO: f"persistent://public/default/{topic}-x"}
        async with client.producer(topic) as producer:
            await producer.send("x", properties=asked)
        await _until(lambda: called == [b"x"])
    assert f"persistent://public/default/{topic}-x" not in str(await client.admin.list_topics("public/default"))
    own = f"persistent://public/default/{topic}"
    good = "non-persistent://public/default/heliograph-replies-" + "0" * 32
    assert is_reply_topic(good, own)
    for bad in (good.replace("non-", ""), good + "0", good.replace("public/", "other/"), "", "a b", own):
        assert not is_reply_topic(bad, own), bad


async def test_closing_lets_the_requests_in_hand_end(client: heliograph.AsyncClient, topic: str) -> None:
    goes_on = asyncio.Event()
    begun = asyncio.Event()

    async def slow(data: bytes) -> bytes:
        begun.set()
        await goes_on.wait()
        return data

    responder = await client.respond(topic, slow, concurrency=1)
    asking = asyncio.ensure_future(client.request(topic, "x", timeout=60))
    await begun.wait()
    closing = asyncio.ensure_future(responder.close())
    await asyncio.sleep(0)
    goes_on.set()
    assert await asking == b"x"
    await closing


async def test_what_is_refused(client: heliograph.AsyncClient, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadRequestError, match="timeout"):
        await client.request(topic, "x", timeout=0)
    with pytest.raises(InvalidConfigError, match="concurrency"):
        client.respond(topic, upper, concurrency=0)
    with pytest.raises(InvalidConfigError, match="cannot be called"):
        client.respond(topic, "upper")  # type: ignore[arg-type]
    monkeypatch.setattr(requester, "OPEN_REQUESTS_MAX", 0)
    with pytest.raises(QuotaExceededError):
        await client.request(topic, "x")


async def test_a_client_deletes_its_reply_topic(cluster: heliograph.LocalCluster, topic: str) -> None:
    async with await heliograph.connect_async(cluster.service_url) as watcher:
        client = await heliograph.connect_async(cluster.service_url)
        async with watcher.respond(topic, upper):
            assert await client.request(topic, "x") == b"X"
            (name,) = [each.name for each in client._requests()._replies.values()]
            assert await watcher.partitions(name) == 0
            await client.close()
            with pytest.raises(heliograph.errors.TopicNotFoundError):
                await watcher.admin.topic_stats(name)
    with pytest.raises(AlreadyClosedError):
        await client.request(topic, "x")


def test_the_blocking_client(cluster: heliograph.LocalCluster, topic: str) -> None:
    def words(data: bytes) -> Iterator[bytes]:
        yield from data.split()

    with cluster.connect() as client:
        with client.respond(topic, upper) as responder:
            assert client.request(topic, "hello") == b"HELLO"
            assert responder.expired == 0
            with pickle.loads(pickle.dumps(responder)) as copy:
                assert copy.topic == responder.topic
                assert client.request(topic, "again") == b"AGAIN"
        with client.respond(topic + "-words", words):
            assert list(client.stream_request(topic + "-words", "a b c")) == [b"a", b"b", b"c"]
            for each in client.stream_request(topic + "-words", "a b c"):
                assert each == b"a"
                break


async def _reply(
    client: heliograph.AsyncClient,
    message: heliograph.Message,
    value: str,
    *,
    run: str = "",
    number: int = 0,
    kind: str = "value",
) -> None:
    """Answer as a consumer of another library would."""
    own = {REPLY_ID: message.properties[REQUEST_ID], RUN: run or value, NUMBER: str(number), KIND: kind}
    async with client.producer(message.properties[REPLY_TO]) as producer:
        await producer.send(value, properties=own)


async def _until(holds: Any) -> None:
    while not holds():  # noqa: ASYNC110
        await asyncio.sleep(0.01)
