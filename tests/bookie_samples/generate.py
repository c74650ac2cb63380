"""Makes the sample of the formats that this program writes: ``python -m tests.bookie_samples.generate``.

A sample is the folder of a bookie as a kill leaves it, packed. One is kept for each set of file versions, for ever, and
every later program must read all of them; so an existing one is never replaced.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path

from heliograph.actors.bookie.bookie import Bookie
from heliograph.actors.wire.messages import BookieOp, Flag, Status
from tests.cluster.support.bookie_peer import BookiePeer, serving, small_config

FOLDER = Path(__file__).parent
VERSION = 5  # raised with the version of any file; docs/formats-bookie.md, "Looking in", says which versions it has
FLUSHED = 40  # entries of ledger 1 that are in entry logs, the first of which is full and has its map
IN_JOURNAL = 5  # entries of ledger 1 behind them, only in the journal
ENTRY_BYTES = 200
FENCED, LIMBO, DELETED, EXPLICIT_LAC, FENCED_IN_JOURNAL, WRITTEN_ONCE = 2, 3, 4, 5, 6, 7
KEPT = 20  # entries of ledger WRITTEN_ONCE, which are in journal files that became entry logs
KEPT_ENTRY_BYTES = 1_500
SEAL_SECONDS = 0.2  # in which the journal is sealed
LAC = 41  # of ledger EXPLICIT_LAC


def payload(entry_id: int) -> bytes:
    """What ledger 1 holds."""
    return (b"sample entry %d " % entry_id * ENTRY_BYTES)[:ENTRY_BYTES]


def kept_payload(entry_id: int) -> bytes:
    """What ledger WRITTEN_ONCE holds."""
    return (b"kept entry %d " % entry_id * KEPT_ENTRY_BYTES)[:KEPT_ENTRY_BYTES]


def sample(version: int) -> Path:
    """Where a sample is kept."""
    return FOLDER / f"v{version}.tar.gz"


async def work(bookie: Bookie, peer: BookiePeer) -> None:
    """Leave something of everything that the formats can hold."""
    for entry_id in range(FLUSHED):
        answer, _ = await peer.add(1, entry_id, payload(entry_id))
        assert answer.status is Status.OK
    for entry_id in range(KEPT):
        await peer.add(WRITTEN_ONCE, entry_id, kept_payload(entry_id))
    await peer.add(DELETED, 0, b"gone")
    await peer.status(BookieOp.READ_LAC, FENCED, flags=Flag.FENCE)
    await peer.call(BookieOp.WRITE_LAC, EXPLICIT_LAC, LAC)
    assert bookie._opened is not None
    storage = bookie._opened.storage
    storage.put_into_limbo(LIMBO, is_fenced=True)
    await bookie.checkpoint()
    storage.ledgers.drop(DELETED)
    storage.directory_of(DELETED).delete_ledgers([DELETED])
    for entry_id in range(FLUSHED, FLUSHED + IN_JOURNAL):
        await peer.add(1, entry_id, payload(entry_id))
    await peer.status(BookieOp.READ_LAC, FENCED_IN_JOURNAL, flags=Flag.FENCE)
    await peer.call(BookieOp.WRITE_LAC, EXPLICIT_LAC, LAC + 1)


async def generate(target: Path) -> None:
    """Run a bookie, and pack its folder while it runs."""
    with tempfile.TemporaryDirectory(prefix="heliograph-sample-") as name:
        home, copy = Path(name) / "home", Path(name) / "copy"
        config = small_config(
            home,
            journal_file_bytes=16 << 10,
            entry_log_bytes=4 << 10,
            journal_seal_ms=5,
            single_write_bytes=KEPT_ENTRY_BYTES,
        )
        async with serving(config) as (bookie, peer):
            await work(bookie, peer)
            await asyncio.sleep(SEAL_SECONDS)
            shutil.copytree(home, copy, ignore=shutil.ignore_patterns("LOG*", "LOCK", "lock", "*.draft"))
        pack(copy, target)


def pack(folder: Path, target: Path) -> None:
    """The folder's files, nothing of this machine with them."""
    with tarfile.open(target, "w:gz") as archive:
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            member = tarfile.TarInfo(str(path.relative_to(folder)))
            member.size = path.stat().st_size
            with path.open("rb") as content:
                archive.addfile(member, content)


def main() -> int:
    """The command line."""
    target = sample(VERSION)
    if target.exists():
        print(f"{target} is kept for ever: raise VERSION first", file=sys.stderr)
        return 1
    asyncio.run(generate(target))
    print(f"{target}: {target.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
