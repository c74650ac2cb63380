"""A broker that stores nothing: the most that any broker allows a client, because it answers each SEND at once.

``python -m tests.bench.peers.receipts_host`` serves what a producer of Pulsar's protocol needs: one topic of any name,
without partitions, and receipts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.frame import MESSAGE_BYTES_MAX, PulsarFrameDecoder, encode_command
from heliograph.protocol.pulsar_pb2 import BaseCommand
from tests.bench.serving import serve


class ReceiptsConnection(asyncio.Protocol):
    """The connection of one client. Its answers leave together, after each read of the socket."""

    def __init__(self, service_url: Callable[[], str]) -> None:
        self._service_url = service_url
        self._decoder = PulsarFrameDecoder()
        self._transport: asyncio.WriteTransport | None = None
        self._entries = 0
        self._receipt = BaseCommand(type=BaseCommand.SEND_RECEIPT)  # filled for each entry

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # uvloop's is no subclass

    def data_received(self, data: bytes) -> None:
        answers = [self._answer(command) for command, _ in self._decoder.feed(data)]
        assert self._transport is not None, "it is connected"
        self._transport.write(b"".join(answers))

    def _answer(self, command: BaseCommand) -> bytes:
        if command.type == BaseCommand.SEND:
            receipt = self._receipt.send_receipt
            receipt.producer_id, receipt.sequence_id = command.send.producer_id, command.send.sequence_id
            receipt.message_id.ledger_id, receipt.message_id.entry_id = 1, self._entries
            self._entries += 1
            return encode_command(self._receipt)
        answer = self._rare_answer(command)
        return b"" if answer is None else encode_command(answer)

    def _rare_answer(self, command: BaseCommand) -> BaseCommand | None:
        if command.type == BaseCommand.CONNECT:
            connected = pb.CommandConnected(
                server_version="receipts",
                protocol_version=command.connect.protocol_version,
                max_message_size=MESSAGE_BYTES_MAX,
            )
            return BaseCommand(type=BaseCommand.CONNECTED, connected=connected)
        if command.type == BaseCommand.PARTITIONED_METADATA:
            partitions = pb.CommandPartitionedMetadataResponse(
                request_id=command.partitioned_metadata.request_id,
                partitions=0,
                response=pb.CommandPartitionedMetadataResponse.SUCCESS,
            )
            return BaseCommand(type=BaseCommand.PARTITIONED_METADATA_RESPONSE, partitioned_metadata_response=partitions)
        if command.type == BaseCommand.LOOKUP:
            found = pb.CommandLookupResponse(
                request_id=command.lookup.request_id,
                response=pb.CommandLookupResponse.CONNECT,
                url=self._service_url(),
                authoritative=True,
            )
            return BaseCommand(type=BaseCommand.LOOKUP_RESPONSE, lookup_response=found)
        if command.type == BaseCommand.PRODUCER:
            success = pb.CommandProducerSuccess(
                request_id=command.producer.request_id, producer_name="bench", last_sequence_id=-1, producer_ready=True
            )
            return BaseCommand(type=BaseCommand.PRODUCER_SUCCESS, producer_success=success)
        if command.type == BaseCommand.CLOSE_PRODUCER:
            closed = pb.CommandSuccess(request_id=command.close_producer.request_id)
            return BaseCommand(type=BaseCommand.SUCCESS, success=closed)
        return BaseCommand(type=BaseCommand.PONG, pong=pb.CommandPong()) if command.type == BaseCommand.PING else None


async def start() -> tuple[str, Callable[[], Awaitable[None]]]:
    """Start the server; return its service URL and what stops it."""
    url = ""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: ReceiptsConnection(lambda: url), "127.0.0.1", 0)
    url = f"pulsar://127.0.0.1:{server.sockets[0].getsockname()[1]}"

    async def stop() -> None:
        server.close()

    return url, stop


if __name__ == "__main__":
    serve(start)
