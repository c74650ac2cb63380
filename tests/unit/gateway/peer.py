"""A WebSocket peer that talks ASGI to the gateway, without a socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, MutableMapping
from typing import Any

import httpx
from fastapi import FastAPI

WAIT_SECONDS = 60.0  # a test that waits longer for an answer has failed


class Peer:
    """One WebSocket connection: the messages from the app and to the app."""

    def __init__(
        self,
        app: FastAPI,
        path: str,
        frames_waiting_max: int = 0,
        headers: Mapping[str, str] | None = None,
        address: str = "127.0.0.1",
    ) -> None:
        url = httpx.URL(f"ws://127.0.0.1:8080{path}")
        given = {"host": "127.0.0.1:8080"} | {name.lower(): value for name, value in (headers or {}).items()}
        self._scope = {
            "type": "websocket",
            "path": url.path,
            "raw_path": url.raw_path.split(b"?")[0],
            "query_string": url.query,
            "headers": [(name.encode(), value.encode()) for name, value in given.items()],
            "client": (address, 50_000),
            "subprotocols": [],
            "extensions": {"websocket.http.response": {}},
            "app": app,
        }
        self._app = app
        self._to_app: asyncio.Queue[MutableMapping[str, Any]] = asyncio.Queue()
        self._from_app: asyncio.Queue[MutableMapping[str, Any]] = asyncio.Queue(frames_waiting_max)
        self.status = 0  # 101, or the HTTP status of the refusal
        self.body: dict[str, Any] = {}

    async def upgrade(self) -> None:
        self._to_app.put_nowait({"type": "websocket.connect"})
        self._task = asyncio.ensure_future(self._app(self._scope, self._to_app.get, self._from_app.put))
        first = await self._next()
        if first["type"] == "websocket.accept":
            self.status = 101
            return
        assert first["type"] == "websocket.http.response.start", first
        self.status = first["status"]
        self.body = json.loads((await self._next())["body"])

    def send(self, frame: object) -> None:
        """Send a frame: text as it is, anything else as JSON."""
        text = frame if isinstance(frame, str) else json.dumps(frame)
        self._to_app.put_nowait({"type": "websocket.receive", "text": text})

    def send_bytes(self, data: bytes) -> None:
        self._to_app.put_nowait({"type": "websocket.receive", "bytes": data})

    async def receive(self) -> dict[str, Any]:
        """Return the app's next frame."""
        message = await self._next()
        assert message["type"] == "websocket.send", message
        frame = json.loads(message["text"])
        assert isinstance(frame, dict)
        return frame

    async def closed(self) -> tuple[int, str]:
        """Return the code and reason with which the app closes."""
        message = await self._next()
        assert message["type"] == "websocket.close", message
        return message["code"], message["reason"]

    def is_quiet(self) -> bool:
        """Return whether every message that the app sent was received."""
        return self._from_app.empty()

    async def leave(self) -> None:
        """Disconnect, and wait until the app has ended the session."""
        self._to_app.put_nowait({"type": "websocket.disconnect", "code": 1001})
        await asyncio.wait_for(self._task, WAIT_SECONDS)

    async def _next(self) -> MutableMapping[str, Any]:
        return await asyncio.wait_for(self._from_app.get(), WAIT_SECONDS)
