"""Definitions of schemas, names and compressed payloads that programs get wrong. Pure."""

from __future__ import annotations

import base64
import json
import struct
from random import Random
from typing import Any

from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet

from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.compression import compress
from heliograph.protocol.entry import encode_entry
from tests.fuzz import values

CODECS = (pb.LZ4, pb.ZLIB, pb.ZSTD, pb.SNAPPY)
LENGTHS = (0, 1, 255, 256, 257, 512, 513, 1_024, 1_025, 5_000, 65_536, 70_000)  # around the limits of names
PROPERTIES = ("", "k", "heliograph.readCompacted", "heliograph.delayed", "key.schema.type", "value.schema.type",
              "key.schema.properties", "kv.encoding.type")  # fmt: skip
PLAIN_BYTES = (0, 1, 100, 300_000, 1 << 20)


def name(random: Random) -> str:
    """Return a name whose length is near a limit, in characters of one to four bytes."""
    return random.choice("xü中😀") * random.choice(LENGTHS)


def pair_text(random: Random) -> str:
    """Return the name or the value of a property."""
    kind = random.randrange(4)
    if kind == 0:
        return random.choice(PROPERTIES)
    if kind == 1:
        return random.choice(("AVRO", "JSON", "KEY_VALUE", "true", "SEPARATED", "[" * 5_000))
    return name(random) if kind == 2 else values.text(random)[:1_000].replace("\ud800", "?")


def definition(random: Random) -> bytes:
    """Return a definition of any type: whole, cut off, or far too large."""
    made = random.choice((_avro_bytes, _protobuf, _key_value, _deep))(random)
    if random.random() < 0.1:
        return made[: random.randrange(len(made) + 1)]
    if random.random() < 0.1 and made:
        place = random.randrange(len(made))
        return made[:place] + values.octets(random)[:100] + made[place + 1 :]
    return made


def _avro_bytes(random: Random) -> bytes:
    return json.dumps(avro(random), ensure_ascii=random.random() < 0.5).encode("utf-8", "surrogatepass")


def avro(random: Random, depth: int = 4) -> Any:
    """Return a schema of Avro, with names that clash, refer to what is around them, or to nothing."""
    kind = random.randrange(9)
    if kind <= 1 or not depth:
        return random.choice(("int", "long", "string", "null", "A", "B", "n.A", "nothing", values.text(random)[:50]))
    if kind == 2:
        return [avro(random, depth - 1) for _ in range(random.choice((0, 1, 2, 3, 200)) if depth > 3 else 2)]
    if kind == 3:
        return {"type": random.choice(("array", "map")), "items": avro(random, depth - 1), "values": "int"}
    if kind == 4:
        return {"type": "enum", "name": "E", "symbols": [f"S{random.randrange(4)}" for _ in range(random.randrange(4))]}
    if kind == 5:
        return {"type": "fixed", "name": "F", "size": values.number(random)}
    if kind == 6:
        return values.json_value(random)
    fields = [
        {"name": f"f{number}", "type": avro(random, depth - 1), **({"default": None} if random.random() < 0.3 else {})}
        for number in range(random.choice((0, 1, 2, 300)) if depth > 3 else random.randrange(3))
    ]
    record: dict[str, Any] = {
        "type": "record",
        "name": random.choice(("A", "B", "A", name(random)[:70_000] or "A")),
        "fields": fields,
    }
    if random.random() < 0.2:
        record["namespace"] = name(random)
    if random.random() < 0.2:
        record["aliases"] = [random.choice(("A", "B", name(random)[:2_000])), 7]
    return record


def _protobuf(random: Random) -> bytes:
    count = random.choice((1, 2, 500))
    messages = [DescriptorProto(name=random.choice(("A", "B", name(random)[:2_000]))) for _ in range(count)]
    for message in messages:
        for number in range(random.randrange(3)):
            message.field.append(
                FieldDescriptorProto(
                    name=f"f{number}",
                    number=random.choice((number, *values.UNSIGNED[:8])),
                    type=random.choice((FieldDescriptorProto.TYPE_INT32, FieldDescriptorProto.TYPE_MESSAGE)),
                    type_name=random.choice((".A", ".B", "A", ".nothing")),
                    label=random.choice((FieldDescriptorProto.LABEL_OPTIONAL, FieldDescriptorProto.LABEL_REQUIRED)),
                )
            )
    files = FileDescriptorSet(file=[FileDescriptorProto(name="f", message_type=messages)]).SerializeToString()
    encoded = base64.b64encode(files).decode() if random.random() < 0.9 else values.text(random)[:100]
    return json.dumps({"fileDescriptorSet": encoded, "rootMessageTypeName": random.choice(("A", "B", ""))}).encode()


def _key_value(random: Random) -> bytes:
    halves = [random.choice((_avro_bytes, _deep))(random) for _ in range(2)]
    if random.random() < 0.3:
        return json.dumps({"key": "[" * 10_000, "value": avro(random)}).encode()
    sizes = [random.choice((len(half), len(half), -1, values.number(random) % (1 << 31))) for half in halves]
    return b"".join(struct.pack(">i", size) + half for size, half in zip(sizes, halves, strict=True))


def _deep(random: Random) -> bytes:
    return random.choice((b"[", b'{"a":', b'{"type":', b'["null",')) * random.choice((65, 1_000, 60_000))


def packed_entry(random: Random) -> bytes:
    """Return an entry whose payload is compressed, and which may lie about its size, its codec and its messages."""
    plain = bytes(random.choice(PLAIN_BYTES)) if random.random() < 0.5 else values.octets(random)[:1_000]
    codec = random.choice(CODECS)
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=random.randrange(4), publish_time=1)
    metadata.compression = random.choice(CODECS) if random.random() < 0.1 else codec
    lie = random.choice((0, 1, len(plain) + 1, 1 << 26, (1 << 26) + 1, (1 << 32) - 1))
    metadata.uncompressed_size = lie if random.random() < 0.3 else len(plain)
    if random.random() < 0.5:
        metadata.num_messages_in_batch = random.choice((0, 1, 3, 100_000, 1 << 20, (1 << 20) + 1, (1 << 31) - 1, -1))
    packed = compress(codec, plain)
    if random.random() < 0.1:
        packed = packed[: random.randrange(len(packed) + 1)]
    return encode_entry(metadata, packed)
