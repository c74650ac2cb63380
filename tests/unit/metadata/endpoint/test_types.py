"""Typed mutations of every request of the ZooKeeper endpoint: each field with each kind of bytes."""

from __future__ import annotations

import pytest

from heliograph.metadata.endpoint.wire.codes import OpCode
from heliograph.metadata.endpoint.wire.codes import OpCode as O
from heliograph.metadata.endpoint.wire.jute import boolean, buffer, int32, int64, string
from heliograph.metadata.endpoint.wire.requests import decode_connect, decode_request
from heliograph.metadata.errors import MetadataProtocolError

ACL = [int32(1), int32(31), string("world"), string("anyone")]
# The fields of each operation's arguments, in order, as a client writes them.
REQUESTS: dict[OpCode, list[bytes]] = {
    O.CREATE: [string("/a"), buffer(b"v"), *ACL, int32(0)],
    O.CREATE2: [string("/a"), buffer(b"v"), *ACL, int32(0)],
    O.CREATE_CONTAINER: [string("/a"), buffer(b"v"), *ACL, int32(4)],
    O.CREATE_TTL: [string("/a"), buffer(b"v"), *ACL, int32(5), int64(1_000)],
    O.DELETE: [string("/a"), int32(-1)],
    O.CHECK: [string("/a"), int32(-1)],
    O.EXISTS: [string("/a"), boolean(True)],
    O.GET_DATA: [string("/a"), boolean(True)],
    O.GET_CHILDREN: [string("/a"), boolean(False)],
    O.GET_CHILDREN2: [string("/a"), boolean(False)],
    O.SET_DATA: [string("/a"), buffer(b"v"), int32(-1)],
    O.GET_ACL: [string("/a")],
    O.SET_ACL: [string("/a"), *ACL, int32(-1)],
    O.SYNC: [string("/a")],
    O.GET_EPHEMERALS: [string("/a")],
    O.GET_ALL_CHILDREN_NUMBER: [string("/a")],
    O.MULTI: [int32(O.CHECK), boolean(False), int32(-1), string("/a"), int32(0), int32(-1), boolean(True), int32(-1)],
    O.MULTI_READ: [int32(O.GET_DATA), boolean(False), int32(-1), string("/a"), boolean(False), int32(-1), boolean(True),
                   int32(-1)],
    O.AUTH: [int32(0), string("digest"), buffer(b"me:secret")],
    O.SET_WATCHES: [int64(0), int32(1), string("/a"), int32(0), int32(0)],
    O.SET_WATCHES2: [int64(0), int32(1), string("/a"), int32(0), int32(0), int32(0), int32(0)],
    O.ADD_WATCH: [string("/a"), int32(0)],
    O.CHECK_WATCHES: [string("/a"), int32(1)],
    O.REMOVE_WATCHES: [string("/a"), int32(1)],
}  # fmt: skip
WITHOUT_ARGUMENTS = {O.ERROR, O.CLOSE_SESSION, O.PING, O.RECONFIG, O.DELETE_CONTAINER, O.SASL, O.WHO_AM_I}
CONNECT = [int32(0), int64(0), int32(1_000), int64(0), buffer(bytes(16))]
WRONG_TEXTS = (int32(-2), int32(1 << 30), int32(5) + b"/a", int32(2) + b"\xff\xfe", int32((1 << 31) - 1) + b"/a")
WRONG_COUNTS = (-2, 1 << 30, (1 << 31) - 1, -(1 << 31))


def decoded(op: OpCode, fields: list[bytes]) -> object:
    """Return the body of a request as the endpoint reads it, None for one that it cannot read."""
    return decode_request(int32(1) + int32(op) + b"".join(fields)).body


def texts(fields: list[bytes]) -> list[int]:
    """Return the indexes of the counted fields, which are the longer ones."""
    return [at for at, field in enumerate(fields) if len(field) > 4 and field[:4] == int32(len(field) - 4)]


def test_every_operation_is_in_the_table_and_is_read_whole() -> None:
    assert set(REQUESTS) | WITHOUT_ARGUMENTS == set(OpCode)
    for op, fields in REQUESTS.items():
        assert decoded(op, fields) is not None, op


@pytest.mark.parametrize("op", REQUESTS)
def test_a_request_that_ends_early_is_unreadable(op: OpCode) -> None:
    whole = b"".join(REQUESTS[op])
    for length in range(len(whole)):
        assert decoded(op, [whole[:length]]) is None, length


@pytest.mark.parametrize("op", REQUESTS)
def test_each_text_has_its_length_and_is_utf8(op: OpCode) -> None:
    fields = REQUESTS[op]
    found = texts(fields)
    assert found
    for at in found:
        for wrong in WRONG_TEXTS:
            mutant = [*fields[:at], wrong, *fields[at + 1 :]]
            if wrong == int32(2) + b"\xff\xfe" and fields[at] in (buffer(b"v"), buffer(b"me:secret")):
                assert decoded(op, mutant) is not None, "a value is any bytes"
            elif wrong == int32(5) + b"/a" and at + 1 < len(fields):
                decoded(op, mutant)  # it takes bytes of the next field: read as something else, or not at all
            else:
                assert decoded(op, mutant) is None, (at, wrong)


@pytest.mark.parametrize("op", [O.CREATE, O.CREATE2, O.CREATE_CONTAINER, O.CREATE_TTL, O.SET_ACL, O.SET_WATCHES])
@pytest.mark.parametrize("count", WRONG_COUNTS)
def test_a_count_is_not_believed(op: OpCode, count: int) -> None:
    fields = list(REQUESTS[op])
    at = fields.index(int32(1))
    fields[at] = int32(count)
    assert decoded(op, fields) is None


@pytest.mark.parametrize("op", [O.ADD_WATCH, O.CHECK_WATCHES, O.REMOVE_WATCHES])
@pytest.mark.parametrize("number", [-1, 7, 1 << 30, -(1 << 31)])
def test_a_kind_of_watch_is_one_of_the_table(op: OpCode, number: int) -> None:
    assert decoded(op, [string("/a"), int32(number)]) is None


@pytest.mark.parametrize("number", [-1, 0, O.MULTI, O.PING, O.AUTH, 1 << 30])
def test_a_multi_holds_only_what_it_may(number: int) -> None:
    for op in (O.MULTI, O.MULTI_READ):
        header = [int32(number), boolean(False), int32(-1)]
        assert decoded(op, [*header, *REQUESTS[op]]) is None


def test_the_hello_is_whole() -> None:
    whole = b"".join(CONNECT)
    assert decode_connect(whole).password == bytes(16)
    for length in range(len(whole)):
        with pytest.raises(MetadataProtocolError):
            decode_connect(whole[:length])
    for wrong in (int32(-2), int32(17) + bytes(16), int32((1 << 31) - 1)):
        with pytest.raises(MetadataProtocolError):
            decode_connect(b"".join([*CONNECT[:-1], wrong]))
