"""Pulsar's WebSocket reader: reads a topic from a position, without a durable subscription."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from fastapi import APIRouter
from starlette.websockets import WebSocket
from typing_extensions import override

from heliograph.base.errors import TopicTerminatedError
from heliograph.gateway.services import ServicesDep
from heliograph.gateway.shapes.topics import topic_name
from heliograph.gateway.websocket.delivery import RECEIVE_SECONDS, DeliverySession
from heliograph.gateway.websocket.frames import end_of_topic, is_end_of_topic_question
from heliograph.gateway.websocket.query import ReaderQuery
from heliograph.gateway.websocket.upgrade import query_of, run_until_first, serve
from heliograph.gateway.websocket.windows import ReaderWindow

router = APIRouter()


class ReaderSession(DeliverySession):
    """One session with a WebSocket reader: messages out, confirmations in."""

    async def run(self) -> None:
        """Serve the peer until it leaves."""
        await run_until_first(self._push(), self._read_frames())

    async def _push(self) -> None:
        with suppress(TopicTerminatedError):
            while True:
                room = await self._wait_for_room()
                for message in await self._source.receive_many(room, RECEIVE_SECONDS):
                    await self._send_message(message)
        await asyncio.Event().wait()  # no message will follow; the peer may still ask for the end of the topic

    @override
    async def _on_frame(self, text: str | None) -> None:
        if is_end_of_topic_question(text):
            await self._send(end_of_topic(self._source.has_reached_end))
        else:
            self._window.on_settled(None)
            self._room.set()


@router.websocket("/ws/v2/reader/{domain}/{tenant}/{namespace}/{topic}")
async def reader_endpoint(
    websocket: WebSocket, services: ServicesDep, domain: str, tenant: str, namespace: str, topic: str
) -> None:
    async def open_session() -> ReaderSession:
        name = topic_name(domain, tenant, namespace, topic)
        query = await query_of(ReaderQuery, websocket)
        reader = await services.client.reader(str(name), receiver_bytes_max=bytes_max, **query.options())
        return ReaderSession(websocket, services, reader, ReaderWindow(query.receiver_queue), query.payloadFormat)

    with services.receivers.taken() as bytes_max:
        await serve(websocket, services, "reader", open_session)
