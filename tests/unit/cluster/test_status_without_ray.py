"""``helio status`` without joining Ray: a dashboard of the test's own, a store in memory and a listener."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from heliograph.base.addressing.part_handle import SHARED_PROCESS
from heliograph.base.errors import AuthenticationError, HeliographError, ServiceNotReadyError
from heliograph.base.home import ClusterState
from heliograph.client.admin.over_http import GatewayAwayError, GatewayCalls
from heliograph.client.identity import Identity
from heliograph.cluster.naming import kind_of
from heliograph.cluster.status import dashboard as dashboard_module
from heliograph.cluster.status.dashboard import RayDashboard
from heliograph.cluster.status.without_ray import gather_without_ray
from heliograph.metadata import paths
from heliograph.metadata.backends.memory import MemoryServer
from heliograph.metadata.codec import encode
from heliograph.metadata.model import BookieRegistration, BrokerRegistration
from heliograph.metadata.recipes.cluster_init import initialise
from heliograph.metadata.store import MetadataStore

LABEL = "heliograph.io/bookie"


def actor(name: str, state: str = "ALIVE", **fields: Any) -> dict[str, Any]:
    made = {"name": name, "ray_namespace": "n", "state": state, "pid": 7, "num_restarts": "2"}
    class_name = "SharedProcess" if name == SHARED_PROCESS else f"{kind_of(name).capitalize()}Actor"
    return {**made, "class_name": class_name, **fields}


@contextmanager
def dashboard(actors: Any, nodes: Any = (), status: int = 200) -> Iterator[tuple[str, list[str]]]:
    """Serve what Ray's dashboard answers. Yields its URL and the values of ``Authorization`` that it was shown."""
    shown: list[str] = []

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            shown.append(self.headers.get("Authorization", ""))
            listed = actors if "/actors" in self.path else nodes
            data = json.dumps({"data": {"result": {"result": listed}}}).encode()
            self.send_response(status)
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", shown
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def store_url() -> str:
    """The URL of a store in which two bookies and a broker are registered, with four topics."""
    name = uuid.uuid4().hex

    async def fill() -> None:
        store: MetadataStore = MemoryServer.named(name).open_session(60_000)
        await initialise(store)
        for bookie in ("bookie-1", "bookie-2"):
            await store.create(paths.bookie_available(bookie), encode(BookieRegistration(bookie, "h:1")))
        broker = BrokerRegistration("broker-1", "pulsar://h:6650", actor_name="broker-1")
        await store.create(paths.broker_available("broker-1"), encode(broker))
        for topic in ("a", "b-partition-3", "p-partition-0", "p-partition-1"):
            path = paths.topic("public", "default", topic)
            await create_below(store, path)
        await create_below(store, paths.partitioned_topic("public", "default", "p"))
        await create_below(store, paths.non_persistent_topic("public", "default", "c"))

    asyncio.run(fill())
    return f"memory://{name}"


async def create_below(store: MetadataStore, path: str) -> None:
    steps = path.split("/")[1:]
    for count in range(1, len(steps) + 1):
        prefix = "/" + "/".join(steps[:count])
        if await store.exists(prefix) is None:
            await store.create(prefix)


def state(url: str, store_url: str, **fields: Any) -> ClusterState:
    made = ClusterState("n", "10.0.0.1:6379", "", dashboard_url=url, metadata_url=store_url)
    return replace(made, **fields)


@pytest.fixture(autouse=True)
def _no_other_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


def test_a_healthy_cluster(store_url: str) -> None:
    actors = [actor("gateway"), actor("broker-1"), actor("bookie-2"), actor("bookie-1"), actor("broker-2", "DEAD")]
    actors += [actor("model"), actor("broker-7", class_name="Model")]  # of other programs
    with dashboard(actors) as (url, _), socket.create_server(("127.0.0.1", 0)) as listener:
        gateway = f"http://127.0.0.1:{listener.getsockname()[1]}"
        found = gather_without_ray("n", state(url, store_url, gateway_url=gateway))
    assert found is not None
    assert found.is_healthy
    assert [(each.name, each.address, each.restarts) for each in found.actors] == [
        ("bookie-1", "h:1", 2), ("bookie-2", "h:1", 2), ("broker-1", "pulsar://h:6650", 2), ("gateway", gateway, 2),
    ]  # fmt: skip
    assert found.topics == 4  # a, b-partition-3, p, c


class Gateway(GatewayCalls):
    """The gateway of a cluster whose parts share process 7."""

    def __init__(self, silent: str = "", failure: HeliographError | None = None) -> None:
        super().__init__("http://127.0.0.1:1", "n")
        self._silent = silent
        self._failure = failure

    async def parts(self, identity: Identity) -> list[str]:
        if self._failure is not None:
            raise self._failure
        return ["broker-1", "bookie-2", "bookie-1", "operator"]

    async def ask_part(self, part: str, method: str, arguments: list[Any], identity: Identity) -> Any:
        assert (method, arguments) == ("part_facts", [])
        if part == self._silent:
            raise ServiceNotReadyError("it is still starting")
        return {"pid": 7, "version": "1.2.3"}


def test_parts_that_share_a_process_are_asked_by_way_of_the_gateway(store_url: str) -> None:
    found = gather_without_ray("n", state("", store_url), gateway=Gateway())
    assert found is not None
    assert [(each.name, each.state, each.pid, each.restarts, each.version, each.note) for each in found.actors] == [
        (name, "ALIVE", 7, None, "1.2.3", "") for name in ("bookie-1", "bookie-2", "broker-1", "operator")
    ]
    assert found.is_healthy
    with dashboard([actor("shared-process"), actor("auditor")]) as (url, _):
        found = gather_without_ray("n", state(url, store_url), gateway=Gateway(silent="operator"))
        assert gather_without_ray("n", state(url, store_url)) is None
    assert found is not None
    assert not found.is_healthy
    assert [(each.name, each.restarts, each.note) for each in found.actors] == [
        *((name, 2, "") for name in ("bookie-1", "bookie-2", "broker-1", "auditor")),
        ("operator", 2, "does not answer: it is still starting"),
    ]


def test_a_dashboard_that_has_not_started_is_done_without_while_all_is_well(store_url: str) -> None:
    starting = state("http://127.0.0.1:1", store_url)
    found = gather_without_ray("n", starting, gateway=Gateway())
    assert found is not None
    assert found.is_healthy
    assert gather_without_ray("n", starting, gateway=Gateway(silent="operator")) is None


@pytest.mark.parametrize("failure", [GatewayAwayError("no gateway"), AuthenticationError("who are you?")])
def test_a_gateway_that_tells_nothing_leaves_it_to_ray(store_url: str, failure: HeliographError) -> None:
    assert gather_without_ray("n", state("", store_url), gateway=Gateway(failure=failure)) is None
    assert gather_without_ray("n", state("", store_url)) is None


def test_what_does_not_run_is_explained(store_url: str) -> None:
    actors = [
        actor("bookie-1"),
        actor("bookie-3"),
        actor("bookie-4", "PENDING_CREATION", label_selector={LABEL: "bookie-4"}),
        actor("broker-1", "RESTARTING"),
    ]
    nodes = [{"state": "ALIVE", "labels": {LABEL: "bookie-1"}}, {"state": "DEAD", "labels": {LABEL: "bookie-4"}}]
    with dashboard(actors, nodes) as (url, _):
        found = gather_without_ray("n", state(url, store_url))
    assert found is not None
    assert not found.is_healthy
    assert [each.note for each in found.actors] == [
        "",
        "runs, but is not registered in metadata yet",
        f"it is waiting for a node labelled {LABEL}=bookie-4",
        "it was restarted 2 times; see `helio logs`",
    ]


def test_what_cannot_be_known_is_left_to_ray(store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with dashboard([actor("bookie-1"), actor("gateway")]) as (url, _):
        assert gather_without_ray("n", None) is None
        assert gather_without_ray("other", state(url, store_url)) is None
        assert gather_without_ray("n", state("http://127.0.0.1:1", store_url)) is None
        assert gather_without_ray("n", state(url, "embedded://127.0.0.1:1")) is None
        # The gateway may have moved:
        assert gather_without_ray("n", state(url, store_url, gateway_url="http://127.0.0.1:1")) is None
        monkeypatch.setenv("RAY_ADDRESS", "10.0.0.2:6379")
        assert gather_without_ray("n", state(url, store_url)) is None
    with dashboard([actor("bookie-1", "DEAD")]) as (url, _):
        monkeypatch.delenv("RAY_ADDRESS")
        assert gather_without_ray("n", state(url, store_url)) is None


@pytest.mark.parametrize(("answer", "status"), [("text", 200), ([1], 200), ({"a": 1}, 200), ([], 401)])
def test_another_answer_of_the_dashboard_is_none(answer: Any, status: int) -> None:
    with dashboard(answer, status=status) as (url, _), pytest.raises(ServiceNotReadyError):
        RayDashboard(url, "").actors("n")


def test_the_token_of_ray_is_shown_where_ray_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dashboard_module, "ray_token", lambda: "secret")
    with dashboard([]) as (url, shown):
        RayDashboard(url, "token").nodes()
        RayDashboard(url, "").nodes()
    assert shown == ["Bearer secret", ""]


def test_it_is_known_without_loading_ray() -> None:
    program = "import sys, heliograph.cluster.status.without_ray; print('ray' in sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert loaded.stdout == "False\n"
