"""What the gateway's audit log says of changes of the cluster: done only if they were, and refused if they were."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest

from heliograph.gateway.app import create_app
from heliograph.gateway.config import GatewayConfig
from heliograph.gateway.services import Services
from tests.unit.gateway.admin.test_calls import Cluster
from tests.unit.gateway.door.test_callers import AUTH, token
from tests.unit.gateway.world import Gateway, View

WISH = ("wishes", {"kind": "scale", "subject": "bookies", "count": 4})
PAUSE = ("parts/auditor/pause", {"arguments": [True]})


class Parts:
    """Parts of which each call fails in a way of its own."""

    def __init__(self, failure: BaseException | None) -> None:
        self.failure = failure

    async def names(self) -> list[str]:
        return ["auditor"]

    async def ask(self, part: str, method: str, arguments: list[Any]) -> Any:
        if self.failure is not None:
            raise self.failure
        return arguments[0]


def with_parts(gateway: Gateway, failure: BaseException | None) -> Services:
    services: Services = gateway.app.state.services
    services.parts = Parts(failure)
    return services


@pytest.mark.parametrize(("path", "body"), [WISH, PAUSE])
async def test_what_was_not_done_is_not_noted_as_done(tmp_path: Path, path: str, body: dict[str, Any]) -> None:
    async with Gateway(audit_file=str(tmp_path / "audit.log")) as gateway:
        for failure in (None, OSError("the network is down"), asyncio.CancelledError()):
            services = with_parts(gateway, failure)
            try:
                await gateway.http.post(f"/admin/heliograph/{path}", json=body)
            except asyncio.CancelledError:
                assert isinstance(failure, asyncio.CancelledError)
            line = services.audit.recent[-1]
            expected = ("done", None) if failure is None else ("failed", type(failure).__name__)
            assert (line["outcome"], line.get("error")) == expected
        assert len(services.audit.recent) == 3


@pytest.mark.parametrize(
    ("path", "body", "what", "target"),
    [
        (*WISH, "wish", ""),
        (*PAUSE, "pause", "auditor"),
        ("parts", {}, "parts", ""),
        ("map", None, "map", ""),
        ("history?part=broker-1", None, "history", "broker-1"),
    ],
)
async def test_refusals_are_noted(
    tmp_path: Path, path: str, body: dict[str, Any] | None, what: str, target: str
) -> None:
    config = GatewayConfig(audit_file=str(tmp_path / "audit.log"), auth=AUTH)
    cluster: Any = Cluster([])
    app = create_app(cast(Any, SimpleNamespace()), cluster, config, View(), Parts(None), cluster)
    headers = {"Authorization": f"Bearer {token('alice')}"}
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8080", headers=headers) as http:
        method = "GET" if body is None else "POST"
        answer = await http.request(method, f"/admin/heliograph/{path}", json=body)
        assert answer.status_code == 403
    (line,) = app.state.services.audit.recent
    assert (line["role"], line["operation"], line["target"], line["outcome"]) == ("alice", what, target, "refused")
