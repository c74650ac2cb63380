"""A real bookie process, killed at random under load, repeatedly: no acknowledged entry and no fence is lost.

``python -m tests.chaos.bookie --rounds 200`` prints its seed, a line every ten rounds, and the figures at the end;
with ``--seed`` it repeats the same run, as far as the machine's timing allows. Exit code 1: something was
lost, and the bookie's directory is kept.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path

from heliograph.actors.wire.entry import decode_entry
from heliograph.actors.wire.messages import BookieOp, Flag, Status
from tests.cluster.support.bookie_peer import BookiePeer, BookieProcess

IN_FLIGHT = 64  # adds of one writer
WRITERS = 4
READS_AT_ONCE = 256
SAMPLE_MAX = 2_000  # older entries that each life checks; the last check reads them all
FENCES_MAX = 50  # fences that each life checks; the last check tries them all
LIFE_ENTRIES_MIN = 50  # adds acknowledged before a kill, so that a slow machine has load too
KILLED_IN_START_SHARE = 0.1  # of the lives: the kill comes during replay
ENTRIES_PER_LEDGER_MAX = 100_000
NEVER_STORED_FROM = 1_000_000  # ledger ids that are only fenced

Key = tuple[int, int]


@dataclass
class History:
    """The acknowledged entries and the fenced ledgers. The entries that were sent follow from the seed."""

    seed: int
    acknowledged: set[Key] = field(default_factory=set)
    in_doubt: set[Key] = field(default_factory=set)  # acknowledged in the last life
    fenced: list[int] = field(default_factory=list)
    next_ledger_id: int = 1
    kills: int = 0
    kills_in_start: int = 0
    entries_read: int = 0

    def payload(self, key: Key) -> bytes:
        """Return the entry that was sent under an id."""
        chance = random.Random(f"{self.seed}:{key[0]}:{key[1]}")
        return chance.randbytes(chance.randrange(10, 3000))


async def write(peer: BookiePeer, history: History, chance: random.Random) -> None:
    """Add to a new ledger until the bookie dies or the ledger is fenced; to every second one in ranges."""
    ledger_id = history.next_ledger_id
    history.next_ledger_id += 1
    slots = asyncio.Semaphore(IN_FLIGHT)
    fence_at = chance.randrange(2 * IN_FLIGHT, 500)  # after answered adds, so that the ledger has entries
    tasks: set[asyncio.Task[None]] = set()

    send = peer.add_in_range if ledger_id % 2 else peer.add

    async def add(entry_id: int) -> None:
        try:
            answer, _ = await send(ledger_id, entry_id, history.payload((ledger_id, entry_id)))
            if answer.status is Status.OK:
                history.in_doubt.add((ledger_id, entry_id))
        finally:
            slots.release()

    try:
        for entry_id in range(ENTRIES_PER_LEDGER_MAX):
            await slots.acquire()
            tasks.add(asyncio.create_task(add(entry_id)))
            if entry_id == fence_at and ledger_id % 3 == 0:
                answer, _ = await peer.call(BookieOp.READ_LAC, ledger_id, flags=Flag.FENCE)
                assert answer.status is Status.OK, f"a fencing read of ledger {ledger_id}: {answer}"
                history.fenced.append(ledger_id)
                return
            if peer.transport is None or peer.transport.is_closing():
                return
    finally:
        await asyncio.gather(*tasks, return_exceptions=True)


async def check(peer: BookiePeer, history: History, keys: list[Key], fences: list[int]) -> None:
    """Read the entries and try the fences."""
    for start in range(0, len(keys), READS_AT_ONCE):
        some = keys[start : start + READS_AT_ONCE]
        answers = await asyncio.gather(*(peer.call(BookieOp.READ, *key) for key in some))
        for key, (answer, body) in zip(some, answers, strict=True):
            assert answer.status is Status.OK, f"entry {key[0]}:{key[1]} was acknowledged: {answer}"  # I1
            assert decode_entry(body).payload == history.payload(key), f"entry {key[0]}:{key[1]} has other bytes"
    history.entries_read += len(keys)
    for ledger_id in fences:
        answer, _ = await peer.add(ledger_id, 2 * ENTRIES_PER_LEDGER_MAX, b"late")
        assert answer.status is Status.FENCED, f"ledger {ledger_id} was fenced: {answer}"  # I4


async def one_life(process: BookieProcess, history: History, chance: random.Random) -> None:
    """Start the bookie, check the last life's entries and some older ones, write, and kill it."""
    process.start()
    peer = await BookiePeer.connect(process.address)
    older = sorted(history.acknowledged)
    keys = sorted(history.in_doubt) + chance.sample(older, min(SAMPLE_MAX, len(older)))
    fences = history.fenced[-FENCES_MAX:]
    await check(peer, history, keys, fences)
    history.acknowledged |= history.in_doubt
    history.in_doubt = set()
    never_stored = NEVER_STORED_FROM + history.next_ledger_id
    status = await peer.status(BookieOp.READ, never_stored, 0, flags=Flag.FENCE)
    assert status is Status.NO_LEDGER, f"a fencing read of ledger {never_stored}, which is unknown: {status!r}"
    history.fenced.append(never_stored)
    writers = [asyncio.create_task(write(peer, history, chance)) for _ in range(WRITERS)]
    wanted = chance.randrange(LIFE_ENTRIES_MIN, 4 * LIFE_ENTRIES_MIN)
    while len(history.in_doubt) < wanted and not any(writer.done() for writer in writers):  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    await asyncio.sleep(chance.uniform(0.0, 0.5))
    await asyncio.to_thread(process.kill)
    history.kills += 1
    outcomes = await asyncio.gather(*writers, return_exceptions=True)
    peer.close()
    for outcome in outcomes:
        if isinstance(outcome, BaseException) and not isinstance(outcome, ConnectionError):
            raise outcome


async def last_look(process: BookieProcess, history: History) -> None:
    """Check every acknowledged entry and every fence."""
    process.start()
    peer = await BookiePeer.connect(process.address)
    await check(peer, history, sorted(history.acknowledged | history.in_doubt), history.fenced)
    peer.close()


def run(folder: Path, rounds: int, seed: int, *, is_quiet: bool = False, directories: int = 1) -> History:
    """Run ``rounds`` lives and a last check, and another check after a clean stop.

    Args:
        directories: of each kind that the bookie has.

    Raises:
        AssertionError: an acknowledged entry is lost or changed, or a fence is lost.
    """
    chance = random.Random(seed)
    history = History(seed)
    process = BookieProcess(folder, journal_file_bytes=1 << 20, directories=directories)
    started = time.monotonic()
    try:
        while history.kills < rounds:
            if chance.random() < KILLED_IN_START_SHARE:
                process.start_without_waiting()
                time.sleep(chance.uniform(0.2, 1.2))
                process.kill()
                history.kills += 1
                history.kills_in_start += 1
            else:
                asyncio.run(one_life(process, history, chance))
            if not is_quiet and history.kills % 10 == 0:
                count = len(history.acknowledged | history.in_doubt)
                print(
                    f"{history.kills} kills, {count} entries acknowledged, {time.monotonic() - started:.0f} s",
                    flush=True,
                )
        asyncio.run(last_look(process, history))
        process.terminate()
        asyncio.run(last_look(process, history))
    finally:
        process.kill()
    return history


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.bookie", description=__doc__)
    parser.add_argument("--rounds", type=int, default=200, help="kills")
    parser.add_argument("--seed", type=int, default=None, help="of an earlier run; a new one without")
    parser.add_argument(
        "--folder", type=Path, default=None, help="parent of the bookie's folder; a temporary one without"
    )
    arguments = parser.parse_args()
    seed = arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(1 << 32)
    again = f"python -m tests.chaos.bookie --rounds {arguments.rounds} --seed {seed}"
    print(f"seed {seed}; to play it again: {again}", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="heliograph-chaos-", dir=arguments.folder))
    try:
        history = run(folder, arguments.rounds, seed)
    except AssertionError:
        traceback.print_exc()
        print(f"LOST, see {folder}\nto play it again: {again}", flush=True)
        return 1
    shutil.rmtree(folder)
    entries = len(history.acknowledged | history.in_doubt)
    print(
        f"{history.kills} kills ({history.kills_in_start} during the start), {entries} entries acknowledged, "
        f"{len(history.fenced)} fences, {history.entries_read} verifying reads: nothing lost"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
