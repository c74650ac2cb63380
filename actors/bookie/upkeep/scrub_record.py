"""The record of a scrub, which survives restarts: its place and counts, in the file ``scrub`` of a data directory.

The file serves people and spares work: without it, or with a damaged one, the next pass reads everything.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from heliograph.actors.bookie.disk.disk import Disk, read_file, replace_file
from heliograph.actors.errors import BookieStorageError, DiskPoisonedError
from heliograph.metadata import codec
from heliograph.metadata.errors import RecordError

RECORD_NAME = "scrub"  # in the first data directory

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ScrubRecord:
    """The sums of all passes of a bookie, and the place of the pass that is not complete.

    Attributes:
        begun_ms, ended_ms: when the latest pass began, and the latest complete one ended; milliseconds since the epoch,
            0: never.
        next_ledger: the pass that is not complete has read the ledgers below it; -1: no pass is under way.
        marked: ledgers that were marked for repair and not mended yet; those with the smallest ids.
        unclosed: damaged ledgers that were still open.
    """

    passes: int = 0
    entries: int = 0
    bytes: int = 0
    damaged_entries: int = 0
    incomplete_ledgers: int = 0
    ledgers_marked: int = 0
    ledgers_mended: int = 0
    begun_ms: int = 0
    ended_ms: int = 0
    next_ledger: int = -1
    marked: tuple[int, ...] = ()
    unclosed: tuple[int, ...] = ()


def load(disk: Disk, directory: Path) -> ScrubRecord:
    """Read the record; an empty one if there is none, or it cannot be read. Blocks.

    Raises:
        DiskPoisonedError: the state of the disk is unknown.
    """
    path = directory / RECORD_NAME
    try:
        return codec.decode(ScrubRecord, read_file(disk, path))
    except FileNotFoundError:
        return ScrubRecord()
    except DiskPoisonedError:
        raise
    except (RecordError, BookieStorageError) as error:
        log.warning("the scrub begins from the start, as %s cannot be read: %s", path, error)
        return ScrubRecord()


def save(disk: Disk, directory: Path, record: ScrubRecord) -> None:
    """Replace the record durably. Blocks.

    Raises:
        BookieStorageError: the old one stays.
    """
    replace_file(disk, directory / RECORD_NAME, codec.encode(record))
