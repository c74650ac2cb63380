"""A process between one cell and a broker: it keeps answers back, goes away and comes back.

It is forked from the cell before the cell has threads, and ends with it. Brokers that look-ups name are replaced by
the gate, so that a client stays behind it.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections import Counter
from typing import Any

from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.frame import PulsarFrameDecoder, encode_command, encode_payload_frame

_T = pb.BaseCommand
REQUEST_BYTES_MAX = 1 << 16


class Gate:
    """The cell's end of it. Every method returns when the gate has done it.

    Attributes:
        url: The address to connect to instead of the broker's.
    """

    def __init__(self, broker_url: str) -> None:
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket = here
        self.process = os.fork()
        if self.process == 0:
            here.close()
            try:
                asyncio.run(_Server(broker_url, there).serve())
            finally:
                os._exit(0)
        there.close()
        self.url: str = self._ask("url")

    def hold(self, *kinds: str) -> None:
        """Keep answers of these types back, such as SEND_RECEIPT, and what follows them on their connections."""
        self._ask("hold", *kinds)

    def release(self) -> None:
        """Let everything pass again."""
        self._ask("release")

    def leave(self) -> None:
        """End all connections and refuse new ones."""
        self._ask("leave")

    def come_back(self) -> None:
        """Take connections again."""
        self._ask("come_back")

    def has_seen(self, kind: str, count: int) -> bool:
        """Return whether clients have sent ``count`` commands of a type since the gate began."""
        return bool(self._ask("has_seen", kind, count))

    def close(self) -> None:
        """End the gate's process; a forked child of the cell does not."""
        self._socket.close()
        os.waitpid(self.process, 0)

    def _ask(self, *request: Any) -> Any:
        self._socket.send(json.dumps(request).encode())
        answer = self._socket.recv(REQUEST_BYTES_MAX)
        assert answer, "the gate has ended"
        return json.loads(answer)


class _Server:
    def __init__(self, broker_url: str, control: socket.socket) -> None:
        host, _, port = broker_url.removeprefix("pulsar://").split(",")[0].rpartition(":")
        self.broker = host, int(port)
        self.url = ""
        self.held: set[int] = set()
        self.seen: Counter[str] = Counter()
        self.pairs: set[_Pair] = set()
        self._control = control
        self._listener: asyncio.Server | None = None
        self._port = 0

    async def serve(self) -> None:
        loop = asyncio.get_running_loop()
        self._control.setblocking(False)
        await self.come_back()
        self.url = f"pulsar://127.0.0.1:{self._port}"
        while request := await loop.sock_recv(self._control, REQUEST_BYTES_MAX):
            name, *arguments = json.loads(request)
            answer = self.url if name == "url" else await getattr(self, name)(*arguments)
            await loop.sock_sendall(self._control, json.dumps(answer).encode())

    async def hold(self, *kinds: str) -> None:
        self.held = {_T.Type.Value(kind) for kind in kinds}

    async def release(self) -> None:
        self.held = set()
        for pair in self.pairs:
            pair.pass_held()

    async def leave(self) -> None:
        if self._listener is not None:
            self._listener.close()
        for pair in list(self.pairs):
            pair.end()

    async def come_back(self) -> None:
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(lambda: _Pair(self), "127.0.0.1", self._port, reuse_address=True)
        self._port = self._listener.sockets[0].getsockname()[1]

    async def has_seen(self, kind: str, count: int) -> bool:
        return self.seen[kind] >= count


class _Pair(asyncio.Protocol):
    """One connection of a client, with its connection to the broker."""

    def __init__(self, server: _Server) -> None:
        self._server = server
        self._decoder = PulsarFrameDecoder()
        self._client: Any = None
        self._broker: Any = None
        self._early: list[bytes] = []  # from the client, before the broker has taken the connection
        self._held: list[bytes] = []
        self._connecting: asyncio.Task[Any] | None = None

    def connection_made(self, transport: Any) -> None:
        self._client = transport
        self._server.pairs.add(self)
        loop = asyncio.get_running_loop()
        self._connecting = loop.create_task(loop.create_connection(lambda: _BrokerEnd(self), *self._server.broker))

    def data_received(self, data: bytes) -> None:
        for command, _ in self._decoder.feed(data):
            self._server.seen[_T.Type.Name(command.type)] += 1
        if self._broker is None:
            self._early.append(data)
        else:
            self._broker.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.end()

    def on_broker(self, transport: Any) -> None:
        if self not in self._server.pairs:
            transport.abort()  # the client has gone meanwhile
            return
        self._broker = transport
        transport.write(b"".join(self._early))

    def on_answer(self, command: pb.BaseCommand, section: memoryview | None) -> None:
        if command.type == _T.LOOKUP_RESPONSE:
            command.lookup_response.url = self._server.url
        frame = encode_command(command) if section is None else encode_payload_frame(command, section)
        if self._held or command.type in self._server.held:
            self._held.append(frame)
        else:
            self._client.write(frame)

    def pass_held(self) -> None:
        held, self._held = self._held, []
        if not self._client.is_closing():
            self._client.write(b"".join(held))

    def end(self) -> None:
        self._server.pairs.discard(self)
        for transport in (self._client, self._broker):
            if transport is not None:
                transport.abort()


class _BrokerEnd(asyncio.Protocol):
    def __init__(self, pair: _Pair) -> None:
        self._pair = pair
        self._decoder = PulsarFrameDecoder(keeps_broker_metadata=True)

    def connection_made(self, transport: Any) -> None:
        self._pair.on_broker(transport)

    def data_received(self, data: bytes) -> None:
        for command, section in self._decoder.feed(data):
            self._pair.on_answer(command, section)

    def connection_lost(self, exc: Exception | None) -> None:
        self._pair.end()
