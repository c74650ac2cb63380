"""Typed mutations of every request and answer of the embedded server: the connection ends, the server does not."""

from __future__ import annotations

from typing import Any

import pytest

from heliograph.metadata.backends.embedded.protocol import (
    GREETING_BYTES_MAX,
    MAGIC,
    PROTOCOL_VERSION,
    EmbeddedFrameDecoder,
    EmbeddedOp,
    decode_event,
    decode_stat,
    encode_frame,
)
from heliograph.metadata.backends.embedded.server.connection import EmbeddedConnection
from heliograph.metadata.errors import MetadataProtocolError
from tests.unit.metadata.test_embedded_service import World

WRONG: tuple[Any, ...] = (1.0, float("inf"), True, None, "2", b"2", [], [[]], {"a": 1})
REQUESTS: dict[EmbeddedOp, list[Any]] = {
    EmbeddedOp.HELLO: [MAGIC, PROTOCOL_VERSION, 1_000, 0, ""],
    EmbeddedOp.RESUME: [MAGIC, PROTOCOL_VERSION, 1, "", "owner", True],
    EmbeddedOp.PING: [],
    EmbeddedOp.APPLY: [[[1, "/a", b"", False, False]]],
    EmbeddedOp.GET: ["/", 1],
    EmbeddedOp.EXISTS: ["/", 1],
    EmbeddedOp.CHILDREN: ["/", 1],
    EmbeddedOp.WATCH: ["/", 1],
    EmbeddedOp.UNWATCH: [1],
    EmbeddedOp.RESET_WATCHES: [[[1, 1, "/", 0, 0]]],
    EmbeddedOp.SYNC: ["/"],
    EmbeddedOp.END_SESSION: [1, ""],
    EmbeddedOp.CLOSE: [],
    EmbeddedOp.REAPABLE: [1],
}
OPERATIONS: list[list[Any]] = [
    [1, "/a", b"", False, False],
    [1, "/a", b"", False, False, 0],
    [2, "/a", b"", 0],
    [3, "/a", 0],
    [4, "/a", 0],
    [5, "/a"],
]


WHOLE = [[EmbeddedOp.APPLY, [items]] for items in OPERATIONS]


def mutated(items: list[Any]) -> list[list[Any]]:
    """Return the items with each one in turn removed, or replaced by a value of another type, or with one more."""
    found = [
        [*items[:at], value, *items[at + 1 :]]
        for at in range(len(items))
        for value in WRONG
        if type(value) is not type(items[at]) and not (value is None and type(items[at]) is bytes)
    ]
    return [[*items, None], *found, *([*items[:at], *items[at + 1 :]] for at in range(len(items)))]


def frames() -> list[list[Any]]:
    wrong = [[op, *arguments] for op, whole in REQUESTS.items() for arguments in mutated(whole)]
    wrong += [[EmbeddedOp.APPLY, [mutant]] for items in OPERATIONS for mutant in mutated(items)]
    wrong += [[EmbeddedOp.RESET_WATCHES, [mutant]] for mutant in mutated([1, 1, "/", 0, 0])]
    wrong += [[EmbeddedOp.APPLY, [7]], [EmbeddedOp.RESET_WATCHES, [7]], [99], [0], [-1]]
    return wrong


async def test_each_field_of_a_request_has_exactly_its_type() -> None:
    world = World()
    watching = world.client()
    await watching.hello()
    for frame in frames():
        if frame in WHOLE:  # an operation without its last field, which it may lack
            continue
        client = world.client()
        if frame[0] not in (EmbeddedOp.HELLO, EmbeddedOp.RESUME):
            await client.hello()
        (request,) = EmbeddedFrameDecoder().feed(encode_frame([1, *frame]))
        with pytest.raises(MetadataProtocolError):
            world.service.handle(client, request)
    assert len(world.service.tree.nodes) == 1, "none of them changed anything"
    watching.ask(EmbeddedOp.PING)
    assert watching.answers[-1][1] == 0


@pytest.mark.parametrize("frame", [[True, 2], [1, True], [1.0, 2], [1, 2.0], ["1", 2], [1], [], {"a": 1}, 7], ids=repr)
def test_a_frame_begins_with_two_integers(frame: Any) -> None:
    with pytest.raises(MetadataProtocolError):
        EmbeddedFrameDecoder().feed(encode_frame(frame))


@pytest.mark.parametrize("value", WRONG, ids=repr)
def test_answers_and_notices_are_checked_too(value: Any) -> None:
    with pytest.raises(MetadataProtocolError):
        decode_stat(value)
    for at in range(10):
        with pytest.raises(MetadataProtocolError):
            decode_stat([0] * at + [value] + [0] * (9 - at))
    for at in range(2):
        with pytest.raises(MetadataProtocolError):
            decode_event([value if at == 0 else 1, value if at == 1 else 1, "/"])
    with pytest.raises(MetadataProtocolError):
        decode_event([1, 9, "/"])
    assert decode_event([1, 1, "/"])[0] == 1


async def test_a_client_without_a_session_gets_8_kib() -> None:  # I15
    world = World()
    stranger = EmbeddedConnection(world.service)
    stranger.data_received((GREETING_BYTES_MAX + 1).to_bytes(4, "big"))
    assert stranger.is_closing
    client = world.client()
    await client.hello()
    client.data_received((1 << 20).to_bytes(4, "big") + b"x" * 100)
    assert not client.is_closing
