"""``helio functions``, and the same over HTTP: what is seen of processors, and how they are steered."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

import heliograph
from heliograph.cli.app import app
from heliograph.errors import NotFoundError, NotPermittedError
from heliograph.processors.registry import ProcessorRecord, lag_of
from tests.unit.processors.conftest import SECONDS, Begin, Made, read

PROCESSORS = "/admin/heliograph/processors"


@pytest.fixture
def helio(cluster: heliograph.LocalCluster) -> Any:
    def run(*arguments: str) -> Any:
        options = ["functions", *arguments, "--home", str(cluster.directory), "--json"]
        return json.loads(CliRunner().invoke(app, options, catch_exceptions=False).stdout)

    return run


async def test_a_processor_is_seen_paused_resumed_and_deleted(
    client: heliograph.Client, helio: Any, name: str, made: Made, begin: Begin
) -> None:
    async def copy(message: Any, context: Any) -> None:
        context.log.warning("copies %s", message.data.decode())
        context.send(f"{name}-out", message.data)

    async with heliograph.AsyncClient(client.options) as own, own.producer(name) as producer:
        await producer.send("1", key="a")
        working = begin(made(copy))
        await read(client, f"{name}-out", 1)
        await read(client, f"{name}-log", 1)

        async def listed() -> Any:
            rows = (await asyncio.to_thread(helio, "list"))["processors"]
            return next(row for row in rows if row["name"] == name)

        assert (await listed())["inputs"] == name
        logged = await asyncio.to_thread(helio, "logs", name)
        assert [(line["level"], line["text"]) for line in logged["lines"]] == [("WARNING", "copies 1")]
        await asyncio.to_thread(helio, "pause", name)
        assert (await listed())["state"] == "paused"
        await producer.send("2", key="a")
        shown = await asyncio.to_thread(helio, "show", name)
        assert shown["lag"] >= 1
        assert shown["outputs"] == [f"persistent://public/default/{name}-out"]
        assert shown["reports"][0]["restore_seconds"] >= 0
        await asyncio.to_thread(helio, "resume", name)
        await read(client, f"{name}-out", 2)
        assert await asyncio.to_thread(helio, "delete", name) == {"deleted": name}
        await asyncio.wait_for(working, SECONDS)
        assert name not in {row["name"] for row in (await asyncio.to_thread(helio, "list"))["processors"]}
        assert name not in await own.admin.subscriptions(name)
        assert not list(await own.admin.list_topics("public/default", prefix=f"{name}-state"))


@pytest.mark.parametrize("verb", ["show", "logs", "pause", "resume", "delete"])
async def test_a_name_that_no_processor_has_is_refused(helio: Any, verb: str) -> None:
    with pytest.raises(NotFoundError, match="there is no processor 'nobody'"):
        await asyncio.to_thread(helio, verb, "nobody")


async def test_a_namespace_without_a_processor_gets_no_topics(
    client: heliograph.Client, cluster: heliograph.LocalCluster, helio: Any
) -> None:
    await asyncio.to_thread(client.admin.namespaces.create, "public/quiet")
    assert (await asyncio.to_thread(helio, "list", "--in", "public/quiet"))["processors"] == []
    with pytest.raises(NotFoundError, match="there is no processor 'any' in public/quiet"):
        await asyncio.to_thread(helio, "show", "any", "--in", "public/quiet")
    async with httpx.AsyncClient(base_url=cluster.http_url, timeout=SECONDS) as http:
        answer = await http.get(PROCESSORS, params={"namespace": "public/quiet"})
        assert answer.json() == {"processors": [], "more": False}
        body = {"namespace": "public/quiet", "name": "any"}
        assert (await http.post(f"{PROCESSORS}/pause", json=body)).status_code == 404
        assert (await http.get(PROCESSORS, params={"namespace": "quiet/"})).status_code == 412
    assert not list(await asyncio.to_thread(client.admin.list_topics, "public/quiet"))


async def test_a_processor_is_steered_over_http(
    client: heliograph.Client, cluster: heliograph.LocalCluster, name: str, made: Made, begin: Begin
) -> None:
    async def copy(message: Any, context: Any) -> None:
        context.send(f"{name}-out", message.data)

    async with heliograph.AsyncClient(client.options) as own, own.producer(name) as producer:
        await producer.send("1", key="a")
        working = begin(made(copy))
        await read(client, f"{name}-out", 1)
        async with httpx.AsyncClient(base_url=cluster.http_url, timeout=SECONDS) as http:
            rows = (await http.get(PROCESSORS)).json()["processors"]
            assert [row["inputs"] for row in rows if row["name"] == name] == [[f"persistent://public/default/{name}"]]
            assert (await http.post(f"{PROCESSORS}/pause", json={"name": name})).json() == {"done": [name]}
            shown = (await http.get(f"{PROCESSORS}/processor", params={"name": name})).json()
            assert (shown["is_paused"], len(shown["reports"])) == (True, 1)
            assert (await http.post(f"{PROCESSORS}/resume", json={"name": name})).status_code == 200
            assert (await http.post(f"{PROCESSORS}/begin", json={"name": name})).status_code == 422
            assert (await http.post(f"{PROCESSORS}/delete", json={"name": name})).json() == {"done": [name]}
            await asyncio.wait_for(working, SECONDS)
            assert (await http.get(f"{PROCESSORS}/processor", params={"name": name})).status_code == 404


async def test_the_lag_is_not_known_of_an_input_that_the_caller_may_not_see() -> None:
    """It is in another namespace; the other processors of the list are told."""

    async def refuse(topic: str) -> dict[str, Any]:
        raise NotPermittedError(f"the role may not see {topic}")

    client: Any = SimpleNamespace(admin=SimpleNamespace(topic_stats=refuse))
    assert await lag_of(client, ProcessorRecord("totals", ("persistent://other/place/payments",))) is None
