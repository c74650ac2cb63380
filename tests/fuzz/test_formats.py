"""Hostile contents in every format that holds bytes of clients. ``make fuzz`` tries more seeds."""

from __future__ import annotations

import asyncio
import re
from random import Random

import pytest

from tests.fuzz.formats.format import Format, examine
from tests.fuzz.formats.table import ELSEWHERE, FORMATS, REASONS, own_bytes
from tests.rules.source import ROOT
from tests.sabotage import sabotaged

SEEDS = 8
SEEDS_OF_A_SABOTAGE = 20  # each is found within so many
FIRST = {"only the end of the store's log may be torn": 20}  # a seed shortly before the one that finds it
HEADING = re.compile(r"^###? (.+)$", re.MULTILINE)
A = "heliograph.actors."
NOTICES = (AssertionError, LookupError, TypeError, ValueError)

# By what is missing: the format, the function, the text that is replaced, and by what.
SABOTAGES: dict[str, tuple[str, str, str, str]] = {
    "entries are compared with their checksum": (
        "entries", f"{A}ledger.driver.answers:batch_of_entries",
        "or crc32c(body[start + CHECKED_AT : end]) != checksum", "",
    ),
    "records of a journal have its tag": ("journal", f"{A}bookie.journal.scan:_read_record", "found_tag != tag or", ""),
    "only brokers note something of an entry": (
        "pulsar frames", "heliograph.protocol.frame:PulsarFrameDecoder._read_frame",
        "while section[:2]", "if section[:2]",
    ),
    "names of producers are no rows of chunks": (
        "deduplication ledger", f"{A}broker.dedup.record:_of_row", "isinstance(name, str)", "name[:1] != chr(0x93)",
    ),
    "a cursor's newest snapshot is whole": (
        "cursor ledger", f"{A}broker.cursor.recovery:read_from_snapshot",
        "last - newest.part if newest.completes_snapshot else newest.base", "last - newest.part",
    ),
    "records of metadata are compared with their checksum": (
        "topic records", "heliograph.metadata.codec:decode", 'parts[3] != b"%08x" % crc32c.crc32c(body)', "False",
    ),
    "sealed values are compared with their checksum": (
        "etcd backend", "heliograph.metadata.backends.etcd.wire.record:opened_any",
        "checksum != crc32c.crc32c(stored[4:], crc32c.crc32c(key))", "False",
    ),
    "only the end of the store's log may be torn": (
        "embedded store", "heliograph.metadata.backends.embedded.server.storage:_options",
        "tolerate_corrupted_tail_records", "skip_any_corrupted_record",
    ),
    "further lines of a message are indented": (
        "log lines", "heliograph.cluster.logs.lines:LogLine.as_text", "INDENT + line", "line",
    ),
    "a line behind a tear begins a line": (
        "audit log", "heliograph.base.guard.line_file:LineFile._write", "if size and", "if not size and",
    ),
}  # fmt: skip


def examine_all(kind: type[Format], seeds: int, first: int = 0) -> None:
    for seed in range(first, first + seeds):
        assert examine(kind, seed) > 1


@pytest.mark.parametrize("name", FORMATS)
def test_what_is_read_is_what_was_stored_or_is_refused(name: str) -> None:  # I19
    examine_all(FORMATS[name], SEEDS)


@pytest.mark.parametrize("name", SABOTAGES)
def test_a_sabotage_is_found(name: str) -> None:
    kind, target, old, new = SABOTAGES[name]
    with sabotaged(target, old, new), pytest.raises(NOTICES):
        examine_all(FORMATS[kind], SEEDS_OF_A_SABOTAGE, FIRST.get(name, 0))


def test_every_format_of_the_documents_is_tried() -> None:
    """A format in which bytes of clients are stored has a row; of any other heading it is said why it has none."""
    documents = sorted((ROOT / "docs").glob("formats*.md"))
    headings = {f"{path.name}#{name}" for path in documents for name in HEADING.findall(path.read_text())}
    tried = {heading for kind in FORMATS.values() for heading in kind.headings}
    assert headings == tried | set(ELSEWHERE) | set(REASONS)
    assert not tried & set(REASONS)
    assert all((ROOT / path).is_file() for path in ELSEWHERE.values())


def test_payloads_of_all_formats_are_made_for_other_tests() -> None:
    async def made() -> bytes:
        return own_bytes(Random(1), 400_000)

    found = asyncio.run(made())  # conversations are made on a loop
    assert len(found) == 400_000
    assert found == own_bytes(Random(1), 400_000)
    for head in (b"heliograph backup v1", b"heliograph TopicRecord v1", b"HELIOJNL", b'{"ranges"', b"INFO broker-1"):
        assert head in found
