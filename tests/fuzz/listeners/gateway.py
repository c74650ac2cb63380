"""The gateway's listener: HTTP requests, and WebSocket sessions."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import httpx
from typing_extensions import override

import heliograph
from heliograph.actors.broker.broker import Broker
from heliograph.actors.broker.config import BrokerConfig
from heliograph.gateway.app import create_app
from heliograph.gateway.config import GatewayConfig
from heliograph.gateway.http.server import GatewayServer
from heliograph.gateway.services import Services
from heliograph.metadata import codec, paths
from heliograph.metadata.backends.memory import MemoryServer
from heliograph.metadata.model import BookieRegistration, NamespacePolicies, TenantRecord
from heliograph.metadata.recipes.cluster_init import initialise
from tests.fuzz.conversation import Conversation, disturbed
from tests.fuzz.encodings import http, websocket
from tests.fuzz.listener import BrokenPromiseError, Listener
from tests.unit.broker.fake_ledgers import BOOKIES, FakeLedgers
from tests.unit.gateway.world import NoParts, View

TENANT = "works"  # of the well-behaved client; no other client says it
TOPIC = f"persistent/{TENANT}/well/confirmed"
IDLE_MS = 50  # after which the gateway closes what hostile requests have opened
UPGRADED = b"HTTP/1.1 101 "
INTERNAL_ERROR = 1011
_STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) [A-Z][A-Za-z -]*\r\n")
_UNTYPED = (500, 502)


class GatewayListener(Listener):
    """A gateway and a broker on ledgers and metadata in memory."""

    @override
    async def start(self) -> None:
        server = MemoryServer()
        store = server.open_session()
        await initialise(store)
        await store.create(paths.tenant(TENANT), codec.encode(TenantRecord()))
        await store.create(paths.namespace(TENANT, "well"), codec.encode(NamespacePolicies()))
        for bookie in BOOKIES[:3]:
            await store.create(paths.bookie_available(bookie), codec.encode(BookieRegistration(bookie, "127.0.0.1:1")))
        self.broker = Broker(
            BrokerConfig("fuzzed", housekeeping_seconds=0.2, probe_seconds=0.0), server.open_session(), FakeLedgers()
        )
        await self.broker.start()
        self._client = await heliograph.connect_async(self.broker.service_url)
        config = GatewayConfig(
            port=0, rest_producer_idle_ms=IDLE_MS, rest_consumer_idle_ms=IDLE_MS, rest_wait_ms_max=20
        )
        self._server = GatewayServer(config)
        self._server.bind()
        app = create_app(self._client, self.broker.admin, config, View(), NoParts())
        self._services: Services = app.state.services
        await self._server.start(app)
        url = httpx.URL(self._server.url)
        self.address = (url.host, url.port or 0)
        self._http = httpx.AsyncClient(base_url=self._server.url, timeout=60)
        await self._ask("PUT", f"/admin/v2/{TOPIC}")
        self._confirmed: list[str] = []
        self._audits = 0
        for topic in ("a", "b"):
            await self._ask("PUT", f"/admin/v2/persistent/public/default/{topic}")

    @override
    async def stop(self) -> None:
        await self._http.aclose()
        await self._server.stop()
        await self._client.close()
        await self.broker.stop()

    @override
    async def work(self) -> None:
        payload = f"confirmed {len(self._confirmed)}"
        answer = await self._ask("POST", f"/topics/{TOPIC}", json={"messages": [{"payload": payload}]})
        if answer["messagePublishResults"][0]["errorCode"]:
            raise BrokenPromiseError(f"a message was refused: {answer}")
        self._confirmed.append(payload)

    @override
    async def audit(self) -> None:
        self._audits += 1
        url = f"/topics/{TOPIC}/subscription/audit-{self._audits}/messages"
        found: list[str] = []
        while len(found) < len(self._confirmed):
            query = {"initialPosition": "earliest", "max": 1_000, "type": "exclusive"}
            answer = await self._ask("POST", url, params=query)
            found += [message["payload"] for message in answer["messages"]]
        if found != self._confirmed:
            raise BrokenPromiseError(f"{len(found)} messages were read where {len(self._confirmed)} were confirmed")

    @override
    def held(self) -> Counter[str]:
        state = self._server._servers[0][0].server_state
        return Counter(
            connections=len(state.connections) - len(self._idle_connections()),
            requests=len(state.tasks),
            held_bytes=self._services.budget.held_bytes,
            sessions=self._services.sessions.open,
        )

    @override
    def held_long(self) -> Counter[str]:
        found = Counter(
            rest_producers=len(self._services.producers._slots), rest_consumers=len(self._services.consumers._sessions)
        )
        found["publish_bytes"] = self.broker._publish_budget.bytes
        for topic in self.broker.topics.loaded:
            if f"/{TENANT}/" not in str(topic.name):
                found["producers"] += len(topic.producers)
                found["topics with consumers"] += topic.has_consumers
        return found

    def _idle_connections(self) -> Sequence[Any]:
        """Return the connections of the well-behaved client."""
        return self._http._transport._pool.connections  # type: ignore[attr-defined, no-any-return]

    async def _ask(self, method: str, url: str, **given: Any) -> Any:
        answer = await self._http.request(method, url, **given)
        if not answer.is_success:
            raise BrokenPromiseError(f"the client that works was told {answer.status_code}: {answer.text:.500}")
        return answer.json() if answer.content else None


class HttpListener(GatewayListener):
    """The gateway, and clients of HTTP."""

    name = "http"

    @classmethod
    @override
    def conversation(cls, random: Random) -> Conversation:
        return disturbed(random, [http.requests(random) for _ in range(random.choice((1, 1, 2, 3)))], calm=0.7)

    @override
    def examine(self, heard: bytes) -> None:
        for status in _STATUS.findall(heard):
            if int(status) in _UNTYPED:
                raise BrokenPromiseError(f"an error without a type: {heard[:2_000]!r}")


class WebSocketListener(GatewayListener):
    """The gateway, and clients of WebSocket."""

    name = "websocket"

    @classmethod
    @override
    def conversation(cls, random: Random) -> Conversation:
        return disturbed(random, [websocket.session(random) for _ in range(random.choice((1, 1, 2, 3)))], calm=0.7)

    @override
    def examine(self, heard: bytes) -> None:
        head, _, rest = heard.partition(b"\r\n\r\n")
        if not head.startswith(UPGRADED):
            if any(int(status) in _UNTYPED for status in _STATUS.findall(heard)):
                raise BrokenPromiseError(f"an error without a type: {heard[:2_000]!r}")
            return
        for opcode, payload in _frames(rest):
            if opcode == websocket.CLOSE and int.from_bytes(payload[:2]) == INTERNAL_ERROR:
                raise BrokenPromiseError(f"a session ended with an internal error: {payload!r}")
            if opcode == websocket.TEXT and not isinstance(json.loads(payload), dict):
                raise BrokenPromiseError(f"a frame is no JSON object: {payload[:200]!r}")

    @override
    def reply(self, name: str, form: bytes, heard: Sequence[bytes]) -> bytes:
        """Say something about a message that the client received."""
        head, _, rest = heard[0].partition(b"\r\n\r\n")
        if not head.startswith(UPGRADED):
            return b""
        ids = [
            found
            for opcode, payload in _frames(rest)
            if opcode == websocket.TEXT and isinstance(found := json.loads(payload).get("messageId"), str)
        ]
        random = Random(form)
        return websocket.command(random, random.choice(ids)) if ids else b""


def _frames(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield opcode and payload of each whole frame of a server."""
    start = 0
    while len(data) - start >= 2:
        opcode, size, start = data[start] & 15, data[start + 1] & 127, start + 2
        if size >= 126:
            count = 2 if size == 126 else 8
            size, start = int.from_bytes(data[start : start + count]), start + count
        if start + size > len(data):
            return
        yield opcode, data[start : start + size]
        start += size
