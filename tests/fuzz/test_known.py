"""Conversations that once broke a listener, word for word."""

from __future__ import annotations

import asyncio

from tests.fuzz.campaign import generation
from tests.fuzz.conversation import Act, Step
from tests.fuzz.listeners.listeners import LISTENERS

DELETE = b"DELETE /topics/persistent/public/default/a/subscription/s/consumer HTTP/1.1\r\nHost: 127.0.0.1\r\n"
CHUNKED = DELETE + b"Transfer-Encoding: chunked\r\n\r\n80\r\n9223372036854775807\r\n0\r\n\r\n"
UPGRADE = (
    b"GET /ws/v2/producer/persistent/public/default/a HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\n"
    b"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: HMf0zFnIwv6qbr81vQaeEA==\r\n\r\n"
)
JUNK = (
    b"POST /admin/v2/namespaces/hostile/default/unsubscribe/s HTTP/1.1\r\nHost: 127.0.0.1\r\n" + b"x" * 60 + b"\r\n\r\n"
)


def test_a_chunk_that_is_none_after_the_answer_to_its_request() -> None:
    conversations = [
        (
            Step(0, Act.SEND, CHUNKED),
            Step(0, Act.TURNS, count=turns),
            Step(0, Act.SEND, JUNK),
            Step(0, Act.HEAR),
            Step(0, Act.CLOSE),
        )
        for turns in range(12)  # it arrives before, while and after the answer is written
    ]
    held, reason = asyncio.run(generation(LISTENERS["http"], conversations))
    assert not reason, reason
    assert held == len(conversations)


def test_a_message_that_is_not_utf8_with_the_close_of_its_session() -> None:
    conversation = (
        Step(0, Act.SEND, UPGRADE),
        Step(0, Act.HEAR),
        Step(0, Act.HEAR),
        Step(0, Act.SEND, b"\x81\x81\0\0\0\0\xff" + b"\x88\x80\0\0\0\0"),
        Step(0, Act.HEAR),
        Step(0, Act.CLOSE),
    )
    _, reason = asyncio.run(generation(LISTENERS["websocket"], [conversation]))
    assert not reason, reason
