"""Pulsar's protocol with the least client: entries are checked, and their messages are counted by their metadata."""

from __future__ import annotations

from typing_extensions import override

from heliograph.protocol import entry as entries
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.frame import PulsarFrameDecoder, encode_command
from tools.laboratory.foreign.protocols.connection import Reader

PROTOCOL_VERSION = 19
PERMITS = 5_000  # messages asked for ahead
SUBSCRIPTION = "least"
_T = pb.BaseCommand


class PulsarReader(Reader):
    """A new exclusive subscription on one topic, which acknowledges nothing."""

    def __init__(self, stream: str, wanted: int) -> None:
        super().__init__(stream, wanted)
        self._decoder = PulsarFrameDecoder(keeps_broker_metadata=True)
        self._due = PERMITS

    @override
    def greet(self) -> None:
        self.begin()
        connect = pb.CommandConnect(client_version="least", protocol_version=PROTOCOL_VERSION)
        self.write(encode_command(_T(type=_T.CONNECT, connect=connect)))

    @override
    def take(self, data: bytes) -> None:
        for command, section in self._decoder.feed(data):
            if command.type == _T.MESSAGE and section is not None:
                self._count(section)
            elif command.type == _T.CONNECTED:
                self._subscribe()
            elif command.type == _T.SUCCESS:
                self._ask()
            elif command.type == _T.PING:
                self.write(encode_command(_T(type=_T.PONG, pong=pb.CommandPong())))
            elif command.type == _T.ERROR:
                raise RuntimeError(f"the broker answers {command.error.message}")

    def _subscribe(self) -> None:
        subscribe = pb.CommandSubscribe(
            topic=self.stream,
            subscription=SUBSCRIPTION,
            sub_type=pb.CommandSubscribe.EXCLUSIVE,
            consumer_id=1,
            request_id=1,
            durable=False,
            initial_position=pb.CommandSubscribe.EARLIEST,
        )
        self.write(encode_command(_T(type=_T.SUBSCRIBE, subscribe=subscribe)))

    def _count(self, section: memoryview) -> None:
        metadata, _ = entries.parse(section, check=True)
        messages = entries.message_count(metadata)
        self._due += messages
        if self._due * 2 >= PERMITS:
            self._ask()
        self.note(messages, len(section))

    def _ask(self) -> None:
        flow = pb.CommandFlow(consumer_id=1, message_permits=self._due)
        self._due = 0
        self.write(encode_command(_T(type=_T.FLOW, flow=flow)))
