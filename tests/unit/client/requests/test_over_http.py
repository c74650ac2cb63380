"""Requests over HTTP on a cluster in this process, beside a responder of Python."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx

import heliograph

TEXT = {"Content-Type": "text/plain"}


async def test_a_responder_answers_http(
    cluster: heliograph.LocalCluster, client: heliograph.AsyncClient, topic: str
) -> None:
    async def words(data: bytes) -> AsyncIterator[bytes]:
        for word in data.split():
            yield word

    async def upper(data: bytes) -> bytes:
        if data == b"bad":
            raise ValueError("no such document")
        return data.upper()

    url = f"{cluster.http_url}/topics/persistent/public/default/{topic}"
    async with httpx.AsyncClient(timeout=30) as http, client.respond(topic, upper):
        answer = await http.post(f"{url}?reply=wait", content="hello", headers=TEXT)
        assert (answer.status_code, answer.json()["payload"]) == (200, "HELLO")
        answer = await http.post(f"{url}?reply=wait", content="bad", headers=TEXT)
        assert (answer.status_code, answer.json()["reason"]) == (502, "ValueError: no such document")
        async with client.respond(topic + "-words", words):
            answer = await http.post(f"{url}-words?reply=stream", content="to be", headers=TEXT)
        assert answer.text.count('data: {"payload"') == 2
        assert "event: end" in answer.text
        answer = await http.post(f"{url}-words?reply=wait&replyTimeoutMs=50", content="nobody answers", headers=TEXT)
        assert answer.status_code == 504
