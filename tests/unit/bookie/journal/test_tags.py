"""The tag of a journal file: a new secret for each use, and a part of what each record's checksum is over (I19)."""

from __future__ import annotations

from pathlib import Path

from heliograph.actors.bookie.disk.disk import RealDisk
from heliograph.actors.bookie.journal import format as journal_format
from heliograph.actors.bookie.journal.files import JournalFiles
from heliograph.actors.bookie.journal.format import Kind, batch_bytes, decode_file_header
from heliograph.actors.bookie.journal.scan import scan_bytes
from heliograph.actors.wire.entry import encode_entry
from tests.hostile_bytes import RECORD_BYTES, journal_record
from tests.unit.bookie.journal.test_journal_format import Writer

FILE_BYTES = 64 << 10
USES = 3  # of each file
FILES = 3


def test_each_record_is_checksummed_with_its_tag() -> None:  # I19
    """The bytes are those of the format's description, computed a second time."""
    tag = 0x0123_4567_89AB_CDEF
    for size in (0, 100, 40_000):
        records = [(Kind.ENTRY, encode_entry(1, 2, 1, 9, b"x" * size)), (Kind.FENCE, bytes(8))]
        batch = bytearray(batch_bytes(records))
        journal_format.encode_batch(batch, 0, records, tag.to_bytes(8, "big"), 70, 4)
        expected = b"".join(
            journal_record(tag, 70 + place, 4, kind, payload) for place, (kind, payload) in enumerate(records)
        )
        padding = bytes(len(batch) - len(expected) - RECORD_BYTES)
        assert bytes(batch) == expected + journal_record(tag, 72, 4, Kind.END, padding)


def test_records_of_an_earlier_use_are_not_seen_though_their_counters_go_on() -> None:  # I19
    """The old file had as many records in its first batch, so only the tag tells the second from one of this use."""
    old = Writer(3)
    for payload in (b"old 1", b"old 2"):
        old.add(payload)
    new = Writer(4, old=bytes(old.content))
    new.add(b"new 1")
    assert new.read() == [[b"new 1"]]


def test_each_use_of_a_file_has_a_tag_of_its_own(tmp_path: Path) -> None:  # I19
    """New files, spares that are used again, and files of the next start."""
    disk, tags, used = RealDisk(), set[bytes](), set[int]()
    tmp_path.mkdir(exist_ok=True)
    for _ in range(USES):
        files = JournalFiles(disk, tmp_path, FILE_BYTES, 1)
        for _ in range(FILES):
            ready = files.make_ready()
            content = Path(ready.file.path).read_bytes()
            header = decode_file_header(content, "x")
            assert header is not None
            assert (header.file_id, header.tag) == (ready.file_id, ready.tag)
            assert list(scan_bytes(content, ready.file_id, "x", has_header=True)[1]) == []
            tags.add(ready.tag)
            used.add(Path(ready.file.path).stat().st_ino)
            ready.file.close()
        files.recycle_below(files.next_id)
    assert len(used) < USES * FILES, "spares were used again"
    assert len(tags) == USES * FILES
    assert not {int.from_bytes(tag, "big") for tag in tags} & set(range(1_000)), "a client could guess the file's id"
