"""Administration of subscriptions over REST, and delayed messages from REST and WebSocket producers."""

from __future__ import annotations

import base64
import datetime
import json
import time
from typing import Any

import httpx
import pytest

from heliograph.actors.broker.admin.stored_message import entry_of
from heliograph.actors.broker.records.position import Position
from heliograph.base.errors import ChecksumError
from heliograph.gateway.shapes.stored_entry import entry_response
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.batch import encode_batch, encode_single, full_head
from heliograph.protocol.compression import NAMES
from heliograph.protocol.entry import encode_broker_metadata, encode_entry
from tests.unit.gateway.world import FLIGHTS, FLIGHTS_PATH, Gateway

SUBSCRIPTION = f"/admin/v2/{FLIGHTS_PATH}/subscription/s"


@pytest.mark.parametrize(
    ("path", "body", "call"),
    [
        ("skip/5", None, ("skip", FLIGHTS, "s", 5)),
        ("skip_all", None, ("skip_all", FLIGHTS, "s")),
        ("expireMessages/60", None, ("expire", FLIGHTS, "s", 60)),
        ("expireMessages", {"ledgerId": 3, "entryId": 4}, ("expire_to", FLIGHTS, "s", "3:4:-1", False)),
        ("resetcursor/1700000000000", None, ("reset", FLIGHTS, "s", 1_700_000_000_000, False)),
        ("resetcursor", {"ledgerId": -1, "entryId": -1}, ("reset", FLIGHTS, "s", "earliest", False)),
        ("resetcursor", {"ledgerId": 2**63 - 1, "entryId": 1}, ("reset", FLIGHTS, "s", "latest", False)),
        (
            "resetcursor",
            {"ledgerId": 3, "entryId": 4, "partitionIndex": 2, "batchIndex": 1, "isExcluded": True},
            ("reset", FLIGHTS, "s", "3:4:2:1", True),
        ),
        ("../../all_subscription/expireMessages/9", None, ("expire", FLIGHTS, None, 9)),
    ],
)
async def test_moving_a_subscription(gateway: Gateway, path: str, body: Any, call: tuple[Any, ...]) -> None:
    gateway.world.add()
    url = f"/admin/v2/{FLIGHTS_PATH}/{path[6:]}" if path.startswith("../../") else f"{SUBSCRIPTION}/{path}"
    answer = await gateway.http.post(url, json=body)
    assert answer.status_code == 204, answer.text
    assert gateway.world.cursors.calls == [call]


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("skip/-1", "", 422),
        ("resetcursor", "{", 400),
        ("resetcursor", "[]", 400),
        ("resetcursor", '{"ledgerId": "3"}', 400),
        ("expireMessages", '{"ledgerId": true, "entryId": 1}', 400),
    ],
)
async def test_bad_input(gateway: Gateway, path: str, body: str, status: int) -> None:
    gateway.world.add()
    answer = await gateway.http.post(f"{SUBSCRIPTION}/{path}", content=body)
    assert answer.status_code == status, answer.text
    assert gateway.world.cursors.calls == []


async def test_what_needs_one_partition_says_so(gateway: Gateway) -> None:
    gateway.world.add(partitions=3)
    assert (await gateway.http.post(f"{SUBSCRIPTION}/skip/1")).status_code == 405
    assert (await gateway.http.get(f"{SUBSCRIPTION}/position/1")).status_code == 405
    assert (await gateway.http.post(f"{SUBSCRIPTION}/skip_all")).status_code == 204


def stored(section: bytes, entry_id: int) -> dict[str, Any]:
    return entry_of(Position(7, entry_id), -1, section)


def as_go(headers: httpx.Headers, body: bytes) -> list[tuple[str, bytes, dict[str, str]]]:
    """Return id, payload and properties of each message, as the client in Go reads an answer."""
    properties = json.loads(headers.get("x-pulsar-property", "{}"))
    ledger_id, entry_id = headers["x-pulsar-message-id"].split(":")
    if "x-pulsar-num-batch-message" not in headers:
        return [(f"{ledger_id}:{entry_id}", body, properties)]
    found, position = [], 0
    for index in range(int(headers["x-pulsar-num-batch-message"])):
        size = int.from_bytes(body[position : position + 4], "big")
        single = pb.SingleMessageMetadata.FromString(body[position + 4 : position + 4 + size])
        position += 4 + size
        own = {**properties, **{pair.key: pair.value for pair in single.properties}}
        found.append((f"{ledger_id}:{entry_id}:{index}", body[position : position + single.payload_size], own))
        position += single.payload_size
    assert position == len(body)
    return found


def as_java(headers: httpx.Headers, body: bytes) -> list[tuple[str, bytes, dict[str, str]]]:
    """Return the same as the client in Java reads it, which leaves encrypted batches whole and parses each header."""
    for name in ("publish-time", "event-time", "deliver-at-time"):
        if f"x-pulsar-{name}" in headers:
            assert datetime.datetime.fromisoformat(headers[f"x-pulsar-{name}"]).tzinfo is not None
    for name in ("sequence-id", "uncompressed-size", "batch-size", "chunk-id", "num-chunks-from-msg"):
        assert int(headers.get(f"x-pulsar-{name}", "0")) >= 0
    if "x-pulsar-compression" in headers:
        assert headers["x-pulsar-compression"] in {name.upper() for name in NAMES}
    for key in headers.get_list("x-pulsar-base64-encryption-keys"):
        pb.EncryptionKeys.FromString(base64.b64decode(key))
    if headers.get("x-pulsar-is-encrypted") == "true":
        return [(headers["x-pulsar-message-id"], body, {})]
    return as_go(headers, body)


@pytest.mark.parametrize("codec", [pb.NONE, pb.LZ4, pb.ZLIB, pb.ZSTD, pb.SNAPPY], ids=pb.CompressionType.Name)
async def test_looking_at_entries(gateway: Gateway, codec: pb.CompressionType) -> None:
    texts = [b"%d " % n * 100 for n in range(3)]
    heads = [full_head(len(text), f"k{n}", {"n": str(n)}, None) for n, text in enumerate(texts)]
    common: dict[str, Any] = {"producer_name": "gr\u00fc\u00dfe", "sequence_id": 3, "publish_time": 1_700_000_000_123}
    whole = encode_batch(pb.MessageMetadata(**common), heads, texts, codec)
    head = full_head(100, "k\u00e9", {"a": "b"}, 5)
    single = encode_single(pb.MessageMetadata(**common, schema_version=b"\0\1"), head, b"x" * 100, codec)
    keys = [pb.EncryptionKeys(key=name, value=b"\xff") for name in ("one", "two")]
    hidden = pb.MessageMetadata(
        **common, num_messages_in_batch=2, encryption_keys=keys, encryption_param=b"\0", compression=codec
    )
    gateway.world.add()
    sections = [whole, single, encode_entry(hidden, b"secret")]
    gateway.world.cursors.entries = [stored(section, n) for n, section in enumerate(sections)]
    topic = f"/admin/v2/{FLIGHTS_PATH}"
    for first, second, third in (
        [f"{SUBSCRIPTION}/position/{number}" for number in (1, 2, 3)],
        [f"{topic}/ledger/7/entry/{number}" for number in (0, 1, 2)],
        [f"{topic}/examinemessage?initialPosition=latest&messagePosition={number}" for number in (3, 2, 1)],
    ):
        found = await gateway.http.get(first)
        assert found.status_code == 200
        expected = [(f"7:0:{n}", text, {"n": str(n)}) for n, text in enumerate(texts)]
        assert as_go(found.headers, found.content) == as_java(found.headers, found.content) == expected
        assert found.headers["X-Pulsar-batch-size"] == str(len(found.content))
        assert ("X-Pulsar-compression" in found.headers) == (codec != pb.NONE)
        found = await gateway.http.get(second)
        assert as_go(found.headers, found.content) == [("7:1", b"x" * 100, {"a": "b"})]
        assert as_java(found.headers, found.content) == as_go(found.headers, found.content)
        assert base64.b64decode(found.headers["X-Pulsar-Base64-schema-version-b64encoded"]) == b"\0\1"
        found = await gateway.http.get(third)
        assert as_java(found.headers, found.content) == [("7:2", b"secret", {})]
        assert found.headers.get_list("X-Pulsar-Base64-encryption-keys") == [
            base64.b64encode(key.SerializeToString()).decode() for key in keys
        ]
    assert (await gateway.http.get(f"{SUBSCRIPTION}/position/4")).status_code == 404
    at_time = (await gateway.http.get(f"{topic}/messageid/1700000000000")).json()
    assert at_time == {"ledgerId": 7, "entryId": 3, "partitionIndex": -1}
    last = (await gateway.http.get(f"{topic}/lastMessageId")).json()
    assert last == {"ledgerId": 7, "entryId": 9, "partitionIndex": -1, "batchIndex": 4}


def test_an_entry_that_cannot_be_decompressed_is_refused_and_a_chunk_is_shown_as_it_is() -> None:
    fields: dict[str, Any] = {
        "producer_name": "p",
        "sequence_id": 1,
        "publish_time": 1,
        "compression": pb.LZ4,
        "uncompressed_size": 9,
    }
    with pytest.raises(ChecksumError):
        stored(encode_entry(pb.MessageMetadata(**fields), b"no lz4"), 0)
    chunk = pb.MessageMetadata(**fields, uuid="u", num_chunks_from_msg=2, chunk_id=0)
    assert stored(encode_entry(chunk, b"half"), 0)["payload"] == b"half"
    chunk.compression = 42
    shown = entry_response(stored(encode_entry(chunk, b"half"), 0))
    assert shown.headers["X-Pulsar-compression"] == "42"


def test_headers_that_are_too_large_are_left_out_and_named() -> None:
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1, partition_key="k" * (65 << 10))
    metadata.properties.add(key="a", value="v" * (40 << 10))
    shown = entry_response(stored(encode_entry(metadata, b"x"), 0))
    assert shown.headers["X-Pulsar-Left-Out"] == "PROPERTY, partition-key"
    assert shown.headers["X-Pulsar-producer-name"] == "p"
    assert not {"x-pulsar-partition-key", "x-pulsar-property"} & set(shown.headers)
    assert sum(len(name) + len(value) for name, value in shown.headers.items()) < 40 << 10


def test_what_the_broker_noted_stands_in_headers() -> None:
    entry = encode_entry(pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1), b"x")
    noted = pb.BrokerEntryMetadata(broker_timestamp=1_700_000_000_123, index=0)
    with_both = entry_response(stored(encode_broker_metadata(noted) + entry, 0))
    assert with_both.headers["X-Pulsar-Broker-Entry-METADATA-timestamp"] == "2023-11-14T22:13:20.123Z"
    assert with_both.headers["X-Pulsar-Broker-Entry-METADATA-index"] == "0"
    assert with_both.headers["X-Pulsar-publish-time"] == "1970-01-01T00:00:00.001Z"
    assert not [name for name in entry_response(stored(entry, 0)).headers if "broker-entry" in name]


async def test_properties(gateway: Gateway) -> None:
    gateway.world.add()
    assert (await gateway.http.put(f"{SUBSCRIPTION}/properties", json={"a": "b"})).status_code == 204
    assert (await gateway.http.get(f"{SUBSCRIPTION}/properties")).json() == {"a": "b"}


async def test_delayed_messages(gateway: Gateway) -> None:
    gateway.world.add()
    before = time.time_ns() // 1_000_000
    body = {"messages": [{"payload": "a", "deliverAt": 7}, {"payload": "b", "deliverAfterMs": 60_000}]}
    assert (await gateway.http.post(f"/topics/{FLIGHTS_PATH}", json=body)).status_code == 200
    peer = await gateway.connect(f"/ws/v2/producer/{FLIGHTS_PATH}")
    peer.send({"payload": base64.b64encode(b"c").decode(), "deliverAfterMs": 60_000})
    assert (await peer.receive())["result"] == "ok"
    first, second, third = gateway.world.deliver_at
    assert first == 7
    for due in (second, third):
        assert due is not None
        assert due - before >= 60_000
