"""A well-behaved client of Pulsar's protocol. It remembers what it was confirmed, and reads it again."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from typing import Any

from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.batch import encode_entry_of
from heliograph.protocol.entry import iterate_batch, plain_payload, split
from heliograph.protocol.frame import PulsarFrameDecoder, encode_command, encode_payload_frame
from tests.fuzz.listener import BrokenPromiseError

PERMITS = 1_000
_T = pb.BaseCommand
_Answer = tuple[pb.BaseCommand, bytes | None]


class PulsarPeer:
    """One connection that publishes to one topic and consumes it."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._decoder = PulsarFrameDecoder()
        self._answers: deque[_Answer] = deque()
        self._numbers = itertools.count(1)
        self._confirmed: list[bytes] = []

    async def start(self, host: str, port: int, connect: pb.CommandConnect) -> None:
        """Connect, and become a producer and the only consumer of the topic."""
        self._reader, self._writer = await asyncio.open_connection(host, port)
        await self._ask(_T.CONNECTED, connect=connect)
        await self._ask(_T.LOOKUP_RESPONSE, lookup=pb.CommandLookup(topic=self._topic, request_id=1))
        producer = pb.CommandProducer(topic=self._topic, producer_id=1, request_id=2)
        await self._ask(_T.PRODUCER_SUCCESS, producer=producer)
        subscribe = pb.CommandSubscribe(
            topic=self._topic, subscription="work", sub_type=pb.CommandSubscribe.EXCLUSIVE, consumer_id=1, request_id=3
        )
        await self._ask(_T.SUCCESS, subscribe=subscribe)

    async def work(self) -> None:
        """Publish a message, receive it and acknowledge it."""
        number = next(self._numbers)
        payload = b"confirmed %d" % number
        self._say(flow=pb.CommandFlow(consumer_id=1, message_permits=1))
        send = pb.CommandSend(producer_id=1, sequence_id=number)
        command = _T(type=_T.SEND, send=send)
        self._writer.write(encode_payload_frame(command, encode_entry_of("work", number, 1, [payload])))
        receipt, message = None, None
        while receipt is None or message is None:
            answer, section = await self._next()
            if answer.type == _T.SEND_RECEIPT:
                receipt = answer.send_receipt
            elif answer.type == _T.MESSAGE and section is not None:
                message = answer.message.message_id
                self._expect(_payloads(section), [payload])
            else:
                raise BrokenPromiseError(f"the client that works was told {answer}")
        self._confirmed.append(payload)
        ack = pb.CommandAck(
            consumer_id=1, ack_type=pb.CommandAck.INDIVIDUAL, message_id=[message], request_id=1_000 + number
        )
        response = await self._ask(_T.ACK_RESPONSE, ack=ack)
        if response.ack_response.HasField("error"):
            raise BrokenPromiseError(f"an acknowledgement was refused: {response}")

    async def audit(self) -> None:
        """Read the whole topic with another consumer."""
        subscribe = pb.CommandSubscribe(
            topic=self._topic, subscription="audit", sub_type=pb.CommandSubscribe.EXCLUSIVE, consumer_id=2,
            request_id=4, durable=False, initial_position=pb.CommandSubscribe.EARLIEST,
        )  # fmt: skip
        await self._ask(_T.SUCCESS, subscribe=subscribe)
        found: list[bytes] = []
        while len(found) < len(self._confirmed):
            self._say(flow=pb.CommandFlow(consumer_id=2, message_permits=1))
            answer, section = await self._next()
            if answer.type != _T.MESSAGE or section is None:
                raise BrokenPromiseError(f"the client that reads was told {answer}")
            found += _payloads(section)
        self._expect(found, self._confirmed)
        await self._ask(_T.SUCCESS, close_consumer=pb.CommandCloseConsumer(consumer_id=2, request_id=5))

    def close(self) -> None:
        """Hang up."""
        self._writer.close()

    @staticmethod
    def _expect(found: list[bytes], wanted: list[bytes]) -> None:
        if found != wanted:
            raise BrokenPromiseError(f"a client read {found[-3:]!r:.200} where {wanted[-3:]!r:.200} was confirmed")

    def _say(self, **command: Any) -> None:
        (name,) = command
        self._writer.write(encode_command(_T(type=name.upper(), **command)))

    async def _ask(self, kind: int, **command: Any) -> pb.BaseCommand:
        self._say(**command)
        answer, _ = await self._next()
        if answer.type != kind:
            raise BrokenPromiseError(f"the client that works was told {answer} instead of {_T.Type.Name(kind)}")
        return answer

    async def _next(self) -> _Answer:
        while True:
            while not self._answers:
                data = await self._reader.read(1 << 16)
                if not data:
                    raise BrokenPromiseError("the client that works was disconnected")
                for command, section in self._decoder.feed(data):
                    self._answers.append((command, None if section is None else bytes(section)))
            answer = self._answers.popleft()
            if answer[0].type == _T.PING:
                self._say(pong=pb.CommandPong())
            elif answer[0].type != _T.ACTIVE_CONSUMER_CHANGE:
                return answer


def _payloads(section: bytes) -> list[bytes]:
    metadata, payload = split(section)
    return [message for _, message in iterate_batch(metadata, plain_payload(metadata, payload))]
