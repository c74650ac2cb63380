"""What hostile clients of the gateway say over WebSocket: upgrades, frames, and JSON of wrong shapes. Pure."""

from __future__ import annotations

import base64
import json
import struct
from random import Random
from typing import Any
from urllib.parse import quote

from tests.fuzz import values
from tests.fuzz.conversation import Message

TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10
KINDS = ("producer", "consumer", "reader")
TOPICS = ("persistent/public/default/a", "persistent/public/default/b", "non-persistent/public/default/v")
_QUERY: dict[str, tuple[str, ...]] = {
    "producerName": ("p", ""), "sendTimeoutMillis": ("0", "100", "30000"), "batchingEnabled": ("true", "false"),
    "batchingMaxMessages": ("1", "10"), "maxPendingMessages": ("1", "10"), "compressionType": ("LZ4", "ZSTD"),
    "messageRoutingMode": ("SinglePartition",), "accessMode": ("Shared", "Exclusive", "WaitForExclusive"),
    "initialSequenceId": ("-1", "5"), "subscriptionType": ("Shared", "Exclusive", "Failover", "Key_Shared"),
    "receiverQueueSize": ("0", "1", "1000"), "consumerName": ("c",), "priorityLevel": ("0", "1"),
    "negativeAckRedeliveryDelay": ("0", "1"), "pullMode": ("true", "false"), "messageId": ("earliest", "latest"),
    "subscriptionInitialPosition": ("Earliest", "Latest"), "token": ("x",), "ackTimeoutMillis": ("1",),
    "topicsPattern": ("public/default/.*", "[", "(a+)+$"), "topics": ("a,b", "a", ",,"),
}  # fmt: skip


def session(random: Random) -> list[Message]:
    """Return what one client says: the upgrade, frames of its kind, and others."""
    kind = random.choice(KINDS)
    messages: list[Message] = [upgrade(random, kind)]
    for _ in range(random.randint(0, 10)):
        if kind != "producer" and random.random() < 0.3:
            messages.append(("ack", random.randbytes(8)))
            continue
        text = json.dumps(_frame(random, kind), ensure_ascii=random.random() < 0.5)
        messages.append(frame(random, text.encode("utf-8", "surrogatepass"), TEXT))
        if random.random() < 0.1:
            messages.append(_strange(random))
    if random.random() < 0.4:
        messages.append(frame(random, random.choice((b"", b"\x03\xe8", b"\x03", b"\xff\xff", b"\x03\xe8\xff")), CLOSE))
    return messages


def upgrade(random: Random, kind: str) -> bytes:
    """Return the request of an upgrade."""
    topic = random.choice(TOPICS)
    if random.random() < 0.1:
        topic += "/" + quote(values.text(random)[:1_000].encode("utf-8", "surrogatepass"), safe="")
    path = f"/ws/v2/{kind}/{topic}"
    if kind == "consumer":
        path += "/" + random.choice(("s", "t", quote(values.octets(random)[:500], safe="")))
        if random.random() < 0.2:
            path = "/ws/v3/consumer/s"
    query = []
    for name in random.sample(sorted(_QUERY), random.choice((0, 1, 2, 4))):
        value = random.choice(_QUERY[name]) if random.random() < 0.85 else values.text(random)[:1_000]
        query.append(f"{name}={quote(value.encode('utf-8', 'surrogatepass'), safe='')}")
    key = base64.b64encode(random.randbytes(16 if random.random() < 0.97 else 3)).decode()
    headers = {
        "Host": "127.0.0.1", "Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": key,
    }  # fmt: skip
    if random.random() < 0.08:
        name = random.choice((*headers, "Sec-WebSocket-Extensions", "Sec-WebSocket-Protocol", "Origin"))
        headers[name] = values.text(random)[:500]
    lines = [f"GET {path}{'?' + '&'.join(query) if query else ''} HTTP/1.1", *(f"{n}: {v}" for n, v in headers.items())]
    return "\r\n".join(lines).encode("utf-8", "surrogatepass") + b"\r\n\r\n"


def frame(random: Random, payload: bytes, opcode: int, *, is_final: bool = True) -> bytes:
    """Return a masked frame, rarely one that is not masked."""
    first = (0x80 if is_final else 0) | opcode
    is_masked = random.random() < 0.99
    size = len(payload)
    if size < 126:
        head = struct.pack(">BB", first, size | (0x80 if is_masked else 0))
    elif size < 1 << 16:
        head = struct.pack(">BBH", first, 126 | (0x80 if is_masked else 0), size)
    else:
        head = struct.pack(">BBQ", first, 127 | (0x80 if is_masked else 0), size)
    if not is_masked:
        return head + payload
    mask = random.randbytes(4)
    repeated = mask * (size // 4 + 1)
    masked = (int.from_bytes(payload) ^ int.from_bytes(repeated[:size])).to_bytes(size)
    return head + mask + masked


def command(random: Random, message_id: str) -> bytes:
    """Return the frame of a consumer's command about a message that it received."""
    kind = random.choice((None, "ack", "ack", "negativeAcknowledge", "cumulativeAck", "seek"))
    fields: dict[str, Any] = {"messageId": message_id}
    if kind is not None:
        fields["type"] = kind
    if random.random() < 0.5:
        fields["context"] = values.json_value(random)
    return frame(random, json.dumps(fields).encode(), TEXT)


def _frame(random: Random, kind: str) -> Any:
    if random.random() < 0.06:
        return values.json_value(random)
    if kind == "producer":
        payload = base64.b64encode(random.randbytes(random.choice((0, 3, 100, 9_000)))).decode()
        fields: dict[str, Any] = {"payload": payload, "context": "1"}
        optional: dict[str, Any] = {
            "key": "k", "properties": {"a": "b"}, "eventTime": "2026-01-01T00:00:00Z", "deliverAfterMs": 1,
            "deliverAt": 1, "replicationClusters": [], "encryptionParam": {},
        }  # fmt: skip
    else:
        types = ("ack", "negativeAcknowledge", "cumulativeAck", "permit", "seek", "unsubscribe", "isEndOfTopic", "x")
        fields = {"type": random.choice(types)}
        optional = {
            "messageId": random.choice(("earliest", "CAoQAA==", "CAEQAA==", "CP///////////wEQAA==")),
            "permitMessages": random.choice((1, 100, values.number(random))), "timestamp": values.number(random),
            "context": "c", "inclusive": True,
        }  # fmt: skip
    for name, value in optional.items():
        if random.random() < 0.35:
            fields[name] = value
    for name in list(fields):
        if random.random() < 0.07:
            fields[name] = values.json_value(random)
    return fields


def _strange(random: Random) -> bytes:
    payload = values.octets(random)
    return random.choice(
        (
            frame(random, payload, BINARY),
            frame(random, payload[:125], PING),
            frame(random, payload, PING),
            frame(random, payload[:125], PONG),
            frame(random, payload, random.randrange(16)),
            frame(random, payload, TEXT, is_final=False),
            frame(random, payload, TEXT, is_final=False) + frame(random, b"}", 0),
            frame(random, payload, 0x40 | TEXT),
            b"\x81\xff" + struct.pack(">Q", random.choice(values.UNSIGNED)) + b"mask",
            b"[" * 10,
            frame(random, b"[" * 90_000, TEXT),
        )
    )
