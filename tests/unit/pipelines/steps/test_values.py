"""Values as frames in chunks, locations, and the records of steps: pure, for any input."""

from __future__ import annotations

import pickle
import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heliograph.base.errors import BadRequestError, ChecksumError, ConflictError, ProtocolError, StepDroppedError
from heliograph.pipelines.steps import records, values
from heliograph.pipelines.steps.records import StepIndex, StepStates, clear_records, put_records, record
from heliograph.pipelines.steps.values import Location, Packer, checksum_of, framed, runs_of, unframed


@pytest.mark.parametrize(
    "value", [None, 7, "text", {"a": [1, 2]}, b"", np.arange(10), np.arange(12).reshape(3, 4)[:, ::2], [np.zeros(3)]]
)
def test_a_value_comes_back(value: Any) -> None:
    parts = framed(value)
    frame = bytearray(b"".join(parts))
    found = unframed(frame, checksum_of(parts))
    np.testing.assert_equal(found, value)
    frame[-1] ^= 1
    with pytest.raises(ChecksumError):
        unframed(frame, checksum_of(parts))


def test_an_array_is_not_copied_into_its_frame() -> None:
    array = np.arange(1_000)
    assert any(np.shares_memory(np.frombuffer(part, np.int64), array) for part in framed(array) if part.nbytes == 8_000)


class Tensor:
    """Has what is asked of a tensor of torch: one that is a view of a large storage."""

    nbytes = 8

    def __init__(self, storage: int) -> None:
        self.storage = storage

    def untyped_storage(self) -> Any:
        return _Storage(self.storage)

    def clone(self) -> Tensor:
        return Tensor(self.nbytes)


class _Storage:
    def __init__(self, size: int) -> None:
        self._size = size

    def nbytes(self) -> int:
        return self._size


def test_a_tensor_is_stored_without_the_batch_that_it_is_a_row_of(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("torch")
    monkeypatch.setitem(sys.modules, "torch", module)
    monkeypatch.setattr(Tensor, "__module__", "torch")
    module.Tensor = Tensor  # type: ignore[attr-defined]
    parts = framed(Tensor(1 << 20))
    assert unframed(bytearray(b"".join(parts)), checksum_of(parts)).storage == 8


def test_what_does_not_pickle_or_unpickle_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadRequestError, match="does not pickle"):
        framed(lambda: None)
    for wrong in (b"", b"HV\x02\0\0\0\x01", b"HV\x01\xff\xff\xff\xff", b"HV\x01\0\0\0\x01" + bytes(7) + b"\x09"):
        with pytest.raises(ProtocolError):
            unframed(bytearray(wrong), checksum_of([memoryview(wrong)]))
    body = pickle.dumps(7)[:-1]
    frame = values._HEAD.pack(b"HV", 1, 1) + len(body).to_bytes(8) + body
    with pytest.raises(ProtocolError, match="unpickled"):
        unframed(bytearray(frame), checksum_of([memoryview(frame)]))


@given(st.lists(st.integers(0, 300), max_size=30))
def test_chunks_hold_all_bytes_where_their_places_say(sizes: list[int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(values, "CHUNK_BYTES", 64)
        packer, chunks, places = Packer(), list[bytes](), list[tuple[int, int]]()
        frames = [bytes([number % 251 + 1]) * size for number, size in enumerate(sizes)]
        for frame in frames:
            places.append(packer.place)
            chunks += packer.add([memoryview(frame[:7]), memoryview(frame[7:])])
        chunks += packer.end()
    assert all(len(chunk) == 64 for chunk in chunks[:-1])
    whole = b"".join(chunks)
    assert whole == b"".join(frames)
    for (chunk, offset), frame in zip(places, frames, strict=True):
        assert whole[chunk * 64 + offset :][: len(frame)] == frame


@given(
    st.builds(
        Location,
        st.integers(0, 1 << 62),
        st.integers(0, 1 << 20),
        st.integers(1 << 30, 1 << 40),  # it has room for the entries
        st.integers(0, (1 << 32) - 1),
        st.lists(st.tuples(st.integers(0, 1 << 60), st.integers(0, 99)), min_size=1, max_size=9).map(runs_of),
    )
)
def test_a_location_comes_back_from_its_text(location: Location) -> None:
    assert Location.parse(str(location)) == location
    assert runs_of([*location.positions()]) == location.entries


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1:2",
        "2:0:0:1:0:1.0-0",
        "1:-1:0:1:0:1.0-0",
        "1:0:0:1:0:1.5-4",
        "1:0:0:9:0:1.0-2",
        "1:0:0:9:0:1.0-99999999999",
        "1:0:0:1:x:1",
        7,
    ],
)
def test_what_is_no_location_is_refused(text: Any) -> None:
    with pytest.raises(BadRequestError, match="no location"):
        Location.parse(text)


def test_records_are_bounded_and_fold_to_the_last_state() -> None:
    index = StepIndex(3)
    given = {f"{number:040}@field": f"1:3:{number}" for number in range(20_000)}
    made = [*put_records(given)]
    assert len(made) > 1
    assert max(map(len, made)) <= records.RECORD_BYTES_MAX + 2_048  # I15
    for one in made:
        index.add(memoryview(one))
    assert index.locations == given
    gone = [*given][::2]
    for one in clear_records([*gone, "unknown"]):
        index.add(one)
    assert [*index.locations] == [*given][1::2]
    for wrong in (b"", b"{}", b"[]", b'{"format": 9}'):
        with pytest.raises(ProtocolError):
            index.add(wrong)


def test_a_step_has_a_bound_of_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "KEYS_MAX", 2)
    index = StepIndex(1)
    index.add(record(put={"a": "", "b": ""}))
    with pytest.raises(BadRequestError, match="3 keys"):
        index.add(record(put={"c": ""}))


@given(
    st.permutations([{"begin": 4}, {"begin": 9}, {"drop": [3]}, {"drop": [6, 7]}, {"drop_before": 3}, {"drop": [1]}])
)
def test_the_order_of_what_happens_to_steps_is_of_no_matter(order: list[dict[str, Any]]) -> None:
    states = StepStates()
    for fields in order:
        states.add(record(**fields))
    assert (states.newest, states.floor, states.dropped) == (9, 4, {6, 7})
    assert [step for step in range(10) if states.is_dropped(step)] == [0, 1, 2, 3, 6, 7]
    with pytest.raises(StepDroppedError, match="step 6"):
        states.check_there(6)


def test_steps_that_are_dropped_one_by_one_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "DROPPED_MAX", 2)
    states = StepStates()
    states.add(record(drop=[5, 7]))
    with pytest.raises(ConflictError, match="one by one"):
        states.check_room()
    states.add(record(drop_before=6))
    states.check_room()


@pytest.mark.parametrize("wrong", [[""], ["x" * 2_000], [7], ["a", "a"]])
def test_keys_are_short_texts_and_different(wrong: list[Any]) -> None:
    with pytest.raises(BadRequestError) as refused:
        records.check_keys(wrong)
    assert refused.value.field == "keys"
