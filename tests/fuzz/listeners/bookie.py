"""The bookie's listener, open and with a cluster secret."""

from __future__ import annotations

import asyncio
import shutil
import struct
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import crc32c
import msgpack
from typing_extensions import override

from heliograph.actors.bookie.bookie import Bookie
from heliograph.actors.bookie.config import BookieConfig
from heliograph.actors.bookie.disk.disk import RealDisk
from heliograph.actors.bookie.recovery.opening import open_storage
from heliograph.actors.errors import BookieStorageError, JournalCorruptError
from heliograph.actors.wire.entry import encode_entry
from heliograph.actors.wire.frame import BookieFrameDecoder, decode_answer, encode_batch
from heliograph.actors.wire.greeting import ClientGreeting
from heliograph.actors.wire.messages import PROTOCOL_VERSION, BookieOp, BookieRequest, Flag, Status
from heliograph.actors.wire.ranges import decode_run, is_run
from tests.cluster.support.bookie_peer import BookiePeer, entry_bytes, small_config
from tests.fuzz import values
from tests.fuzz.conversation import Conversation, Message, disturbed
from tests.fuzz.formats.table import own_bytes
from tests.fuzz.listener import BrokenPromiseError, Listener
from tests.hostile_bytes import FORGED, mixture

LEDGER = 987_654_321_012  # of the well-behaved client; no other client says its number
LEDGERS = range(1, 30)  # of the others
SECRET = "0123456789abcdef-fuzz"
_HELLO = BookieRequest(BookieOp.HELLO, 1, PROTOCOL_VERSION)


class BookieListener(Listener):
    """A bookie with its journal and its index on a disk."""

    name = "bookie"
    secret: str | None = None

    @override
    async def start(self) -> None:
        self.bookie = Bookie(self._config(self.directory), None)
        await self.bookie.start()
        host, _, port = self.bookie.address.rpartition(":")
        self.address = (host, int(port))
        self._peer = await (BookiePeer.connect(self.bookie.address) if self.secret is None else _proved(self.address))
        self._confirmed: list[bytes] = []

    def _config(self, home: Path) -> BookieConfig:
        return small_config(home, cluster_secret=self.secret, journal_file_bytes=1 << 20, entry_log_bytes=4 << 20)

    @override
    async def stop(self) -> None:
        self._peer.close()
        await self.bookie.stop()

    @classmethod
    @override
    def conversation(cls, random: Random) -> Conversation:
        return disturbed(random, [_client(random) for _ in range(random.choice((1, 1, 2, 3)))])

    @override
    def examine(self, heard: bytes) -> None:
        for header, _ in BookieFrameDecoder().feed(heard):
            if is_run(header):
                decode_run(header)
                continue
            answer = decode_answer(header)
            if answer.status is Status.STORAGE_ERROR:
                raise BrokenPromiseError(f"a client made the storage fail: {answer}")

    @override
    async def work(self) -> None:
        if self.bookie.failure is not None:
            raise BrokenPromiseError(f"the bookie stopped: {self.bookie.failure!r}")
        number = len(self._confirmed)
        payload = b"confirmed %d" % number
        answer, _ = await self._peer.add(LEDGER, number, payload)
        if answer.status is not Status.OK:
            raise BrokenPromiseError(f"an add was refused: {answer}")
        self._confirmed.append(payload)
        for entry_id in {number, number // 2}:
            await self._expect(entry_id)

    @override
    async def audit(self) -> None:
        for entry_id in range(len(self._confirmed)):
            await self._expect(entry_id)
        answer, body = await self._peer.call(BookieOp.LIST_ENTRIES, LEDGER)
        if answer.status is not Status.OK or msgpack.unpackb(body) != [[0, len(self._confirmed) - 1]]:
            raise BrokenPromiseError(f"a ledger with {len(self._confirmed)} entries is listed as {answer}, {body!r}")
        await self.bookie.checkpoint()  # so that nothing of the index is written meanwhile
        with tempfile.TemporaryDirectory(prefix="heliograph-fuzz-") as name:
            await asyncio.to_thread(self._start_again, Path(name) / "killed")

    def _start_again(self, killed: Path) -> None:
        """Open what a kill would leave now. It holds what was sent, and nothing that payloads only look like (I19)."""
        shutil.copytree(self.directory, killed, ignore=shutil.ignore_patterns("LOCK", "lock"))
        try:
            storage = open_storage(RealDisk(), self._config(killed)).storage
        except (JournalCorruptError, BookieStorageError) as error:
            raise BrokenPromiseError(f"a bookie does not start again: {error}") from error
        try:
            forged = [ledger_id for ledger_id in storage.ledgers.ids() if FORGED <= ledger_id < FORGED + 3]
            if forged:
                raise BrokenPromiseError(f"payloads were taken for records of ledgers {forged}")
        finally:
            storage.close()

    @override
    def held(self) -> Counter[str]:
        server = self.bookie._running.server if self.bookie._running is not None else None
        if server is None:
            raise BrokenPromiseError(f"the bookie stopped: {self.bookie.failure!r}")
        found = Counter(connections=server.connections)
        for connection in server._connections:
            found["requests"] += len(connection._tasks)
            found["add bytes"] += connection._add_bytes
        return found

    async def _expect(self, entry_id: int) -> None:
        answer, body = await self._peer.call(BookieOp.READ, LEDGER, entry_id)
        wanted = entry_bytes(LEDGER, entry_id, self._confirmed[entry_id])
        if answer.status is not Status.OK or body != wanted:
            raise BrokenPromiseError(f"entry {entry_id} was confirmed, and reads as {answer} {body!r:.200}")


def _client(random: Random) -> list[Message]:
    messages: list[Message] = [_frame(random, list(_HELLO))]
    if random.random() < 0.05:
        messages.clear()
    ledger_id = random.choice(LEDGERS)
    messages += [_request(random, BookieOp.ADD, ledger_id, entry_id, 0) for entry_id in range(random.randint(0, 4))]
    for _ in range(random.randint(1, 12)):
        op = random.choice((*BookieOp, BookieOp.ADD, BookieOp.READ, BookieOp.READ_BATCH))
        rate = random.choice((0.0, 0.0, 0.3))
        entry_id = random.choice((-1, 0, 1, 2, 5, values.number(random)))
        if op is BookieOp.ADDS:
            messages.append(_range(random, ledger_id))
        else:
            messages.append(_request(random, op, random.choice((ledger_id, random.choice(LEDGERS))), entry_id, rate))
    return messages


def _range(random: Random, ledger_id: int) -> bytes:
    """A frame ADDS, often with an entry that is refused, sometimes with a number or lengths that are wrong."""
    entries = [_entry(random, ledger_id, entry_id) for entry_id in range(random.randint(1, 6))]
    body = encode_batch(list(entries))
    if random.random() < 0.1:
        body = body[: random.randrange(len(body) + 1)]
    count = len(entries) if random.random() < 0.9 else values.number(random)
    flags = 0 if random.random() < 0.9 else random.choice((*Flag,))
    first = random.choice((1, 2, random.getrandbits(63)))
    return _frame(random, [BookieOp.ADDS, first, -1, -1, flags, count, -1], body)


def _request(random: Random, op: BookieOp, ledger_id: int, entry_id: int, rate: float) -> bytes:
    """``rate`` is the share of fields with any value of any type."""
    request = BookieRequest(
        op,
        random.choice((0, 1, 2, random.getrandbits(63))),
        ledger_id,
        entry_id,
        random.choice((*Flag, Flag.NONE, Flag.NONE, Flag.RECOVERY | Flag.FENCE)),
        random.choice((0, 100, 1 << 20, (1 << 31) - 1)),
        random.choice((-1, 0, 3, 1_000, (1 << 48) - 1)),
    )
    header = [values.msgpack_value(random) if random.random() < rate else field for field in request]
    if random.random() < 0.03:
        del header[random.randrange(len(header)) :]
    if random.random() < 0.03:
        header.append(values.msgpack_value(random))
    body = b""
    if op is BookieOp.ADD or random.random() < 0.1:
        body = _entry(random, ledger_id, entry_id)
    return _frame(random, header, body)


def _entry(random: Random, ledger_id: int, entry_id: int) -> bytes:
    def signed(number: int) -> int:
        return max(-(1 << 63), min(number, (1 << 63) - 1))

    payload = random.randbytes(random.choice((0, 1, 20, 500, 5_000, 70_000)))
    if random.random() < 0.2:  # what the bookie itself, and others, write into their files
        size = random.choice((5_000, 30_000, 70_000))
        payload = mixture(random, size, (*range(1, 200), 0)) if random.random() < 0.7 else own_bytes(random, size)
    if random.random() < 0.1:
        ledger_id, entry_id = values.number(random), values.number(random)
    lac = random.choice((entry_id - 1, -1, 0, values.number(random)))
    length = random.choice((0, len(payload), values.number(random)))
    data = encode_entry(signed(ledger_id), signed(entry_id), signed(lac), signed(length), payload)
    match random.randrange(20):
        case 0:
            return data[: random.randrange(len(data) + 1)]
        case 1:
            return b"\x02" + data[1:]
        case 2:
            return data[:4] + random.randbytes(4) + data[8:]
    return data


def _frame(random: Random, header: Sequence[Any], body: bytes = b"") -> bytes:
    packed: bytes = msgpack.packb(
        [int(field) if isinstance(field, BookieOp | Flag) else field for field in header],
        unicode_errors="surrogatepass",
    )
    if random.random() < 0.02:
        packed = random.choice((b"", b"\xc1", b"\x97", b"\xdd\xff\xff\xff\xff", b"\x91" * 2_000, values.octets(random)))
    packed = packed[:60_000]
    length = 6 + len(packed) + len(body)
    if random.random() < 0.01:
        length = random.choice(values.UNSIGNED) % (1 << 32)
    return struct.pack(">IHI", length, len(packed), crc32c.crc32c(packed)) + packed + body


class BookieDoorListener(BookieListener):
    """A bookie that asks for the cluster's secret, and clients that do not know it."""

    name = "bookie-door"

    secret = SECRET

    @classmethod
    @override
    def conversation(cls, random: Random) -> Conversation:
        return disturbed(random, [cls._stranger(random) for _ in range(random.choice((1, 1, 2)))])

    @classmethod
    def _stranger(cls, random: Random) -> list[Message]:
        messages = _client(random)
        for _ in range(random.randint(1, 3)):
            nonce = random.randbytes(random.choice((0, 31, 32, 32, 32, 33, 64, 200)))
            claims = random.choice((b"", msgpack.packb(values.msgpack_value(random), unicode_errors="surrogatepass")))
            messages.insert(random.randrange(len(messages) + 1), _frame(random, list(_HELLO), nonce + claims))
        return messages

    @override
    def examine(self, heard: bytes) -> None:
        for header, _ in BookieFrameDecoder().feed(heard):
            answer = decode_answer(header)
            if answer.status not in (Status.CHALLENGE, Status.UNAUTHORIZED, Status.BAD_VERSION):
                raise BrokenPromiseError(f"a stranger was served: {answer}")


async def _proved(address: tuple[str, int]) -> BookiePeer:
    """Return a connection that has shown that it knows the secret."""
    _, peer = await asyncio.get_running_loop().create_connection(BookiePeer, *address)
    greeting = ClientGreeting(SECRET)
    _, challenge = await peer.call(BookieOp.HELLO, PROTOCOL_VERSION, body=greeting.hello)
    answer, _ = await peer.call(BookieOp.HELLO, PROTOCOL_VERSION, body=greeting.prove(challenge, "b1"))
    assert answer.status is Status.OK
    return peer
