"""Tasks over HTTP: jobs that a program without Python submits, follows and cancels."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest

import heliograph
from heliograph.gateway.config import GatewayConfig
from heliograph.tasks.task import Task

Made = Callable[..., Callable[..., Task[Any, Any]]]
Begin = Callable[..., "asyncio.Task[None]"]


@pytest.fixture
async def http(cluster: heliograph.LocalCluster) -> AsyncIterator[httpx.AsyncClient]:
    """Return a client of the gateway below its queues of tasks."""
    base = f"{cluster.http_url}/tasks/public/default"
    async with httpx.AsyncClient(base_url=base, timeout=60) as client:
        yield client


async def test_a_job_is_submitted_followed_and_listed(
    http: httpx.AsyncClient, made: Made, begin: Begin, queue: str
) -> None:
    @made(encoding="json", retries=0)
    async def add(one: int, other: int = 1) -> dict[str, int]:
        if other == 0:
            raise ValueError("nothing to add")
        return {"sum": one + other}

    begin(add)
    job = await add.submit(1)  # the queue exists once something was submitted to it, or a worker has begun
    assert await job.result(timeout=60) == {"sum": 2}
    answer = await http.post(f"/{queue}", json={"task": "add", "args": [3], "kwargs": {"other": 4}, "id": "a/b"})
    assert (answer.status_code, answer.json()) == (202, {"id": "a/b"})
    answer = await http.get(f"/{queue}/a%2Fb?timeoutMs=60000")
    body = answer.json()
    assert (body["state"], body["task"], body["attempt"], body["result"]) == ("SUCCESS", "add", 1, {"sum": 7})
    again = await http.post(f"/{queue}", json={"task": "add", "args": [100], "id": "a/b"})
    assert again.status_code == 202
    assert (await http.get(f"/{queue}/a%2Fb?timeoutMs=60000")).json()["result"] == {"sum": 7}, "it is the same job"
    other = await http.post(f"/{queue}", json={"task": "subtract", "id": "a/b"})
    assert (other.status_code, other.json()["field"]) == (409, "id")
    failed = (await http.post(f"/{queue}", json={"task": "add", "kwargs": {"one": 1, "other": 0}})).json()["id"]
    body = (await http.get(f"/{queue}/{failed}?timeoutMs=60000")).json()
    assert body["state"] == "FAILURE"
    assert "nothing to add" in body["note"]
    listed = (await http.get(f"/{queue}?state=FAILURE&limit=1")).json()
    assert [each["id"] for each in listed["jobs"]] == [failed]
    assert (listed["states"]["SUCCESS"], listed["states"]["FAILURE"]) == (2, 1)


async def test_a_job_is_cancelled(http: httpx.AsyncClient, made: Made, begin: Begin, queue: str) -> None:
    begun = asyncio.Event()

    @made(encoding="json")
    async def wait() -> None:
        begun.set()
        await asyncio.Event().wait()

    job = await wait.submit(id="one")
    assert (await http.delete(f"/{queue}/two")).status_code == 404
    assert (await http.delete(f"/{queue}/two?task=wait")).json() == {"revoked": True}
    begin(wait)
    await begun.wait()
    body = (await http.get(f"/{queue}/one?timeoutMs=10")).json()
    assert body["state"] == "STARTED"
    assert (await http.delete(f"/{queue}/one")).json() == {"revoked": True}
    assert await job.status() == "REVOKED"
    assert (await http.get(f"/{queue}/one")).json()["state"] == "REVOKED"
    assert (await http.get(f"/{queue}/nobody")).json() == {"id": "nobody", "state": "PENDING"}


async def test_a_result_that_is_a_pickle_is_bytes(
    http: httpx.AsyncClient, made: Made, begin: Begin, queue: str
) -> None:
    @made()
    async def pair() -> tuple[int, int]:
        return 1, 2

    begin(pair)
    await (await pair.submit(id="one")).result(timeout=60)
    body = (await http.get(f"/{queue}/one")).json()
    assert "result" not in body
    assert body["resultBase64"].startswith("gA")  # a pickle is not loaded by the gateway


async def test_what_is_refused(http: httpx.AsyncClient, queue: str) -> None:
    assert (await http.post(f"/{queue}", json={"task": "add"})).status_code == 404
    assert (await http.get(f"/{queue}")).status_code == 404
    assert (await http.get(f"/{queue}/one")).status_code == 404
    assert (await http.delete(f"/{queue}/one")).status_code == 404
    assert (await http.post(f"/{queue}", json={"args": []})).status_code == 422
    assert (await http.get(f"/{queue}?state=LOST")).status_code == 422
    assert (await http.get("/a%20%3A%2F%2Fb/one")).status_code in (400, 412)


async def test_a_topic_that_is_no_queue_gets_no_subscription_that_keeps_its_messages(
    http: httpx.AsyncClient, client: heliograph.Client, queue: str
) -> None:
    await asyncio.to_thread(client.admin.create_topic, queue, 0)
    for answer in (
        await http.get(f"/{queue}"),
        await http.get(f"/{queue}/one"),
        await http.delete(f"/{queue}/one?task=add"),
        await http.post(f"/{queue}", json={"task": "add"}),
    ):
        assert (answer.status_code, answer.json()["field"]) == (404, "queue")
    assert list(await asyncio.to_thread(client.admin.subscriptions, queue)) == []


def test_followed_jobs_have_a_bound_in_memory() -> None:
    few, many = GatewayConfig(task_states_max=1), GatewayConfig(task_states_max=1_000)
    assert many.memory_bounds["states of jobs"] == 1_000 * few.memory_bounds["states of jobs"]
