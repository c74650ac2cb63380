"""Operations by their names over HTTP: what a caller gets that is not in Ray, and in whose role it runs."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from typing_extensions import override

from heliograph.auth.principal import Principal
from heliograph.base.errors import (
    AuthenticationError,
    HeliographError,
    NotFoundError,
    NotPermittedError,
    TopicExistsError,
)
from heliograph.base.home import ClusterHome, ClusterState
from heliograph.client import discovery
from heliograph.client.admin import over_http
from heliograph.client.admin.admin import Admin
from heliograph.client.admin.over_http import GatewayAwayError, GatewayCalls, noted_gateway
from heliograph.client.identity import Identity
from heliograph.gateway.app import create_app
from heliograph.gateway.config import GatewayConfig
from heliograph.gateway.http.server import GatewayServer
from heliograph.gateway.ports import PartsPort
from heliograph.metadata.codec import decode
from heliograph.metadata.operator_records import ClusterReport
from heliograph.operations.admin import AdminOperations
from heliograph.operations.table import AdminOperation
from tests.unit.gateway.door.test_callers import AUTH, token
from tests.unit.gateway.world import View


class Cluster(AdminOperations):
    """Notes what is asked in which role, and answers with the arguments."""

    def __init__(self, asked: list[tuple[str, str]], role: str = "") -> None:
        self.asked = asked
        self.role = role
        self.run_through(self._run)

    @override
    def called_from(self, address: str) -> Cluster:
        return self

    async def _run(self, operation: AdminOperation, arguments: dict[str, Any]) -> Any:
        self.asked.append((operation.name, self.role))
        if operation.name == "create_topic":
            raise TopicExistsError("it exists", field="topic", limit="one")
        return arguments

    def client(self, principal: Principal) -> Any:
        return SimpleNamespace()

    def admin(self, principal: Principal) -> Cluster:
        return Cluster(self.asked, principal.role)


class Parts:
    async def names(self) -> list[str]:
        return ["auditor", "bookie-1"]

    async def ask(self, part: str, method: str, arguments: list[Any]) -> Any:
        if arguments == [404]:
            raise NotFoundError("no such ledger", field="ledger_id")
        return [part, method, *arguments]


@asynccontextmanager
async def served(parts: PartsPort | None = None, **settings: Any) -> AsyncIterator[tuple[str, list[tuple[str, str]]]]:
    """Yield the gateway's URL, and what it asks of its cluster."""
    asked: list[tuple[str, str]] = []
    config = GatewayConfig(port=0, ray_namespace="mine", **settings)
    cluster: Any = Cluster(asked)
    nothing: Any = SimpleNamespace()
    server = GatewayServer(config)
    server.bind()
    await server.start(create_app(nothing, cluster, config, View(), parts or Parts(), cluster))
    try:
        yield server.url, asked
    finally:
        await server.stop()


async def test_an_operation_runs_with_its_arguments_and_bytes_stay_bytes() -> None:
    async with served() as (url, asked):
        admin = Admin("mine", Identity(), GatewayCalls(url, "mine"))
        assert await admin.publish("t", [b"\xff\x00"]) == {"topic": "t", "payloads": [b"\xff\x00"]}  # type: ignore[comparison-overlap]
        assert await admin.topic_stats("t") == {"topic": "t"}
        assert asked == [("publish", ""), ("topic_stats", "")]


async def test_the_console_calls_in_json_with_the_rights_of_its_caller() -> None:
    async with served(auth=AUTH) as (url, asked), httpx.AsyncClient(base_url=url) as http:
        headers = {"Authorization": f"Bearer {token('alice')}"}

        async def post(path: str, json: Any) -> httpx.Response:
            return await http.post(f"/admin/heliograph/{path}", json=json, headers=headers)

        found = await post("operations/topic_stats", {"arguments": {"topic": "t"}})
        assert (found.json(), asked) == ({"value": {"topic": "t"}}, [("topic_stats", "alice")])
        refused = await post("operations/create_topic", {"arguments": {"topic": "t"}})
        assert (refused.status_code, refused.json()["reason"]) == (409, "it exists")
        assert (await post("parts/auditor/repair_status", {"arguments": []})).status_code == 403
        bodies: list[Any] = [[], {}, {"arguments": []}, {"arguments": {"topic": "t"}, "namespace": "other"}]
        for body in bodies:
            assert (await post("operations/topic_stats", body)).status_code in (400, 404), body
        form = {**headers, "Content-Type": "text/plain"}  # what a form of a foreign page can send
        address = "/admin/heliograph/operations/topic_stats"
        assert (await http.post(address, content='{"arguments": {"topic": "t"}}', headers=form)).status_code == 415
        assert len(asked) == 2


async def test_an_error_arrives_with_its_class_and_all_that_it_names() -> None:
    async with served() as (url, _asked):
        admin = Admin("mine", Identity(), GatewayCalls(url, "mine"))
        with pytest.raises(TopicExistsError) as caught:
            await admin.create_topic("t")
        assert (str(caught.value), caught.value.field, caught.value.limit) == ("it exists", "topic", "one")


async def test_each_caller_acts_in_its_own_role_and_strangers_do_not_come_in() -> None:
    async with served(auth=AUTH) as (url, asked):
        calls = GatewayCalls(url, "mine")
        await Admin("mine", Identity(token=token("alice")), calls).list_topics()
        assert asked == [("list_topics", "alice")]
        with pytest.raises(AuthenticationError):
            await Admin("mine", Identity(), calls).list_topics()
        with pytest.raises(AuthenticationError):
            await Admin("mine", Identity(token="forged"), calls).list_topics()
        assert len(asked) == 1


async def test_the_auditor_and_bookies_answer_superusers_alone() -> None:
    async with served(auth=AUTH) as (url, _asked):
        calls = GatewayCalls(url, "mine")
        root = Identity(token=token("root"))
        assert await calls.ask_part("auditor", "describe_ledger", [7], root, 60.0) == ["auditor", "describe_ledger", 7]
        assert await calls.parts(root) == ["auditor", "bookie-1"]
        assert await calls.ask_part("bookie-1", "statistics", [], root, 60.0) == ["bookie-1", "statistics"]
        with pytest.raises(NotPermittedError):
            await calls.parts(Identity(token=token("alice")))
        assert decode(ClusterReport, await calls.report(root, 30.0)).bookies_available == ("bookie-1",)
        with pytest.raises(NotPermittedError):
            await calls.report(Identity(token=token("alice")), 30.0)
        with pytest.raises(NotFoundError, match="no such ledger"):
            await calls.ask_part("auditor", "describe_ledger", [404], root, 60.0)
        with pytest.raises(NotPermittedError):
            await calls.ask_part("auditor", "describe_ledger", [7], Identity(token=token("alice")), 60.0)
        with pytest.raises(GatewayAwayError):  # a change that the operator makes
            await calls.ask_part("auditor", "recover_bookie", ["bookie-1"], root, 60.0)
        assert await calls.ask_part("broker-9", "log_chunk", [], root, 60.0) == ["broker-9", "log_chunk"]
        with pytest.raises(GatewayAwayError):  # it ends a bookie: only a process of the cluster may
            await calls.ask_part("bookie-1", "erase", [], root, 60.0)
        with pytest.raises(GatewayAwayError):  # no method for callers outside of the cluster
            await calls.ask_part("auditor", "stop", [], root, 60.0)


async def test_the_gateway_of_another_cluster_at_the_same_port_does_nothing() -> None:
    async with served() as (url, asked):
        with pytest.raises(GatewayAwayError):
            await GatewayCalls(url, "other").ask_part("auditor", "repair_status", [], Identity(), 60.0)
        assert not asked


@pytest.mark.parametrize("body", [b"", b"\xc1", b"\x90", b"\x81\xa9namespace\xa4mine"])
async def test_a_malformed_body_is_refused(body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(over_http, "msgpack", SimpleNamespace(packb=lambda _: body))
    async with served() as (url, asked):
        with pytest.raises(HeliographError):
            await GatewayCalls(url, "mine").ask_part("auditor", "repair_status", [], Identity(), 60.0)
        assert not asked


def test_brokers_are_asked_through_ray_where_no_gateway_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
    admin = Admin("mine", Identity(), GatewayCalls(url, "mine"))
    monkeypatch.setattr(discovery, "broker_names", lambda _: ["broker-1"])

    def gone(name: str, _: str) -> None:
        raise AuthenticationError(f"asked {name}")

    monkeypatch.setattr(discovery, "actor", gone)
    with pytest.raises(AuthenticationError, match="asked broker-1"):
        asyncio.run(admin.list_topics())


def test_the_gateway_is_the_one_that_this_machine_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "is_attached", lambda: False)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert noted_gateway("mine", tmp_path, {}) is None
    ClusterHome(tmp_path).save(ClusterState("mine", "10.0.0.1:6379", "", gateway_url="http://10.0.0.1:8080"))
    found = noted_gateway("mine", tmp_path, {})
    assert found is not None
    assert found.url == "http://10.0.0.1:8080"
    assert noted_gateway("other", tmp_path, {}) is None
    monkeypatch.setenv("RAY_ADDRESS", "10.9.9.9:6379")
    assert noted_gateway("mine", tmp_path, {}) is None
    monkeypatch.delenv("RAY_ADDRESS")
    monkeypatch.setattr(discovery, "is_attached", lambda: True)
    assert noted_gateway("mine", tmp_path, {}) is None
