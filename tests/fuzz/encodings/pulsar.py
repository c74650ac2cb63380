"""What hostile clients of a broker say: commands of every type, entries, and frames around them. Pure."""

from __future__ import annotations

import struct
from random import Random
from typing import Any

import crc32c
from google.protobuf.descriptor import FieldDescriptor

from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.batch import encode_entry_of
from tests.fuzz import values
from tests.fuzz.conversation import Message
from tests.fuzz.encodings import protobuf, schemas
from tests.fuzz.encodings.protobuf import Tree

TOPICS = ("a", "b-partition-1", "persistent://public/default/a", "non-persistent://public/default/v")
STRANGE_TOPICS = ("x://y", "nobody/nothing/z", "", "persistent://pulsar/system/transaction_coordinator_assign", "a/b")
SUBSCRIPTIONS = ("s", "t", "pulsar.dedup", "__compaction")
TEXTS = (*SUBSCRIPTIONS, "public/default", "public/none", ".*", "public/default/.*", "producer", "")
IDS = (0, 1, 2)
_T = pb.BaseCommand
_COMMANDS = [field for field in _T.DESCRIPTOR.fields if field.message_type is not None]
_KINDS = {value.name.lower(): value.number for value in _T.Type.DESCRIPTOR.values}
_TO_BROKERS = ("lookup", "partitioned_metadata", "producer", "send", "subscribe", "flow", "ack", "seek", "unsubscribe",
               "redeliver_unack", "close_producer", "close_consumer", "get_topics_of_namespace", "get_last_message_id",
               "consumer_stats", "get_schema", "get_or_create_schema", "watch_topic_list", "watch_topic_list_close",
               "auth_response", "ping", "new_txn", "topic_migrated", "connect")  # fmt: skip


def conversation(random: Random, connect: pb.CommandConnect, topics: tuple[str, ...] = TOPICS) -> list[Message]:
    """Return what one client says: CONNECT, ordinary work, and commands of any type with any fields."""
    messages: list[Message] = []
    if random.random() < 0.97:
        tree = protobuf.of_message(_T(type=_T.CONNECT, connect=connect))
        messages.append(frame(random, protobuf.mutated(random, tree) if random.random() < 0.05 else tree))
    ordinary = list(_ordinary(random, random.choice(topics)))
    messages += ordinary[: random.randint(0, len(ordinary))]
    for _ in range(random.randint(1, 10)):
        name = random.choice(_TO_BROKERS if random.random() < 0.85 else [field.name for field in _COMMANDS])
        if name == "ack" and random.random() < 0.5:
            message: Message = ("ack", random.randbytes(8))
        else:
            message = any_command(random, name, topics)
        messages.insert(random.randint(min(1, len(messages)), len(messages)), message)
    return messages


def any_command(random: Random, name: str, topics: tuple[str, ...]) -> bytes:
    """Return the frame of a command of that name with any fields, mutated more often than not."""
    fields = {field.name: field for field in _COMMANDS}
    kind = _KINDS.get(name, 2)
    if name not in fields:
        return frame(random, [protobuf.Field(1, protobuf.VARINT, values.number(random))])
    field = fields[name]

    def pool(random: Random, inner: FieldDescriptor) -> Any:
        return _sensible(random, inner, topics)

    share = random.choice((0.1, 0.5, 0.9))
    body = protobuf.tree_of(random, field.message_type, pool, share=share)
    tree: Tree = [protobuf.Field(1, protobuf.VARINT, kind), protobuf.Field(field.number, protobuf.BYTES, body)]
    if random.random() < 0.5:
        tree = protobuf.mutated(random, tree)
    return frame(random, tree, entry(random) if name == "send" else None)


def frame(random: Random, tree: Tree, section: bytes | None = None) -> bytes:
    """Return a frame with right lengths; rarely with wrong ones."""
    body = protobuf.encode(tree)
    length, size = 4 + len(body) + len(section or b""), len(body)
    if random.random() < 0.01:
        length = random.choice(values.UNSIGNED) % (1 << 32)
    if random.random() < 0.01:
        size = random.choice(values.UNSIGNED) % (1 << 32)
    return struct.pack(">II", length, size) + body + (section or b"")


def entry(random: Random) -> bytes:
    """Return the payload section of SEND: metadata with any fields, and the checksum that belongs to it, mostly."""
    if random.random() < 0.2:
        return schemas.packed_entry(random)
    if random.random() < 0.3:
        texts = [values.octets(random)[:1_000] for _ in range(random.randint(1, 4))]
        return encode_entry_of("p", random.randint(0, 9), 1, texts)

    def pool(random: Random, inner: FieldDescriptor) -> Any:
        if inner.name == "num_messages_in_batch" and random.random() < 0.7:
            return random.randint(0, 3)
        return _sensible(random, inner, TOPICS)

    metadata = protobuf.tree_of(random, pb.MessageMetadata.DESCRIPTOR, pool, share=random.choice((0.1, 0.5)))
    packed = protobuf.encode(protobuf.mutated(random, metadata) if random.random() < 0.5 else metadata)
    payload = _payload(random)
    size = random.choice(values.UNSIGNED) % (1 << 32) if random.random() < 0.05 else len(packed)
    checked = struct.pack(">I", size) + packed + payload
    form = random.randrange(12)
    if form == 0:
        return checked  # without a checksum
    if form == 1:
        return struct.pack(">HI", 0x0E01, random.getrandbits(32)) + checked
    section = struct.pack(">HI", 0x0E01, crc32c.crc32c(checked)) + checked
    if form == 2:
        front = protobuf.encode(protobuf.tree_of(random, pb.BrokerEntryMetadata.DESCRIPTOR, pool))
        return struct.pack(">HI", 0x0E02, len(front) + random.choice((0, 0, 1, 1 << 31))) + front + section
    if form == 3:
        return section[: random.randrange(len(section) + 1)]
    return section


def _payload(random: Random) -> bytes:
    parts = []
    for _ in range(random.randint(0, 3)):
        body = values.octets(random)[:500]

        def pool(random: Random, inner: FieldDescriptor, size: int = len(body)) -> Any:
            return size if inner.name == "payload_size" and random.random() < 0.8 else None

        single = protobuf.encode(protobuf.tree_of(random, pb.SingleMessageMetadata.DESCRIPTOR, pool, share=0.3))
        length = random.choice(values.UNSIGNED) % (1 << 32) if random.random() < 0.1 else len(single)
        parts.append(struct.pack(">I", length) + single + body)
    return b"".join(parts)


def _ordinary(random: Random, topic: str) -> list[bytes]:
    commands: list[tuple[pb.BaseCommand, bytes | None]] = [
        (_T(type=_T.LOOKUP, lookup=pb.CommandLookup(topic=topic, request_id=1)), None),
        (_T(type=_T.PRODUCER, producer=pb.CommandProducer(topic=topic, producer_id=1, request_id=2)), None),
        (
            _T(
                type=_T.SUBSCRIBE,
                subscribe=pb.CommandSubscribe(
                    topic=topic,
                    subscription=random.choice(SUBSCRIPTIONS[:2]),
                    sub_type=random.choice((0, 1, 2, 3)),  # type: ignore[arg-type]
                    consumer_id=1,
                    request_id=3,
                ),
            ),
            None,
        ),
        (_T(type=_T.FLOW, flow=pb.CommandFlow(consumer_id=1, message_permits=random.choice((1, 5, 1_000)))), None),
    ]
    for number in range(random.randint(1, 4)):
        send = pb.CommandSend(producer_id=1, sequence_id=number, num_messages=1)
        commands.append((_T(type=_T.SEND, send=send), encode_entry_of("p", number, 1, [b"x" * random.randint(0, 99)])))
    return [frame(random, protobuf.of_message(command), section) for command, section in commands]


def _sensible(random: Random, field: FieldDescriptor, topics: tuple[str, ...]) -> Any:
    if random.random() < 0.1:
        return None
    if field.name in ("producer_id", "consumer_id", "request_id", "watcher_id"):
        return random.choice(IDS)
    if field.name in ("ledgerId", "entryId", "ledger_id", "entry_id", "sequence_id"):
        return random.choice((0, 1, 2, 10, 11, 12, *values.UNSIGNED))
    if field.name == "topic":
        return random.choice(topics if random.random() < 0.8 else STRANGE_TOPICS)
    if field.name == "schema_data":
        return schemas.definition(random)
    if field.name in ("key", "value") and field.type == FieldDescriptor.TYPE_STRING:
        return schemas.pair_text(random)
    if field.name in ("subscription", "producer_name", "consumer_name") and random.random() < 0.1:
        return schemas.name(random)
    if field.name == "subscription":
        return random.choice(SUBSCRIPTIONS)
    if field.name == "message_permits":
        return random.choice((0, 1, 10, 1_000, *values.UNSIGNED))
    if field.type == FieldDescriptor.TYPE_STRING:
        return random.choice(TEXTS)
    return None
