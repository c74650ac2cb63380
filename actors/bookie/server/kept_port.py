"""The port of a bookie that takes a free one: it is kept in the file ``port`` of the first data directory.

Plans of tables, and lookups of brokers, have the addresses of bookies. So a bookie that starts again takes its port
again, if that is free. The file spares waiting: without it, or with a damaged one, the bookie takes another port.
"""

from __future__ import annotations

import logging
from pathlib import Path

from heliograph.actors.bookie.disk.disk import Disk, read_file, replace_file
from heliograph.actors.errors import BookieStorageError, DiskPoisonedError

FILE_NAME = "port"
PORT_MAX = 65_535

log = logging.getLogger(__name__)


def load(disk: Disk, directory: Path) -> int:
    """Return the port of the start before; 0 if there was none, or it cannot be read. Blocks.

    Raises:
        DiskPoisonedError: the state of the disk is unknown.
    """
    try:
        port = int(read_file(disk, directory / FILE_NAME))
    except DiskPoisonedError:
        raise
    except (FileNotFoundError, ValueError, BookieStorageError):
        return 0
    return port if 0 < port <= PORT_MAX else 0


def save(disk: Disk, directory: Path, port: int) -> None:
    """Keep a port for the next start. A disk that is full keeps none. Blocks.

    Raises:
        DiskPoisonedError: the state of the disk is unknown.
    """
    try:
        replace_file(disk, directory / FILE_NAME, b"%d\n" % port)
    except DiskPoisonedError:
        raise
    except BookieStorageError as error:
        log.warning("the next start may take another port: %s", error)
