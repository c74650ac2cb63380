"""The command ACK. It is answered only when the acknowledgement is durable (I11)."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import Any

from heliograph.actors.broker.protocol.command_limits import IDS_IN_TURN
from heliograph.actors.broker.protocol.connection import PulsarConnection
from heliograph.actors.broker.protocol.consumer_commands import ConsumerCommands, Subscribed
from heliograph.actors.broker.records.position import Position, from_unsigned
from heliograph.actors.broker.subscription.subscription import Subscription
from heliograph.base.clock import wall_ms
from heliograph.base.errors import BadRequestError, NotFoundError, PersistenceError, UnsupportedError
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.message_id import bits_of
from heliograph.protocol.pulsar_pb2 import BaseCommand
from heliograph.protocol.server_error import code_of

UNKNOWN_MESSAGES_MAX = 4_096  # of a batch that no consumer has: its acknowledgement is kept as it comes  # I15


class AckCommands:
    """The acknowledgements of one connection's consumers."""

    def __init__(self, connection: PulsarConnection, consumers: ConsumerCommands) -> None:
        self.connection = connection
        self._consumers = consumers
        connection.handlers[BaseCommand.ACK] = self._ack
        connection.refusals[BaseCommand.ACK] = lambda command, *_: consumers.close_refused(command.ack)

    def _ack(self, command: BaseCommand, section: memoryview | None) -> Coroutine[Any, Any, None] | None:
        ack = command.ack
        if len(ack.message_id) > IDS_IN_TURN and ack.ack_type == ack.INDIVIDUAL:
            self._consumers.long_lists += 1
            return self._ack_many(ack)
        self._ack_at_once(ack)
        return None

    async def _ack_many(self, ack: pb.CommandAck) -> None:
        """Acknowledge a long list in parts, between which other clients have a turn. The answer comes with the last."""
        ids = list(ack.message_id)
        refused: Exception | None = None
        try:
            async with self._consumers.in_turn:
                for start in range(0, len(ids), IDS_IN_TURN):
                    part = pb.CommandAck(consumer_id=ack.consumer_id, ack_type=ack.ack_type)
                    if start + IDS_IN_TURN >= len(ids):
                        part.CopyFrom(ack)
                        part.ClearField("message_id")
                    part.message_id.extend(ids[start : start + IDS_IN_TURN])
                    refused = self._ack_at_once(part, refused)
                    await asyncio.sleep(0)
        finally:
            self._consumers.long_lists -= 1

    def _ack_at_once(self, ack: pb.CommandAck, error: Exception | None = None) -> Exception | None:
        """Acknowledge, and answer if that is asked for. Return the error to answer with, ``error`` of an earlier part
        among them."""
        found = self._consumers.consumers.get(ack.consumer_id)
        durable: asyncio.Future[None] | None = None
        if found is None:
            error = NotFoundError(f"there is no consumer {ack.consumer_id} on this connection")
        elif ack.HasField("txnid_most_bits") or ack.HasField("txnid_least_bits"):
            error = UnsupportedError("transactions are not offered by this version")
        elif ack.ack_type == ack.CUMULATIVE and found.subscription.kind.is_shared:
            error = BadRequestError("a shared subscription takes no cumulative acknowledgements", field="ackType")
        else:
            found.consumer.acknowledged_ms = wall_ms()
            durable, refused = _acknowledge(found, ack)
            error = refused or error
        if not ack.HasField("request_id"):
            pass
        elif error is not None or durable is None:
            self._answer(ack.consumer_id, ack.request_id, error)
        else:
            durable.add_done_callback(partial(self._durable, ack.consumer_id, ack.request_id))
        return error

    def _durable(self, consumer_id: int, request_id: int, durable: asyncio.Future[None]) -> None:
        error = PersistenceError("the write was cancelled") if durable.cancelled() else durable.exception()  # I11
        self._answer(consumer_id, request_id, error)

    def _answer(self, consumer_id: int, request_id: int, error: BaseException | None) -> None:
        answer = pb.CommandAckResponse(consumer_id=consumer_id, request_id=request_id)
        if error is not None:
            answer.error, answer.message = code_of(error), str(error)
        self.connection.send(BaseCommand(type=BaseCommand.ACK_RESPONSE, ack_response=answer))


def _acknowledge(found: Subscribed, ack: pb.CommandAck) -> tuple[asyncio.Future[None] | None, BadRequestError | None]:
    """Acknowledge the messages of a command, but long bits that the cursor would keep as they come. Return what is to
    be waited for, and why some were refused."""
    named, refused = [], None
    for data in ack.message_id:
        position = from_unsigned(data.ledger_id, data.entry_id)
        bits = bits_of(words) if (words := data.ack_set) else None
        try:
            if bits and bits.bit_length() > UNKNOWN_MESSAGES_MAX:
                _check_known(found.subscription, position, bits)
            named.append((position, bits))
        except BadRequestError as error:
            refused = error
    if ack.ack_type != ack.CUMULATIVE:
        return found.subscription.acknowledge(named, found.consumer), refused
    durable = None
    for position, bits in named:
        durable = found.subscription.acknowledge_cumulative(position, bits)
    return durable, refused


def _check_known(subscription: Subscription, position: Position, bits: int) -> None:
    """Raise BadRequestError if nobody has an entry of which some messages are acknowledged, as after a reconnect: how
    many it has is not known then."""
    index = subscription.chain.find(position)
    if index is None or subscription.cursor.unacknowledged_bits(index) is not None:
        return
    if subscription.dispatcher.messages_of(index) < 0:
        raise BadRequestError(
            f"the acknowledgement of {position.ledger_id}:{position.entry_id}, which no consumer has, is for"
            f" {bits.bit_length()} messages",
            field="ack_set",
            limit=f"{UNKNOWN_MESSAGES_MAX} messages",
        )
