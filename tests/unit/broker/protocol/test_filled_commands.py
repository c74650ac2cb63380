"""Commands that are filled again for each entry carry nothing of the entry before."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from heliograph.actors.broker.protocol.consumer_commands import COMMON_MESSAGES_MAX, ConsumerCommands
from heliograph.actors.broker.protocol.producer_commands import ProducerCommands
from heliograph.actors.broker.records.position import NOWHERE, Position
from heliograph.actors.broker.records.topic_entry import TopicEntry
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.pulsar_pb2 import BaseCommand

ENTRY = TopicEntry(b"x", 1, False, False, None, False, 0, b"")


def connection(sent: list[bytes]) -> Any:
    return SimpleNamespace(
        handlers={},
        refusals={},
        on_lost=[],
        opened=[],
        on_writable=[],
        takes_broker_metadata=False,
        published=None,
        send=lambda command: sent.append(command.SerializeToString()),
        send_receipt=lambda command: sent.append(command.SerializeToString()),
        send_payload=lambda command, section, is_alone: sent.append(command.SerializeToString()),
    )


def test_receipts() -> None:
    sent: list[bytes] = []
    commands = ProducerCommands(connection(sent))
    given = [(3, 5, 9, Position(7, 1)), (4, 6, 0, Position(7, 2)), (4, 7, 0, NOWHERE), (3, 8, 10, Position(8, 0))]
    expected = []
    for producer_id, sequence_id, highest, position in given:
        commands.receipt(cast(Any, SimpleNamespace(producer_id=producer_id)), sequence_id, highest, position)
        receipt = pb.CommandSendReceipt(producer_id=producer_id, sequence_id=sequence_id)
        receipt.message_id.ledger_id, receipt.message_id.entry_id = (number % (1 << 64) for number in position)
        if highest:
            receipt.highest_sequence_id = highest
        expected.append(BaseCommand(type=BaseCommand.SEND_RECEIPT, send_receipt=receipt).SerializeToString())
    assert sent == expected


def test_messages() -> None:
    sent: list[bytes] = []
    commands = ConsumerCommands(connection(sent))
    given: list[tuple[int, int, int, int | None, int | None]] = [
        (1, -1, 0, None, None),
        (2, 3, 0, None, None),
        (1, -1, 2, 0b101, 4),
        (1, -1, 0, None, None),
        (3, 3, 1, None, None),
        (2, 3, 0, None, None),
        (2, 3, 0, None, 0),
        (1, -1, 0, None, 5),
        (1, -1, 0, None, 6),
        (2, 3, 1, None, 5),
        (1, -1, 0, None, 5),
        (1, -1, 0, None, None),
        *((2, partition, 0, None, None) for partition in range(COMMON_MESSAGES_MAX + 1)),
    ]
    expected = []
    for entry_id, (consumer_id, partition, count, bits, epoch) in enumerate(given):
        consumer = SimpleNamespace(consumer_id=consumer_id, partition=partition, epoch=epoch)
        commands.push(cast(Any, consumer), Position(7, entry_id), ENTRY, count, bits, False, 2 * count)
        message = pb.CommandMessage(consumer_id=consumer_id)
        message.message_id.ledger_id, message.message_id.entry_id = 7, entry_id
        if partition >= 0:
            message.message_id.partition = partition
        if count:
            message.redelivery_count, message.crashes = count, 2 * count
        if bits is not None:
            message.ack_set.append(bits)
        if epoch is not None:
            message.consumer_epoch = epoch
        expected.append(BaseCommand(type=BaseCommand.MESSAGE, message=message).SerializeToString())
    assert sent == expected


def test_a_consumer_with_an_epoch_has_a_command_that_is_filled_again() -> None:
    sent: list[Any] = []
    made = connection([])
    made.send_payload = lambda command, section, is_alone: sent.append(command)
    commands = ConsumerCommands(made)
    for entry_id in range(2):
        consumer = SimpleNamespace(consumer_id=1, partition=-1, epoch=0)
        commands.push(cast(Any, consumer), Position(7, entry_id), ENTRY, 0, None, False, 0)
    assert sent[0] is sent[1]
