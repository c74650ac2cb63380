"""Flipped bits and cut files in everything that a bookie stores: never a wrong byte, never a false "no such entry".

``HELIOGRAPH_BOOKIE_CORRUPTION_ROUNDS`` sets how often (30), ``HELIOGRAPH_BOOKIE_CORRUPTION_SEED`` which (1).
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import shutil
from pathlib import Path

import pytest

from heliograph.actors.bookie.bookie import Bookie
from heliograph.actors.bookie.config import BookieConfig
from heliograph.actors.bookie.disk.disk import RealDisk
from heliograph.actors.bookie.store.entry_log import HEADER_BYTES, log_ids, log_path
from heliograph.actors.errors import BookieStorageError, JournalCorruptError
from heliograph.actors.wire.entry import decode_entry
from heliograph.actors.wire.messages import BookieOp, Flag, Status
from tests.cluster.ledger.test_on_bookies import contents, real_cluster
from tests.cluster.support.bookie_folders import quick_folder
from tests.cluster.support.bookie_peer import BookiePeer, serving, small_config
from tests.waits import until

ROUNDS = int(os.environ.get("HELIOGRAPH_BOOKIE_CORRUPTION_ROUNDS", "30"))
SEED = int(os.environ.get("HELIOGRAPH_BOOKIE_CORRUPTION_SEED", "1"))
ENTRIES = 60
LEDGERS = (1, 2)
SETTINGS = {
    "journal_file_bytes": 32 << 10,
    "journal_seal_ms": 20,
    "entry_log_bytes": 16 << 10,
    "read_cache_bytes": 0,
}
NEGATIVES = {Status.NO_LEDGER, Status.NO_ENTRY}


def payload(ledger_id: int, entry_id: int) -> bytes:
    return b"%d:%d " % (ledger_id, entry_id) * 100


async def write(home: Path, copy: Path) -> None:
    """A bookie with most entries in entry logs and the last ten of each ledger in journals; ``copy``: as killed."""
    async with serving(small_config(home, **SETTINGS)) as (bookie, peer):
        for entry_id in range(ENTRIES):
            for ledger_id in LEDGERS:
                answer, _ = await peer.add(ledger_id, entry_id, payload(ledger_id, entry_id))
                assert answer.status is Status.OK
            if entry_id in {20, ENTRIES - 11}:
                await bookie.checkpoint()
        assert bookie._opened is not None
        (journal,) = bookie._opened.storage.journals
        await until(lambda: journal.is_sealed)
        shutil.copytree(home, copy, ignore=shutil.ignore_patterns("LOCK", "*.draft"))


def harm(path: Path, chance: random.Random, least: int = 0) -> str:
    """Flip some bits behind ``least``, or cut the file."""
    content = bytearray(path.read_bytes())
    if chance.random() < 0.3:
        size = chance.randrange(len(content))
        path.write_bytes(content[:size])
        return f"{path.name} cut to {size} bytes"
    places = [chance.randrange(min(least, len(content) - 1), len(content)) for _ in range(chance.choice((1, 1, 1, 5)))]
    for place in places:
        content[place] ^= 1 << chance.randrange(8)
    path.write_bytes(content)
    return f"{path.name} flipped at {places}"


async def look(peer: BookiePeer) -> int:
    """Read every entry, singly and in batches; returns how many reads failed."""
    failed = 0
    for ledger_id in LEDGERS:
        for entry_id in range(ENTRIES):
            answer, body = await peer.call(BookieOp.READ, ledger_id, entry_id)
            assert answer.status not in NEGATIVES, f"{ledger_id}:{entry_id}: {answer}"  # I6
            if answer.status is Status.OK:
                assert decode_entry(body).payload == payload(ledger_id, entry_id), "never a wrong byte"
            else:
                assert answer.status is Status.STORAGE_ERROR
                failed += 1
            answer, body = await peer.call(BookieOp.READ_BATCH, ledger_id, entry_id, limit=1 << 20)
            assert answer.status not in NEGATIVES
            expected = entry_id
            while body:
                size = int.from_bytes(body[:4], "big")
                assert decode_entry(body[4 : 4 + size]).payload == payload(ledger_id, expected)
                body, expected = body[4 + size :], expected + 1
    return failed


def test_harm_in_entry_logs_is_reported_and_never_served(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(home: Path) -> None:
        await write(home / "a", home / "b")
        chance = random.Random(SEED)
        for _ in range(ROUNDS):
            shutil.rmtree(home / "a", ignore_errors=True)
            shutil.copytree(home / "b", home / "a")
            log_id = chance.choice(log_ids(RealDisk(), home / "a" / "data"))
            done = harm(log_path(home / "a" / "data", log_id), chance, least=HEADER_BYTES)
            caplog.clear()
            async with serving(small_config(home / "a", **SETTINGS)) as (bookie, peer):
                try:
                    failed = await look(peer)
                except AssertionError as error:
                    error.add_note(f"seed {SEED}: {done}")
                    raise
                statistics = bookie.statistics()
                assert bool(failed) == bool(statistics["entries_damaged"] or statistics["disk_reads_failed"])
            if failed:
                assert f"{log_id:08x}.log at offset" in caplog.text, "the log line names file and offset"

    with quick_folder() as home, caplog.at_level(logging.ERROR):
        asyncio.run(scenario(home))


@pytest.mark.parametrize("part", ["journal", "index", "mark"])
def test_harm_elsewhere_is_refused_or_harmless(part: str) -> None:  # I1, I6, D6
    async def scenario(home: Path) -> int:
        await write(home / "a", home / "b")
        chance = random.Random(SEED)
        refused = unnamed = 0
        for _ in range(ROUNDS):
            shutil.rmtree(home / "a", ignore_errors=True)
            shutil.copytree(home / "b", home / "a")
            done = harm(victim(home / "a", part, chance), chance)
            bookie = Bookie(small_config(home / "a", **SETTINGS), None)
            try:
                await bookie.start()
            except (JournalCorruptError, BookieStorageError) as error:
                refused += 1
                names_file = ".journal" in str(error) or not isinstance(error, JournalCorruptError)
                unnamed += not names_file
                continue
            try:
                await settled(bookie, losable=done.count(",") if part == "journal" else 0)
            except BaseException as error:
                error.add_note(f"seed {SEED}: {done}")
                raise
            finally:
                await bookie.stop()
        assert unnamed == 0, "a refusal names the journal's file"
        return refused

    with quick_folder() as home:
        assert asyncio.run(scenario(home)) > 0


def victim(home: Path, part: str, chance: random.Random) -> Path:
    if part == "mark":
        return home / "data" / "mark"
    folder, keep = (home / "journal", ".journal") if part == "journal" else (home / "data" / "index", "")
    names = [path for path in sorted(folder.iterdir()) if path.name.endswith(keep) and path.stat().st_size]
    return chance.choice([path for path in names if not path.name.startswith(("LOG", "OPTIONS", "rocksdict", "IDENT"))])


async def settled(bookie: Bookie, *, losable: int) -> None:
    """What was acknowledged is read or refused.

    Args:
        losable: entries, each in a batch of its own, that a harm of several blocks may make look like a torn tail: that
            needs the seal to be harmed, and every batch between it and what is lost (docs/formats-bookie.md).
    """
    order = [(ledger_id, entry_id) for entry_id in range(ENTRIES) for ledger_id in LEDGERS]
    may_be_lost = set(order[len(order) - losable :])
    peer = await BookiePeer.connect(bookie.address)
    for ledger_id in LEDGERS:
        for entry_id in range(ENTRIES):
            answer, body = await peer.call(BookieOp.READ, ledger_id, entry_id)
            if answer.status is Status.OK:
                assert decode_entry(body).payload == payload(ledger_id, entry_id)
            else:
                assert (ledger_id, entry_id) in may_be_lost or answer.status is Status.STORAGE_ERROR, (
                    f"{ledger_id}:{entry_id}: {answer}"
                )
    peer.close()


async def test_a_last_entry_that_cannot_be_read_does_not_hide_the_fence(tmp_path: Path) -> None:  # I4
    """A recovery must learn of the fence even if the last entry is damaged on two bookies of three."""
    config = small_config(tmp_path, **SETTINGS)
    async with serving(config) as (bookie, peer):
        for entry_id in range(3):
            await peer.add(1, entry_id, payload(1, entry_id))
        await bookie.checkpoint()
    (number,) = [n for n in log_ids(RealDisk(), config.data_directories[0]) if payload(1, 2) in content(config, n)]
    path = log_path(config.data_directories[0], number)
    path.write_bytes(path.read_bytes().replace(payload(1, 2), bytes(len(payload(1, 2)))))
    async with serving(config) as (_, peer):
        assert await peer.status(BookieOp.READ, 1, 2) is Status.STORAGE_ERROR
        answer, body = await peer.call(BookieOp.READ_LAC, 1, flags=Flag.FENCE)
        assert (answer.status, answer.last_add_confirmed, len(body)) == (Status.OK, 1, 0)
        assert (await peer.add(1, 3, b"late"))[0].status is Status.FENCED


def content(config: BookieConfig, log_id: int) -> bytes:
    return log_path(config.data_directories[0], log_id).read_bytes()


async def test_a_damaged_copy_is_rewritten_from_the_others(tmp_path: Path) -> None:  # I10
    async with real_cluster(tmp_path, 3) as (cluster, client):
        writer = await client.create(ensemble_size=3, write_quorum=3, ack_quorum=2)
        await asyncio.gather(*[writer.add(b"entry %d " % n * 50) for n in range(100)])
        await writer.close()
        await cluster.stop_bookie("b2")
        path = log_path(tmp_path / "b2" / "data", 1)
        whole = bytearray(path.read_bytes())
        for number in range(5):
            whole[HEADER_BYTES + (2 * number + 1) * len(whole) // 12] ^= 4
        path.write_bytes(whole)
        await cluster.start_bookie("b2")
        peer = await BookiePeer.connect(cluster.bookies["b2"].address)
        before = [await peer.status(BookieOp.READ, writer.ledger_id, n) for n in range(100)]
        assert before.count(Status.STORAGE_ERROR) >= 4
        assert set(before) == {Status.OK, Status.STORAGE_ERROR}
        assert await contents(client, writer.ledger_id) == [b"entry %d " % n * 50 for n in range(100)]
        assert (await client.repair(writer.ledger_id, ["b2"])).complete
        assert client.statistics()["entries_repaired"] == before.count(Status.STORAGE_ERROR)
        for number in range(100):
            answer, body = await peer.call(BookieOp.READ, writer.ledger_id, number)
            assert answer.status is Status.OK
            assert decode_entry(body).payload == b"entry %d " % number * 50
        peer.close()
