"""The table of errors, the configuration, and the parts without I/O: windows, times, ids, paths, Avro as JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest

from heliograph.base import errors as tree
from heliograph.base.clock import iso_time
from heliograph.base.errors import (
    BadRequestError,
    HeliographError,
    InvalidConfigError,
    InvalidMessageIdError,
    UnsupportedError,
)
from heliograph.client.schemas.avro_bounds import DEPTH_MAX
from heliograph.client.schemas.records import AvroSchema
from heliograph.gateway.config import GatewayConfig
from heliograph.gateway.errors import ErrorRow, body_of, row_of
from heliograph.gateway.shapes.avro_text import DEFINITION_BYTES_MAX, VALUE_BYTES_MAX, avro_text
from heliograph.gateway.shapes.json_forms import from_base64, from_iso_time, id_from_text, id_text
from heliograph.gateway.shapes.url_segments import decoded, routed_path
from heliograph.gateway.websocket.windows import PERMITS_MAX, RECEIVER_QUEUE_MAX, PermitWindow, PushWindow, ReaderWindow
from heliograph.metadata.errors import ConnectionLossError, MetadataError, SessionExpiredError
from heliograph.protocol.message_id import MessageId


def _classes(kind: type[HeliographError]) -> list[type[HeliographError]]:
    return [kind, *(found for child in kind.__subclasses__() for found in _classes(child))]


@pytest.mark.parametrize(
    ("error", "http", "upgrade"),
    [
        (tree.TopicNotFoundError("x"), 404, 404),
        (tree.InvalidTopicNameError("x"), 412, 400),
        (tree.InvalidMessageIdError("x"), 400, 400),
        (tree.MessageTooLargeError("x"), 413, 413),
        (tree.TopicExistsError("x"), 409, 409),
        (tree.ConsumerBusyError("x"), 409, 409),
        (tree.ProducerFencedError("x"), 409, 409),
        (tree.TopicBusyError("x"), 412, 409),
        (tree.UnsupportedError("x"), 501, 501),
        (tree.ServiceNotReadyError("x"), 503, 503),
        (tree.StorageFullError("x"), 507, 503),
        (tree.RequestTimeoutError("x"), 504, 504),
        (tree.ReceiveTimeoutError("x"), 504, 504),
        (tree.TopicTerminatedError("x"), 409, 503),
        (tree.QuotaExceededError("x"), 503, 503),
        (ConnectionLossError("x"), 503, 503),  # not in the table: its advice decides
        (SessionExpiredError("x"), 500, 500),
        (RuntimeError("x"), 500, 500),
    ],
)
def test_statuses(error: Exception, http: int, upgrade: int) -> None:
    row = row_of(error)
    assert (row.http, row.upgrade) == (http, upgrade)


def test_every_error_of_the_tree_has_a_legal_row() -> None:
    assert MetadataError in _classes(HeliographError)
    made_of_arguments: dict[type, HeliographError] = {
        tree.DataLostError: tree.DataLostError("t", -1, (1, 2), None),
        tree.MayBeTwiceError: tree.MayBeTwiceError("t", "q", 1),
    }
    for kind in _classes(HeliographError):
        row = row_of(made_of_arguments.get(kind) or kind("x"))
        assert isinstance(row, ErrorRow)
        assert 400 <= row.http < 600
        assert 400 <= row.upgrade < 600
        assert row.close in (1008, 1009, 1011, 1013)
        if kind.advice is not tree.Advice.STOP:
            assert row.http in (429, 503, 504, 507), f"{kind.__name__} may be retried, a {row.http} would say otherwise"


def test_a_body_names_field_limit_and_advice() -> None:
    error = BadRequestError("too many", field="max", limit="10 messages")
    assert body_of(error) == {"reason": "too many", "advice": "stop", "field": "max", "limit": "10 messages"}
    assert body_of(tree.TopicNotFoundError()) == {"reason": "TopicNotFoundError", "advice": "stop"}
    assert body_of(RuntimeError("secret"))["reason"] == "internal error, see the gateway's log"


def test_configuration_comes_from_plain_settings() -> None:
    config = GatewayConfig.from_mapping({"port": "0", "service_urls": "pulsar://a:1, pulsar://b:2", "host": "::1"})
    assert (config.port, config.host) == (0, "::1")
    assert config.service_urls == ("pulsar://a:1", "pulsar://b:2")
    assert config.websocket_frame_bytes_max > config.max_message_bytes * 4 / 3


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"prot": 1}, "prot"),
        ({"port": 70_000}, "port"),
        ({"port": "http"}, "port"),
        ({"port": True}, "port"),
        ({"rest_consumers_max": 0}, "rest_consumers_max"),
        ({"websocket_ping_seconds": -1}, "websocket_ping_seconds"),
        ({"max_message_bytes": 100, "request_bytes_max": 99}, "request_bytes_max"),
    ],
)
def test_a_setting_that_is_off_is_named(settings: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidConfigError) as caught:
        GatewayConfig.from_mapping(settings)
    assert caught.value.field == field


def test_a_push_window_counts_ids() -> None:
    """I15: what is sent and not settled is bounded."""
    window = PushWindow(3)
    window.on_sent("ab")
    window.on_sent("b")  # a redelivery counts once
    assert window.room() == 1
    window.on_settled("unknown")
    window.on_permits(5)
    assert window.room() == 1
    window.on_settled("a")
    assert window.room() == 2
    assert window.unsettled == frozenset("b")
    window.on_settled_up_to("b")
    assert window.room() == 3
    window.on_sent("xyz")
    assert window.room() == 0
    window.on_reset()
    assert window.room() == 3
    assert PushWindow(10**9).room() == RECEIVER_QUEUE_MAX
    assert PushWindow(0).room() == 1


def test_a_permit_window_counts_permits() -> None:
    """I15: no more is sent than was asked for."""
    window = PermitWindow()
    assert window.room() == 0
    window.on_permits(2)
    window.on_sent("a")
    window.on_settled("a")
    window.on_settled_up_to("a")
    window.on_reset()
    assert window.room() == 1
    window.on_permits(10**12)
    assert window.room() == PERMITS_MAX
    with pytest.raises(AssertionError):
        PermitWindow().on_sent("a")


def test_a_reader_window_counts_confirmations() -> None:
    window = ReaderWindow(2)
    window.on_sent("ab")
    assert window.room() == 0
    window.on_settled(None)
    assert window.room() == 1
    for _ in range(5):
        window.on_settled(None)
    assert window.room() == 2
    window.on_sent("ab")
    window.on_permits(1)
    window.on_settled_up_to("ab")
    assert window.room() == 0
    window.on_reset()
    assert window.room() == 2


@pytest.mark.parametrize("time_ms", [0, 1, 999, 1357034400000, 1_700_000_000_123, 253_402_300_799_999])
def test_times_go_both_ways(time_ms: int) -> None:
    assert from_iso_time(iso_time(time_ms), "t") == time_ms


@pytest.mark.parametrize("time_ms", [2**63 - 1, -5])
def test_a_time_that_iso_cannot_say_stops_nobody(time_ms: int) -> None:
    assert iso_time(time_ms) in ("9999-12-31T23:59:59.999Z", "1970-01-01T00:00:00.000Z")


@pytest.mark.parametrize("id_", [MessageId(0, 3, batch_index=0), MessageId(2**40, 7, 2, 5, 9), MessageId.EARLIEST])
def test_ids_go_both_ways(id_: MessageId) -> None:
    assert id_from_text(id_text(id_)) == id_
    assert id_text(id_) == id_.to_base64()


def test_pulsars_own_example_of_an_id() -> None:
    assert id_from_text("CAAQAyAA") == MessageId(0, 3, batch_index=0)


@pytest.mark.parametrize("text", [None, 5, "", "a", "====", "AAAA", "CAA="])
def test_what_is_no_id(text: object) -> None:
    with pytest.raises(InvalidMessageIdError) as caught:
        id_from_text(text, "messageIds.3")
    assert caught.value.field == "messageIds.3"


@pytest.mark.parametrize("text", ["*", "a b", "YQ==\n", "YQ===", "é", "YR=="[:1]])
def test_what_is_no_base64(text: str) -> None:
    with pytest.raises(BadRequestError):
        from_base64(text, "payload")


@pytest.mark.parametrize(
    ("raw", "path"),
    [
        (b"/a/b", "/a/b"),
        (b"/a/b/", "/a/b"),
        (b"/", "/"),
        (b"/a%20b/c%2Fd", "/a b/c%2Fd"),
        (b"/a%252Fb", "/a%252Fb"),
        (b"/%C3%A9", "/é"),
    ],
)
def test_paths_are_split_before_they_are_decoded(raw: bytes, path: str) -> None:
    assert routed_path({"raw_path": raw, "path": "ignored"}) == path


@pytest.mark.parametrize("text", ["plain", "a/b", "100%", "%2F", "a%2Fb/c", "%25"])
def test_a_segment_survives(text: str) -> None:
    from urllib.parse import quote

    (_, segment) = routed_path({"raw_path": b"/" + quote(text, safe="").encode()}).split("/")
    assert decoded(segment) == text


def record(name: str, *types: Any, namespace: str | None = None) -> dict[str, Any]:
    fields = [{"name": f"f{number}", "type": kind} for number, kind in enumerate(types)]
    return {"type": "record", "name": name, "fields": fields} | ({} if namespace is None else {"namespace": namespace})


def chained(count: int) -> dict[str, Any]:
    """Return a record whose fields are records, each of which has the one before it."""
    return record("R", record("R0", "int"), *[record(f"R{n}", f"R{n - 1}") for n in range(1, count)])


@pytest.mark.parametrize(
    "definition",
    [
        record("R", ["null", "R"]),  # a byte a level: the library would end the process
        record("R", ["null", record("S", {"type": "array", "items": "R"})]),
        record("R", ["null", "a.R"], namespace="a"),
        record("R", {"type": "map", "values": "a.R"}, namespace="a"),
        record("R", {"type": "array", "items": "null"}),  # any number of items in ten bytes
        record("R", {"type": "array", "items": record("S")}),
        record("R", {"type": "array", "items": {"type": "fixed", "name": "F", "size": 0}}),
        chained(DEPTH_MAX + 2),
        record("R", *["int"] * (DEFINITION_BYTES_MAX // 20)),
    ],
)
def test_a_definition_that_bounds_no_value_is_refused(definition: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError) as refused:
        avro_text(json.dumps(definition).encode(), "valueSchema")
    assert refused.value.field == "valueSchema"


def test_named_types_may_occur_again() -> None:
    place = record("Place", "string", namespace="a.b")
    definition = record("R", place, ["null", "a.b.Place"], {"type": "array", "items": "a.b.Place"})
    value: dict[str, Any] = {"f0": {"f0": "é"}, "f1": {"f0": "x"}, "f2": [{"f0": ""}]}
    packed = AvroSchema(definition).encode(value)
    assert json.loads(avro_text(json.dumps(definition).encode(), "valueSchema")(packed)) == value


def test_a_value_that_would_be_too_much_is_an_error() -> None:
    for definition, packed in (
        (record("R", "bytes"), b"\x02a"),  # JSON has no bytes
        (record("R", "double"), b"\x00\x00\x00\x00\x00\x00\xf8\x7f"),  # nor NaN
        (record("R", "string"), b"\x7f"),
        (record("R", "string"), b"\x00" * (VALUE_BYTES_MAX + 1)),
        (record("R", {"type": "enum", "name": "E", "symbols": ["A" * 60_000]}), b"\x00" * 2_000),
    ):
        with pytest.raises(HeliographError):
            avro_text(json.dumps(definition).encode(), "valueSchema")(packed)
