"""The gateway's actor class in this process, without Ray; and in a whole cluster, with it."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvloop
from websockets.exceptions import ConnectionClosed

import heliograph
from heliograph.base.errors import ConnectionLostError, InvalidConfigError, ResourceError, ServiceNotReadyError
from heliograph.gateway import actor
from heliograph.gateway.actor import GatewayActor
from tests.cluster.gateway.stack import running_stack
from tests.cluster.support.live_cluster import LiveCluster, wait_for
from tests.websocket import connect


async def test_it_starts_once_and_frees_its_port(tmp_path: Path) -> None:
    async with running_stack(tmp_path, brokers=1) as stack:
        settings = {
            "port": 0,
            "service_urls": stack.brokers[0].service_url,
            "metadata_url": f"memory://{tmp_path.name}",
        }
        actor = GatewayActor(settings)
        with pytest.raises(ServiceNotReadyError):
            await actor.url()
        url, again = await asyncio.gather(actor.start(), actor.start())
        assert url == again == await actor.url()
        async with httpx.AsyncClient(base_url=url, timeout=60) as http:
            found = (await http.get("/admin/v2/bookies/all")).json()["bookies"]
            assert [bookie["bookieId"] for bookie in found] == ["bookie-1", "bookie-2", "bookie-3"]
            assert (await http.get("/docs")).status_code == 200
        await actor.stop()
        await actor.stop()
        with socket.create_server(("127.0.0.1", int(url.rpartition(":")[2]))):
            pass
        assert (await actor.start()).startswith("http://127.0.0.1:")
        await actor.stop()


def test_a_port_in_use_is_named_before_anything_else() -> None:
    async def scenario(port: int) -> None:
        with pytest.raises(ResourceError, match=f"port {port}"):
            await GatewayActor({"port": port, "service_urls": "pulsar://127.0.0.1:1"}).start()

    with socket.create_server(("127.0.0.1", 0)) as taken:
        uvloop.run(scenario(taken.getsockname()[1]))


async def test_without_brokers_it_does_not_start_and_may_be_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actor, "connect_async", partial(heliograph.connect_async, operation_timeout_ms=1_000))
    gateway = GatewayActor({"port": 0, "service_urls": "pulsar://127.0.0.1:1"})
    for _ in range(2):
        with pytest.raises(ConnectionLostError):
            await gateway.start()
    await gateway.stop()


def test_settings_are_checked_when_it_is_made() -> None:
    with pytest.raises(InvalidConfigError) as caught:
        GatewayActor({"prot": 8080})
    assert caught.value.field == "prot"
    assert repr(GatewayActor({"port": 8080})) == "Gateway(127.0.0.1:8080)"


# -- on Ray


def _url(cluster: LiveCluster) -> str:
    return str(cluster.call("gateway", "url"))


def _take(http: httpx.Client, topic: str, subscription: str, count: int) -> list[dict[str, Any]]:
    url = f"/topics/persistent/public/default/{topic}/subscription/{subscription}/messages"
    messages: list[dict[str, Any]] = []
    while len(messages) < count:
        answer = http.post(url, params={"initialPosition": "earliest", "timeoutMs": 60_000, "max": 1000})
        assert answer.status_code == 200, answer.text
        assert answer.json()["messages"], f"only {len(messages)} of {count} came"
        messages += answer.json()["messages"]
    return messages


@pytest.mark.cluster
@pytest.mark.timeout(600)
def test_the_whole_way_over_http_on_ray(cluster: LiveCluster, topic: str) -> None:
    with httpx.Client(base_url=_url(cluster), timeout=120) as http:
        admin = f"/admin/v2/persistent/public/default/{topic}"
        assert http.put(f"{admin}/partitions", json=4).status_code == 204
        assert http.put(f"{admin}/partitions", json=4).status_code == 409
        body = {"messages": [{"payload": str(number), "key": str(number % 9)} for number in range(1000)]}
        answer = http.post(f"/topics/persistent/public/default/{topic}", json=body)
        assert answer.status_code == 200, answer.text
        messages = _take(http, topic, "audit", 1000)
        assert sorted(int(message["payload"]) for message in messages) == list(range(1000))
        ids = [message["messageId"] for message in messages]
        url = f"/topics/persistent/public/default/{topic}/subscription/audit"
        assert http.post(f"{url}/ack", json={"messageIds": ids}).json() == {"acknowledged": 1000}
        stats = http.get(f"{admin}/partitioned-stats").json()
        assert stats["msgInCounter"] == 1000
        assert stats["subscriptions"]["audit"]["msgBacklog"] == 0
        status = http.get("/status").json()
        assert status["problems"] == []
        assert [broker["id"] for broker in status["brokers"]] == ["broker-1", "broker-2"]
        assert len(status["bookies"]) >= 3
        assert http.get("/health").json() == {"status": "ok"}
        assert (
            http.post(
                "/topics/persistent/public/default/unknown-topic", json={"messages": [{"payload": "x"}]}
            ).status_code
            == 404
        )
        assert http.delete(f"{admin}/partitions?force=true").status_code == 204
        assert http.get(f"{admin}/stats").status_code == 404


@pytest.mark.cluster
@pytest.mark.chaos
@pytest.mark.timeout(600)
def test_losing_the_gateway_loses_nothing_that_it_confirmed(cluster: LiveCluster, topic: str) -> None:
    """I1, as a WebSocket peer sees it."""
    confirmed: list[str] = []

    async def publish(url: str) -> None:
        address = f"{url.replace('http', 'ws')}/ws/v2/producer/persistent/public/default/{topic}"
        async with connect(address, max_queue=None) as producer:

            async def read() -> None:
                while True:
                    receipt = json.loads(await producer.recv())
                    assert receipt["result"] == "ok", receipt
                    confirmed.append(receipt["context"])

            reading = asyncio.ensure_future(read())
            number = 0
            while not reading.done():
                payload = base64.b64encode(str(number).encode()).decode()
                await producer.send(json.dumps({"payload": payload, "context": str(number)}))
                number += 1
                if number == 500:
                    await asyncio.to_thread(cluster.sigkill, "gateway")
                await asyncio.sleep(0)
            await reading

    pid = cluster.pid("gateway")
    with pytest.raises(ConnectionClosed):
        uvloop.run(publish(_url(cluster)))
    assert confirmed == [str(number) for number in range(len(confirmed))]
    cluster.wait_back("gateway", pid)
    wait_for(lambda: bool(_url(cluster)), 120, "the gateway has no address")
    with httpx.Client(base_url=_url(cluster), timeout=120) as http:
        found = {message["payload"] for message in _take(http, topic, "audit", max(1, len(confirmed)))}
    assert found >= set(confirmed)
