"""Typed mutations of every message between brokers and bookies: each field with each kind of value."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from heliograph.actors.errors import FrameError
from heliograph.actors.wire.frame import (
    HEADER_BYTES_MAX,
    BookieFrameDecoder,
    decode_answer,
    decode_request,
    encode_head,
)
from heliograph.actors.wire.messages import Answer, BookieOp, BookieRequest, Status

WRONG: dict[str, Any] = {
    "float": 2.0,
    "infinity": float("inf"),
    "not a number": float("nan"),
    "bool": True,
    "nil": None,
    "text": "2",
    "bytes": b"\x02",
    "array": [2],
    "map": {"a": 2},
    "extension": msgpack.ExtType(7, b"\x02"),
    "time": msgpack.Timestamp(2, 0),
}


def header_of(kind: BookieOp, **changes: Any) -> list[Any]:
    request = BookieRequest(kind, 3, 7, 2)
    return list(request._replace(**changes))


def through_the_wire(header: list[Any]) -> list[Any]:
    ((decoded, _),) = BookieFrameDecoder().feed(encode_head(header, 0))
    return decoded


@pytest.mark.parametrize("op", BookieOp)
@pytest.mark.parametrize("field", BookieRequest._fields)
def test_each_field_of_a_request_has_exactly_its_type(op: BookieOp, field: str) -> None:
    for value in WRONG.values():
        header = through_the_wire(header_of(op, **{field: value}))
        with pytest.raises(FrameError, match=f"has {field} .* an integer is required"):
            decode_request(header)


@pytest.mark.parametrize("op", BookieOp)
def test_a_request_id_can_be_sent_back(op: BookieOp) -> None:
    for number in (-1, 1 << 63, (1 << 64) - 1):
        with pytest.raises(FrameError, match=r"has request_id .* 2\*\*63 - 1 is required"):
            decode_request(through_the_wire(header_of(op, request_id=number)))
    for flags in (-1, 16, 1 << 40):
        with pytest.raises(FrameError, match=f"{op.name} has flags {flags}, from 0 to 15 is required"):
            decode_request(through_the_wire(header_of(op, flags=flags)))
    for count in (0, 1, 6, 8):
        with pytest.raises(FrameError, match=f"has {count} fields instead of 7"):
            decode_request((header_of(op) * 2)[:count])


def test_the_refusal_names_message_field_and_value() -> None:
    with pytest.raises(FrameError) as refused:
        decode_request(through_the_wire(header_of(BookieOp.ADD, ledger_id=987654321.0)))
    assert str(refused.value) == "ADD has ledger_id 987654321.0, an integer is required"
    with pytest.raises(FrameError) as refused:
        decode_request(through_the_wire(header_of(BookieOp.ADD, op=8)))
    assert str(refused.value) == "a request has op 8, which is unknown"


def test_a_header_above_its_limit_is_refused() -> None:  # I15
    header = header_of(BookieOp.ADD, request_id=b"x" * HEADER_BYTES_MAX)
    with pytest.raises(FrameError, match=r"a header of .* the limit is 4096 bytes"):
        BookieFrameDecoder().feed(encode_head(header, 0))


@pytest.mark.parametrize("field", ["request_id", "status", "last_add_confirmed"])
@pytest.mark.parametrize("kind", WRONG)
def test_each_number_of_an_answer_has_exactly_its_type(field: str, kind: str) -> None:
    with pytest.raises(FrameError):
        decode_answer(through_the_wire(list(Answer(3, Status.NO_LEDGER)._replace(**{field: WRONG[kind]}))))


@pytest.mark.parametrize("lac", [-(1 << 63), -2, 1 << 63])
def test_an_answer_has_a_lac_that_can_be(lac: int) -> None:
    with pytest.raises(FrameError, match="an answer has LAC"):
        decode_answer(through_the_wire(list(Answer(3, Status.OK, lac))))
