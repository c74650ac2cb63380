"""A whole bookie over its socket: every operation, every refusal, and what survives an orderly restart."""

from __future__ import annotations

import asyncio
import errno
import struct
from dataclasses import replace
from pathlib import Path

import msgpack
import pytest
import uvloop

from heliograph.actors.bookie.bookie import Bookie
from heliograph.actors.bookie.config import ENTRY_BYTES_MAX
from heliograph.actors.bookie.disk.disk import RealDisk
from heliograph.actors.bookie.server.reads import heads_of
from heliograph.actors.bookie.store.payloads import EntryPayload
from heliograph.actors.errors import BookieStorageError, DirectoryLockedError
from heliograph.actors.wire.entry import Entry, decode_entry
from heliograph.actors.wire.frame import decode_batch, encode_batch, encode_request
from heliograph.actors.wire.messages import HEAD_BYTES, PROTOCOL_VERSION, BookieOp, BookieRequest, Flag, Status
from heliograph.base.errors import ResourceError
from tests.cluster.support.bookie_peer import BookiePeer, entry_bytes, serving, small_config


async def add_many(peer: BookiePeer, ledger_id: int, first: int, last: int) -> None:
    answers = await asyncio.gather(*(peer.add(ledger_id, n, b"p%d" % n) for n in range(first, last + 1)))
    assert {answer.status for answer, _ in answers} == {Status.OK}


def payload_of(body: bytes) -> bytes:
    return bytes(decode_entry(body).payload)


async def test_added_entries_are_read_from_cache_and_from_disk(tmp_path: Path) -> None:
    async with serving(small_config(tmp_path)) as (bookie, peer):
        await add_many(peer, 5, 0, 99)
        for _ in range(2):  # from the write cache, then from the entry log
            answer, body = await peer.call(BookieOp.READ, 5, 42)
            assert answer.status is Status.OK
            assert payload_of(body) == b"p42"
            assert answer.last_add_confirmed == 98
            await bookie.checkpoint()
        assert bookie.statistics()["disk_reads"] == 1
        assert payload_of((await peer.call(BookieOp.READ, 5, 43))[1]) == b"p43"
        assert bookie.statistics()["disk_reads"] == 2, "a random read takes its entry alone"
        assert payload_of((await peer.call(BookieOp.READ, 5, 44))[1]) == b"p44"
        assert bookie.statistics()["disk_reads"] == 2, "read-ahead for a reader in order brought it along"


async def test_negatives_tell_ledger_and_entry_apart(tmp_path: Path) -> None:
    async with serving(small_config(tmp_path)) as (bookie, peer):
        assert await peer.status(BookieOp.READ, 5, 0) is Status.NO_LEDGER
        await add_many(peer, 5, 0, 2)
        assert await peer.status(BookieOp.READ, 5, 3) is Status.NO_ENTRY
        assert await peer.status(BookieOp.READ_BATCH, 5, 3) is Status.NO_ENTRY
        assert await peer.status(BookieOp.READ_LAC, 6) is Status.NO_LEDGER
        await bookie.checkpoint()
        assert await peer.status(BookieOp.READ, 5, 3) is Status.NO_ENTRY


async def test_a_list_is_told_when_what_it_names_is_durable(tmp_path: Path) -> None:  # I10
    async with serving(small_config(tmp_path)) as (_bookie, peer):
        for entry_id in range(50):
            add = asyncio.ensure_future(peer.add(5, entry_id, b"x" * 50_000))
            await asyncio.sleep(0)  # the add goes out first
            _, body = await peer.call(BookieOp.LIST_ENTRIES, 5, 0)
            listed = {n for first, last in msgpack.unpackb(body or b"\x90") for n in range(first, last + 1)}
            assert entry_id not in listed or add.done(), "an entry was listed that a crash could still take"
            await add


async def test_a_fencing_read_refuses_later_adds_but_not_those_of_recovery(tmp_path: Path) -> None:  # I4
    async with serving(small_config(tmp_path)) as (_bookie, peer):
        await add_many(peer, 5, 0, 2)
        answer, body = await peer.call(BookieOp.READ_LAC, 5, flags=Flag.FENCE)
        assert answer.status is Status.OK
        assert decode_entry(body).entry_id == 2
        assert (await peer.add(5, 3, b"late"))[0].status is Status.FENCED
        assert await peer.status(BookieOp.READ, 5, 3) is Status.NO_ENTRY
        assert (await peer.add(5, 3, b"again", flags=Flag.RECOVERY))[0].status is Status.OK
        assert await peer.status(BookieOp.WRITE_LAC, 5, 2) is Status.FENCED


async def test_fencing_an_unknown_ledger_survives_restarts(tmp_path: Path) -> None:  # I4
    async with serving(small_config(tmp_path)) as (_bookie, peer):
        assert await peer.status(BookieOp.READ, 9, 0, flags=Flag.FENCE) is Status.NO_LEDGER
        assert await peer.status(BookieOp.READ_LAC, 9, flags=Flag.FENCE) is Status.NO_LEDGER
    for _ in range(2):
        async with serving(small_config(tmp_path)) as (_bookie, peer):
            assert (await peer.add(9, 0, b"late"))[0].status is Status.FENCED


async def test_heads_are_cut_after_the_whole_entries_were_checked(tmp_path: Path) -> None:
    async def heads(peer: BookiePeer, first: int, limit: int = 0) -> tuple[Status, list[Entry]]:
        answer, body = await peer.call(BookieOp.READ_BATCH, 5, first, flags=Flag.HEADS, limit=limit)
        return answer.status, [decode_entry(entry) for entry in decode_batch(body)]

    async with serving(small_config(tmp_path)) as (bookie, peer):
        payloads = [bytes([number]) * size for number, size in enumerate((100_000, 10, HEAD_BYTES, HEAD_BYTES + 1, 0))]
        for entry_id, payload in enumerate(payloads):
            await peer.add(5, entry_id, payload)
        for _ in range(2):
            status, found = await heads(peer, 0)
            assert status is Status.OK
            assert [bytes(entry.payload) for entry in found] == [payload[:HEAD_BYTES] for payload in payloads]
            _, whole = await peer.call(BookieOp.READ_BATCH, 5, 0)
            wanted = [replace(decode_entry(one), payload=b"") for one in decode_batch(whole)]
            assert [replace(entry, payload=b"") for entry in found] == wanted
            _, few = await heads(peer, 0, limit=100_100)
            assert len(few) == 2, "the limit is of whole entries"
            assert (await heads(peer, 9))[0] is Status.NO_ENTRY
            await bookie.checkpoint()


def test_a_damaged_entry_has_no_head() -> None:
    good, bad = entry_bytes(5, 0, b"x" * 2_000), bytearray(entry_bytes(5, 1, b"y" * 2_000))
    bad[-1] ^= 1  # behind its head
    (head,) = decode_batch(b"".join(heads_of(EntryPayload((encode_batch([good, bytes(bad)]),))).pieces))
    assert decode_entry(head).payload == b"x" * HEAD_BYTES
    with pytest.raises(BookieStorageError, match="damaged"):
        heads_of(EntryPayload((encode_batch([bytes(bad)]),)))


async def test_batch_reads_stop_at_limit_hole_and_end(tmp_path: Path) -> None:
    async def ids(peer: BookiePeer, first: int, last: int, limit: int) -> list[int]:
        answer, body = await peer.call(BookieOp.READ_BATCH, 5, first, limit=limit, last_entry_id=last)
        assert answer.status is Status.OK
        return [decode_entry(entry).entry_id for entry in decode_batch(body)]

    async with serving(small_config(tmp_path)) as (bookie, peer):
        await add_many(peer, 5, 0, 600)
        await add_many(peer, 5, 602, 610)
        for _ in range(2):
            assert await ids(peer, 0, -1, 0) == list(range(601))
            assert await ids(peer, 300, 310, 0) == list(range(300, 311))
            assert await ids(peer, 300, -1, 1) == [300], "one entry, whatever the limit"
            few = await ids(peer, 0, -1, 1000)
            assert 1 < len(few) < 30
            assert await ids(peer, 602, -1, 0) == list(range(602, 611))
            await bookie.checkpoint()


async def test_a_list_of_entries_covers_caches_and_disk(tmp_path: Path) -> None:
    async def spans(peer: BookiePeer, first: int = -1, last: int = -1) -> list[list[int]]:
        answer, body = await peer.call(BookieOp.LIST_ENTRIES, 5, first, last_entry_id=last)
        assert answer.status is Status.OK
        found: list[list[int]] = msgpack.unpackb(body)
        return found

    async with serving(small_config(tmp_path)) as (bookie, peer):
        await add_many(peer, 5, 0, 300)
        await bookie.checkpoint()
        await add_many(peer, 5, 301, 310)
        await add_many(peer, 5, 320, 330)
        assert await spans(peer) == [[0, 310], [320, 330]]
        assert await spans(peer, 305, 325) == [[305, 310], [320, 325]]


async def test_wrong_adds_are_refused_and_the_connection_goes_on(tmp_path: Path) -> None:
    async with serving(small_config(tmp_path, entry_log_bytes=16 << 20)) as (bookie, peer):
        damaged = bytearray(entry_bytes(5, 0, b"payload"))
        damaged[-1] ^= 1
        assert (await peer.call(BookieOp.ADD, 5, 0, body=bytes(damaged)))[0].status is Status.DAMAGED  # D6
        assert (await peer.call(BookieOp.ADD, 5, 0, body=b"short"))[0].status is Status.DAMAGED
        assert (await peer.call(BookieOp.ADD, 5, 1, body=entry_bytes(5, 0, b"x")))[0].status is Status.BAD_REQUEST
        assert (await peer.call(BookieOp.ADD, -5, 0, body=entry_bytes(-5, 0, b"x")))[0].status is Status.BAD_REQUEST
        too_large = entry_bytes(5, 0, bytes(ENTRY_BYTES_MAX))
        assert (await peer.call(BookieOp.ADD, 5, 0, body=too_large))[0].status is Status.BAD_REQUEST
        assert await peer.status(BookieOp.READ, -1, 0) is Status.BAD_REQUEST
        assert await peer.status(BookieOp.READ, 5, 0) is Status.NO_LEDGER
        largest = bytes(ENTRY_BYTES_MAX - 40)
        assert (await peer.add(5, 0, largest))[0].status is Status.OK
        await bookie.checkpoint()
        assert payload_of((await peer.call(BookieOp.READ, 5, 0))[1]) == largest
        (entry,) = decode_batch((await peer.call(BookieOp.READ_BATCH, 5, 0))[1])
        assert decode_entry(entry).payload == largest


@pytest.mark.parametrize(
    "first_bytes",
    [
        encode_request(BookieRequest(BookieOp.READ, 1, 5, 0)),
        struct.pack(">IHI", 1 << 30, 10, 0),
        b"GET / HTTP/1.1\r\n\r\n",
        encode_request(BookieRequest(BookieOp.HELLO, 1, PROTOCOL_VERSION + 1)),
    ],
    ids=["no hello", "huge frame", "http", "other version"],
)
async def test_strangers_are_disconnected(tmp_path: Path, first_bytes: bytes) -> None:
    async with serving(small_config(tmp_path)) as (bookie, peer):
        host, port = bookie.address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(first_bytes)
        async with asyncio.timeout(60):
            try:
                await reader.read(1 << 16)
                assert await reader.read() == b""
            except ConnectionResetError:
                pass
        writer.close()
        assert await peer.status(BookieOp.READ, 5, 0) is Status.NO_LEDGER, "others are served"


async def test_an_explicit_lac_survives_a_restart(tmp_path: Path) -> None:
    async with serving(small_config(tmp_path)) as (_bookie, peer):
        await add_many(peer, 5, 0, 2)
        assert await peer.status(BookieOp.WRITE_LAC, 5, 2) is Status.OK
    async with serving(small_config(tmp_path)) as (_bookie, peer):
        answer, _ = await peer.call(BookieOp.READ_LAC, 5)
        assert answer.last_add_confirmed == 2


async def test_a_client_that_asks_more_than_it_takes_is_held_back(tmp_path: Path) -> None:  # I15
    async with serving(small_config(tmp_path)) as (bookie, peer):
        payload = bytes(60_000)
        await asyncio.gather(*(peer.add(5, n, payload) for n in range(100)))
        assert peer.transport is not None
        peer.transport.pause_reading()
        answers = [peer.call(BookieOp.READ, 5, n % 100) for n in range(400)]
        other = await BookiePeer.connect(bookie.address)
        for _ in range(50):
            assert await other.status(BookieOp.READ, 5, 1) is Status.OK
        peer.transport.resume_reading()
        assert {answer.status for answer, _ in await asyncio.gather(*answers)} == {Status.OK}
        other.close()


async def test_a_full_write_cache_loses_nothing(tmp_path: Path) -> None:  # I15
    """Far more than the cache holds, as fast as it goes: flushes make room, or adds are refused and sent again."""
    async with serving(small_config(tmp_path, write_cache_bytes=22 << 20, entry_log_bytes=8 << 20)) as (bookie, peer):
        payload = bytes(200_000)
        wanted = set(range(300))
        while wanted:
            answers = await asyncio.gather(*(peer.add(5, n, payload, lac=-1) for n in sorted(wanted)))
            for number, (answer, _) in zip(sorted(wanted), answers, strict=True):
                assert answer.status in {Status.OK, Status.TOO_MANY_REQUESTS}
                if answer.status is Status.OK:
                    wanted.discard(number)
        for number in range(300):
            assert await peer.status(BookieOp.READ, 5, number) is Status.OK
        assert bookie.statistics()["checkpoints"] != 0


async def test_statistics_count(tmp_path: Path) -> None:
    async with serving(small_config(tmp_path)) as (_bookie, peer):
        await add_many(peer, 5, 0, 9)
        _, body = await peer.call(BookieOp.STATISTICS)
        statistics = msgpack.unpackb(body)
        assert statistics["entries_added"] == 10
        assert statistics["journal_records"] == 10
        assert statistics["journal_syncs"] >= 1
        assert statistics["journal_bytes_fsynced"] >= 4096


async def test_a_directory_has_one_user(tmp_path: Path) -> None:
    async with serving(small_config(tmp_path)) as (_bookie, _peer):
        with pytest.raises(DirectoryLockedError):
            await Bookie(small_config(tmp_path), None).start()


async def test_files_of_others_in_its_folders_are_left_alone(tmp_path: Path) -> None:
    names = ["journal/notes.journal", "journal/my.spare", "journal/my.draft", "data/bookie.log", "data/0000000z.log"]
    for folder in ("journal", "data"):
        (tmp_path / folder).mkdir()
    for name in names:
        (tmp_path / name).write_bytes(b"mine")
    for _ in range(2):
        async with serving(small_config(tmp_path)) as (bookie, peer):
            await add_many(peer, 5, 0, 40)
            await bookie.checkpoint()
            await add_many(peer, 5, 41, 80)
            await bookie.collect_garbage()
    for name in names:
        assert (tmp_path / name).read_bytes() == b"mine"


async def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    async with serving(small_config(tmp_path)) as (bookie, _peer):
        port = int(bookie.address.split(":")[1])
        with pytest.raises(ResourceError, match=str(port)):
            await Bookie(small_config(tmp_path / "other", port=port), None).start()


def test_it_serves_on_uvloop_too_with_several_disks(tmp_path: Path) -> None:
    config = small_config(
        tmp_path,
        journal_directories=(tmp_path / "j0", tmp_path / "j1"),
        data_directories=(tmp_path / "d0", tmp_path / "d1", tmp_path / "d2"),
    )

    async def write() -> None:
        async with serving(config) as (bookie, peer):
            for ledger_id in range(7):
                await add_many(peer, ledger_id, 0, 20)
            await bookie.checkpoint()
            for ledger_id in range(7):
                await add_many(peer, ledger_id, 21, 40)

    async def read() -> None:
        async with serving(config) as (_, peer):
            for ledger_id in range(7):
                for number in range(41):
                    assert payload_of((await peer.call(BookieOp.READ, ledger_id, number))[1]) == b"p%d" % number

    uvloop.run(write())
    uvloop.run(read())


async def test_requests_out_of_range_are_refused_and_do_no_harm(tmp_path: Path) -> None:
    """Every operation with every edge value in every field; the bookie serves on."""
    edges = [-(1 << 63), -1, 0, 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1]
    async with serving(small_config(tmp_path)) as (bookie, peer):
        await add_many(peer, 1, 0, 3)
        calls = [
            peer.call(op, ledger_id, entry_id, flags=flags, limit=limit, last_entry_id=last)
            for op in BookieOp
            if op not in {BookieOp.HELLO, BookieOp.ADD, BookieOp.ADDS, BookieOp.LACS}
            for ledger_id in edges
            for entry_id in edges
            for flags in (Flag.NONE, Flag.FENCE)
            for limit, last in ((0, -1), (-1, 1 << 63), (1 << 63, 0), (1, -5))
        ]
        async with asyncio.timeout(120):
            answers = await asyncio.gather(*calls)
        assert len(answers) == len(calls)
        assert bookie.failure is None
        assert payload_of((await peer.call(BookieOp.READ, 1, 3))[1]) == b"p3"


async def test_a_disk_that_takes_no_flush_refuses_adds_and_serves_reads(tmp_path: Path) -> None:  # I15
    class FullDisk(RealDisk):
        is_full = False

        def raw_write(self, fd: int, path: Path, data: bytes | memoryview, offset: int) -> int:
            if self.is_full and path.suffix == ".log":
                raise OSError(errno.ENOSPC, "no space left")
            return super().raw_write(fd, path, data, offset)

    async def is_refused(peer: BookiePeer, number: int) -> bool:
        return (await peer.add(1, number, bytes(500_000)))[0].status is Status.TOO_MANY_REQUESTS

    disk = FullDisk()
    config = small_config(
        tmp_path,
        write_cache_bytes=22 << 20,
        journal_file_bytes=4 << 20,
        flush_interval_ms=20,
        single_write_bytes=0,  # what stays in its journal file needs no flush
    )
    async with serving(config, disk=disk) as (bookie, peer):
        disk.is_full = True
        number = 0
        async with asyncio.timeout(120):
            while not await is_refused(peer, number):
                number += 1
        assert await peer.status(BookieOp.READ, 1, number - 1) is Status.OK
        assert bookie.statistics()["checkpoint_failures"] != 0
        disk.is_full = False
        async with asyncio.timeout(120):
            while await is_refused(peer, number):  # noqa: ASYNC110 - it asks the bookie
                await asyncio.sleep(0.01)
        for n in range(number):
            assert await peer.status(BookieOp.READ, 1, n) is Status.OK  # I1
