"""All ways to read a batch give the columns that protobuf gives, message by message."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heliograph.base.errors import ProtocolError
from heliograph.pipelines.reading.batch import varied
from heliograph.pipelines.reading.batch.messages import MESSAGES_MIN, Messages
from heliograph.pipelines.reading.columns import batch_columns
from heliograph.pipelines.reading.fields import key_of, ordering_key_of, properties_of
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.entry import iterate_batch

_NUMBER = st.integers(0, (1 << 64) - 1)


@pytest.fixture(autouse=True, scope="module")
def small_batches_are_read_at_once() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(varied, "MESSAGES_MIN", MESSAGES_MIN)
        yield


_HEAD = st.fixed_dictionaries(
    {},
    optional={
        "partition_key": st.text(max_size=4) | st.text("k", min_size=126, max_size=130),
        "event_time": _NUMBER,
        "sequence_id": _NUMBER,
        "compacted_out": st.booleans(),
        "null_value": st.booleans(),
        "ordering_key": st.binary(max_size=3),
        "partition_key_b64_encoded": st.booleans(),
        "properties": st.lists(
            st.builds(pb.KeyValue, key=st.sampled_from("ab"), value=st.text(max_size=2)), max_size=3
        ),
    },
)
_SIZE = st.sampled_from([0, 1, 127, 128, 16_383, 16_384])


def packed(head: dict[str, Any], payload: bytes) -> bytes:
    single = pb.SingleMessageMetadata(payload_size=len(payload), **head).SerializeToString()
    return len(single).to_bytes(4, "big") + single + payload


def expected(plain: bytes, count: int) -> list[tuple[Any, ...]]:
    metadata = pb.MessageMetadata(num_messages_in_batch=count)
    return [
        (
            index,
            None if single.null_value else value,
            key_of(single),
            single.event_time,
            properties_of(single),
            ordering_key_of(single),
        )
        for index, (single, value) in enumerate(iterate_batch(metadata, plain))
        if not single.compacted_out
    ]


def shown(found: Messages) -> list[tuple[Any, ...]]:
    rows = len(found.indexes)
    columns = [
        found.indexes,
        listed(found.values),
        [None] * rows if found.keys is None else listed(found.keys),
        [0] * rows if found.event_times is None else list(map(int, found.event_times)),
        found.properties or [[]] * rows,
        found.ordering_keys or [None] * rows,
    ]
    return list(zip(*columns, strict=True))


def listed(values: Any) -> list[Any]:
    if isinstance(values, np.ndarray):
        return [row.tobytes() for row in values]
    return list(values.to_pylist() if isinstance(values, pa.Array) else values)


@given(st.lists(st.tuples(_HEAD, _SIZE), min_size=1, max_size=12))
def test_messages_of_any_form(messages: list[tuple[dict[str, Any], int]]) -> None:
    plain = b"".join(packed(head, b"x" * size) for head, size in messages)
    assert shown(batch_columns(plain, len(messages))) == expected(plain, len(messages))


@given(
    st.integers(MESSAGES_MIN, 40),
    st.sampled_from([0, 1, 200]),
    st.booleans(),
    st.sampled_from([0, 5, 1_700_000_000_000, (1 << 64) - 40]),
    st.sampled_from([None, 0, 120, 16_370]),
)
def test_messages_of_one_form(count: int, size: int, keyed: bool, time: int, sequence: int | None) -> None:
    """Their numbers may grow by a byte on the way, and then the form is not one."""
    messages = []
    for number in range(count):
        head: dict[str, Any] = {"partition_key": f"key-{number:04}"} if keyed else {}
        head |= {"event_time": time + number % 40} if time else {}
        head |= {} if sequence is None else {"sequence_id": sequence + number}
        messages.append(packed(head, bytes([number]) * size))
    plain = b"".join(messages)
    found = batch_columns(plain, count)
    assert shown(found) == expected(plain, count)
    if len(set(map(len, messages))) == 1:
        assert isinstance(found.values, np.ndarray), "one form is read at once"


_NUMBERS = st.one_of(st.integers(0, 300), _NUMBER)
_USUAL_HEAD = st.fixed_dictionaries(
    {}, optional={"partition_key": st.text("k\0", max_size=127), "event_time": _NUMBERS, "sequence_id": _NUMBERS}
)
_LIKE_A_HEAD = packed({"partition_key": "k"}, b"") * 2 + b"\0\0\0\0\2\x18\0\0\0\x18\x18"


@pytest.mark.slow
@given(
    st.lists(
        st.tuples(_USUAL_HEAD, st.sampled_from([0, 1, 7, 10, 100, 300])),
        min_size=MESSAGES_MIN,
        max_size=20,
    ),
    st.sampled_from([b"x", b"\0", _LIKE_A_HEAD]),
)
def test_messages_of_different_sizes_are_read_at_once(
    messages: list[tuple[dict[str, Any], int]], bytes_: bytes
) -> None:
    """Whatever their values are: they may look like heads."""
    plain = b"".join(packed(head, (bytes_ * (size // len(bytes_) + 1))[:size]) for head, size in messages)
    found = batch_columns(plain, len(messages))
    assert shown(found) == expected(plain, len(messages))
    if bytes_ == b"x" and all(len(packed(head, b"")) < 256 for head, _ in messages):
        assert not isinstance(found.values, list)


def test_a_small_batch_is_walked_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(varied, "MESSAGES_MIN", 41)
    plain = b"".join(packed({}, b"x" * n) for n in range(40))
    found = batch_columns(plain, 40)
    assert isinstance(found.values, list)
    assert shown(found) == expected(plain, 40)


def test_a_value_that_looks_like_heads_does_not_slow_a_batch_down() -> None:
    plain = b"".join(packed({"partition_key": "k" * (n % 5)}, packed({}, b"x" * n)) for n in range(40))
    found = batch_columns(plain, 40)
    assert isinstance(found.values, pa.Array)
    assert shown(found) == expected(plain, 40)


@pytest.mark.parametrize("size", [16_383, 16_384, (1 << 21) - 1, 1 << 21])
def test_sizes_of_two_to_four_bytes(size: int) -> None:
    """Those of four are left to protobuf."""
    plain = b"".join(packed({}, b"x" * (size if n == 3 else n)) for n in range(10))
    found = batch_columns(plain, 10)
    assert shown(found) == expected(plain, 10)
    assert isinstance(found.values, pa.Array) is (size < 1 << 21)


@pytest.mark.parametrize("odd", [{"null_value": True}, {"compacted_out": True}, {"ordering_key": b""}])
def test_one_odd_message_among_messages_of_equal_sizes(odd: dict[str, Any]) -> None:
    """Its head is as long as those of the others, which have a sequence id of the same length."""
    other = {"sequence_id": 1}
    messages = [packed(other, b"value") for _ in range(20)]
    messages[7] = packed(odd, b"value")
    assert len(set(map(len, messages))) == 1
    plain = b"".join(messages)
    assert shown(batch_columns(plain, 20)) == expected(plain, 20)


def test_keys_in_base64() -> None:
    head = {"partition_key": base64.b64encode(b"\x00\xff").decode(), "partition_key_b64_encoded": True}
    plain = packed(head, b"x") * MESSAGES_MIN
    assert listed(batch_columns(plain, MESSAGES_MIN).keys) == [b"\x00\xff"] * MESSAGES_MIN


@given(st.binary(max_size=60), st.integers(1, 20))
def test_any_bytes_are_messages_or_refused(plain: bytes, count: int) -> None:
    refused = False
    try:
        found = shown(batch_columns(plain, count))
    except ProtocolError:
        refused = True
    try:
        wanted = expected(plain, count)
    except ProtocolError:
        return
    assert not refused
    assert found == wanted


@given(st.data())
def test_a_damaged_batch_is_refused_or_read_as_protobuf_reads_it(data: st.DataObject) -> None:
    whole = bytearray(b"".join(packed({"partition_key": "k", "event_time": 7}, b"abc") for _ in range(10)))
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    plain = bytes(whole[: data.draw(st.integers(1, len(whole)))])
    try:
        wanted = expected(plain, 10)
    except ProtocolError:
        wanted = None
    try:
        found = shown(batch_columns(plain, 10))
    except ProtocolError:
        assert wanted is None
        return
    if wanted is not None:
        assert found == wanted


def test_numbers_are_as_long_as_protobuf_allows() -> None:
    times = np.array([(1 << 64) - 1], np.uint64)
    plain = packed({"event_time": int(times[0])}, b"")
    assert shown(batch_columns(plain, 1)) == expected(plain, 1)
