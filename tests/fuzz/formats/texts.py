"""Formats of text, and the rows that tables have: log lines, the audit log, WebSocket frames, checkpoints, columns."""

from __future__ import annotations

import asyncio
import json
import tempfile
from abc import abstractmethod
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, cast

from typing_extensions import override

from heliograph.auth.audit import AuditLog
from heliograph.auth.config import AuditConfig
from heliograph.auth.principal import INTERNAL
from heliograph.base.errors import BadRequestError, ChecksumError, ProtocolError
from heliograph.cluster.logs.lines import LogLine, encoded, parsed
from heliograph.gateway.shapes.payload_forms import message_text
from heliograph.gateway.websocket.frames import RefusedFrame, command_error, receipt, send_frame
from heliograph.pipelines.planning.ranges import LedgerRange
from heliograph.pipelines.reading.columns import Rows
from heliograph.pipelines.streaming.checkpoint import Batch, StreamCheckpoint
from tests.fuzz.formats.broker import entry_of
from tests.fuzz.formats.format import Form, Format
from tests.fuzz.formats.wire import ledger_image, ledger_payloads
from tests.unit.pipelines.test_ranges import a_range

AUDIT_CHARACTERS = 150  # of an argument: longer ones are cut


class LogLines(Format):
    """Lines of a log whose messages, and the ids beside them, are texts of clients."""

    form = Form.LOG
    refusals = ()
    is_checked = False
    reads_anything = False  # contents may be lines, which are believed
    layout: ClassVar[str]

    @override
    def fit(self, content: bytes) -> bytes:
        return super().fit(content)[:500].strip() or b"-"

    @override
    def write(self, contents: Sequence[bytes], old: bytes) -> bytes:
        lines = [
            LogLine(place, "INFO", "broker-1", "heliograph.x", f"said {_text(content)}", (("topic", _text(content)),))
            for place, content in enumerate(contents)
        ]
        return b"".join(encoded(line, self.layout) + b"\n" for line in lines)

    @override
    def read(self, image: bytes) -> list[bytes]:
        found = list(parsed(image, "broker-1"))
        assert [line.time_ms for line in found] == list(range(len(found))), "no line is made up"
        assert all((line.level, line.part, line.module) == ("INFO", "broker-1", "heliograph.x") for line in found)
        return [self.content_of(line) for line in found]

    @abstractmethod
    def content_of(self, line: LogLine) -> bytes:
        """Return the content of a line."""

    @override
    def pieces(self) -> list[bytes]:
        return [
            b"\n2026-01-01T05:15:00.000Z ERROR bookie-1 heliograph.x: forged",
            b'\n{"time":"2026-01-01T05:15:00.000Z"}\n',
        ]

    @override
    def may_find(self, stored: Sequence[bytes], found: Sequence[bytes]) -> bool:
        """A line that is cut off is shorter, or a part of the line before it: it has no checksum."""
        whole = max(0, len(found) - 1)
        return list(found[:whole]) == list(stored)[:whole] and len(found) <= len(stored)


def _text(content: bytes) -> str:
    return content.decode("latin-1")


class TextLines(LogLines):
    """The text format. Control characters are shown escaped, so contents are compared by what is shown."""

    name = "log lines"
    layout = "text"

    @override
    def fit(self, content: bytes) -> bytes:
        text = "".join(each if each.isprintable() or each == "\n" else "?" for each in _text(super().fit(content)))
        return "\n".join(line for line in text.split("\n") if line.strip()).strip().encode("latin-1") or b"-"

    @override
    def content_of(self, line: LogLine) -> bytes:
        return line.message.removeprefix("said ").encode("latin-1", "replace")


class JsonLines(LogLines):
    """The JSON format."""

    name = "log lines in JSON"
    layout = "json"

    @override
    def content_of(self, line: LogLine) -> bytes:
        assert line.message.removeprefix("said ").startswith(dict(line.ids)["topic"])
        return line.message.removeprefix("said ").encode("latin-1")


class AuditLines(Format):
    """The audit log, whose targets are texts of clients; a crash cuts it off, and the next process goes on in it."""

    name = "audit log"
    form = Form.LOG
    refusals = ()
    is_checked = False
    reads_anything = False  # contents may be lines, which are believed

    @override
    def fit(self, content: bytes) -> bytes:
        return content[:AUDIT_CHARACTERS]

    @override
    def write(self, contents: Sequence[bytes], old: bytes) -> bytes:
        return self._written(b"", contents)

    def _written(self, before: bytes, contents: Sequence[bytes]) -> bytes:
        async def note(path: Path) -> None:
            audit = AuditLog(AuditConfig(file=str(path)), "broker-1")
            audit.start()
            for content in contents:
                audit.creation(INTERNAL, _text(content), "127.0.0.1", 1)
            await audit.stop()

        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "audit.log"
            path.write_bytes(before)
            asyncio.run(note(path))
            return path.read_bytes()

    @override
    def read(self, image: bytes) -> list[bytes]:
        """Go on in the file with one line more, and read all lines that are whole."""
        last = b"the next process"
        found = []
        for line in self._written(image, [last]).split(b"\n"):
            try:
                fields = json.loads(line)
            except ValueError:
                continue  # cut off by the crash
            assert (fields["broker"], fields["operation"], fields["outcome"]) == ("broker-1", "create_topic", "done")
            found.append(fields["target"].encode("latin-1"))
        assert found[-1:] == [last], "a line behind the tear is whole"
        return found[:-1]

    @override
    def pieces(self) -> list[bytes]:
        return [b'"}\n{"time":"1","broker":"b","operation":"x"}', b'","outcome":"refused']


class WebSocketFrames(Format):
    """Frames of producers and consumers: payload, key, properties and context are a client's."""

    name = "websocket"
    form = Form.VALUE
    refusals = (RefusedFrame,)
    contents_max = 1
    is_checked = False
    reads_anything = False  # any frame is a client's

    @override
    def write(self, contents: Sequence[bytes], old: bytes) -> bytes:
        (content,) = contents
        text = _text(content)
        fields = {"payload": b64encode(content).decode(), "key": text, "properties": {text: text}, "context": text}
        return json.dumps(fields).encode()

    @override
    def read(self, image: bytes) -> list[bytes]:
        frame = send_frame(image.decode("latin-1"), 1 << 20)
        content = frame.payload or b""
        text = _text(content)
        assert (frame.key, frame.properties, frame.context) == (text, {text: text}, text)
        answer, refusal = json.loads(receipt("id", text)), json.loads(command_error(7, text, text))
        assert (answer["context"], answer["result"], len(answer)) == (text, "ok", 5)
        assert (refusal["errorMsg"], refusal["context"], len(refusal)) == (text, text, 3)
        message = SimpleNamespace(
            data=content,
            value=content,
            key=text,
            properties={text: text},
            publish_time_ms=1,
            event_time_ms=0,
            redelivery_count=0,
        )
        sent = json.loads(message_text(cast(Any, message), "id", "base64"))
        assert (sent["payload"], sent["key"]) == (b64encode(content).decode(), text)
        assert (sent["messageId"], sent["properties"]) == ("id", {text: text})
        return [content]


class CheckpointFile(Format):
    """The plan of a micro-batch: the names of topics, addresses and racks are texts of others."""

    name = "checkpoint of a stream"
    form = Form.VALUE
    refusals = (BadRequestError,)
    is_checked = False
    reads_anything = False

    @override
    def write(self, contents: Sequence[bytes], old: bytes) -> bytes:
        batch = Batch(3, tuple(map(_range_of, contents)), {0: (1, 2)})
        with tempfile.TemporaryDirectory() as folder:
            StreamCheckpoint(Path(folder)).plan(batch)
            return (Path(folder) / "plan-3.json").read_bytes()

    @override
    def read(self, image: bytes) -> list[bytes]:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "plan-3.json").write_bytes(image)
            batch = StreamCheckpoint(Path(folder)).last_plan()
        assert batch is not None
        assert (batch.batch_id, batch.next_positions) == (3, {0: (1, 2)})
        contents = [piece.topic.encode("latin-1") for piece in batch.ranges]
        assert list(batch.ranges) == list(map(_range_of, contents))
        return contents

    @override
    def pieces(self) -> list[bytes]:
        return [b'"}], "next": {"0": [9, 9]}}', b'{"ranges": [], "next": {}}']


def _range_of(content: bytes) -> LedgerRange:
    text = _text(content)
    return replace(a_range(0, 9), topic=text, addresses=(("b1", text),), racks=(("b1", text),))


class TableRows(Format):
    """Rows of a table, which Ray's object store holds: values, keys and properties are a client's."""

    name = "rows of tables"
    form = Form.STREAM
    refusals = (ChecksumError, ProtocolError)

    @override
    def write(self, contents: Sequence[bytes], old: bytes) -> bytes:
        return ledger_image([entry_of(content, place) for place, content in enumerate(contents)])

    @override
    def read(self, image: bytes) -> list[bytes]:
        rows = Rows(("value", "__key", "__messageProperties", "__messageId"))
        for place, payload in enumerate(ledger_payloads(image)):
            rows.add_entry("persistent://public/default/t", -1, 7, place, payload)
        found, place = [], 0
        table = rows.take().to_pylist()
        while table:
            row, place = table.pop(0), place + 1
            match (place - 1) % 4:
                case 0:
                    found.append(row["value"])
                case 1:
                    found.append(row["value"])
                    assert table.pop(0)["__key"] == row["value"]
                case 2:
                    found.append(row["__key"])
                case _:
                    ((name, value),) = row["__messageProperties"]
                    assert name == value
                    found.append(value.encode("latin-1"))
        return found
