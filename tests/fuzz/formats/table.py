"""Every format, and every heading of the documents that describe formats."""

from __future__ import annotations

import functools
import time
from concurrent.futures import ThreadPoolExecutor
from random import Random

from tests.fuzz.formats import broker, metadata, texts, wire
from tests.fuzz.formats.format import FORGED, Format, WrongContentError, examine

_NO_CLIENT = "numbers and names that the cluster makes; no bytes of a client"
_FOREIGN = "another program's format, around the records of the metadata store"
_DISK = "tests/cluster/bookie/damage/test_hostile_content.py"

FORMATS: dict[str, type[Format]] = {
    kind.name: kind
    for kind in (
        wire.EntryFormat,
        wire.JournalFormat,
        wire.BookieFrames,
        wire.PulsarFrames,
        wire.MetadataFrames,
        wire.ZookeeperFrames,
        wire.PartFrames,
        broker.TopicEntries,
        broker.CursorLedger,
        broker.DedupLedger,
        broker.DelayedLedger,
        broker.CompactedForm,
        metadata.CursorRecords,
        metadata.TopicRecords,
        metadata.NamespaceRecords,
        metadata.SchemaRecords,
        metadata.EmbeddedStore,
        metadata.BackupFile,
        metadata.EtcdNodes,
        texts.TextLines,
        texts.JsonLines,
        texts.AuditLines,
        texts.WebSocketFrames,
        texts.CheckpointFile,
        texts.TableRows,
    )
}

# Headings whose formats are tried by a test that needs a bookie's disk.
ELSEWHERE = {
    "formats-bookie.md#Entry log": _DISK,
    "formats-bookie.md#Kept journal file": "tests/cluster/bookie/damage/test_adopted_files.py",
    "formats-bookie.md#After a crash": "tests/cluster/bookie/damage/test_crash_images.py",
}
# Headings under which nothing of a client is stored, or no format is described.
REASONS = {
    "formats-bookie.md#Directories": "names of files",
    "formats-bookie.md#Cookie": _NO_CLIENT,
    "formats-bookie.md#Index": _NO_CLIENT,
    "formats-bookie.md#Mark": _NO_CLIENT,
    "formats-bookie.md#Fence": _NO_CLIENT,
    "formats-bookie.md#Limbo": _NO_CLIENT,
    "formats-bookie.md#Deleted ledgers": "what happens to ledgers that metadata does not have",
    "formats-bookie.md#Surplus": _NO_CLIENT,
    "formats-bookie.md#Compaction": "what happens to entry logs",
    "formats-bookie.md#Looking into a stopped bookie": "commands",
    "formats-metadata.md#The chain of a topic": _NO_CLIENT,
    "formats-metadata.md#The server's directory": _NO_CLIENT,
    "formats-metadata.md#On ZooKeeper": _FOREIGN,
    "formats-metadata.md#Members of etcd that the cluster runs": _NO_CLIENT,
    "formats-pulsar.md#Features": "flags",
    "formats-pulsar.md#Message ids": "numbers, in protobuf",
    "formats-pulsar.md#Who checks what": "a list of checks",
}


IMAGES_OF_A_FORMAT = 4


def own_bytes(random: Random, size: int) -> bytes:
    """Return ``size`` bytes of whole images of any formats, for a client that stores them as one payload."""
    content = bytearray()
    while len(content) < size:
        content += _image_of(random.choice(list(FORMATS)), random.randrange(IMAGES_OF_A_FORMAT))
    return bytes(content[:size])


@functools.cache
def _image_of(name: str, seed: int) -> bytes:
    kind = FORMATS[name]
    form = kind(Random(seed))
    contents = [form.fit(b"%s %d" % (FORGED, place)) for place in range(kind.contents_max)]
    with ThreadPoolExecutor(1) as beside:  # the caller may be a coroutine, and some formats have a loop of their own
        return beside.submit(form.write, contents, b"").result()


def run_for(seconds: float, seed: int, *, rounds: int | None = None) -> int:
    """Try all formats in turns for some time, or so many times, and print what is found: 1 stands for something."""
    end, images, first = time.monotonic() + seconds, 0, seed
    while True:
        for name, kind in FORMATS.items():
            try:
                images += examine(kind, seed)
            except Exception as error:
                print(f"formats: {name}, seed {seed}: {type(error).__name__}: {error}", flush=True)
                if not isinstance(error, WrongContentError):
                    raise
                return 1
        seed += 1
        if time.monotonic() >= end if rounds is None else seed - first >= rounds:
            print(f"formats: seeds {first} to {seed - 1}, {images:,} images read", flush=True)
            return 0
