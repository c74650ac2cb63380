"""The kinds of faults of the world of bookies."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

from tests.simulation.faults.fault import Fault, fault

if TYPE_CHECKING:
    from tests.simulation.bookie.run import BookieRun

BOOKIE_KINDS: list[Fault] = []
RESTART_MS = (5, 50, 400)
FULL_MS = (50, 300, 1_000)
MASKS = (0x01, 0x80, 0xFF)


def run_of(nemesis: Any) -> BookieRun:
    """Return the run: in this world it is what strikes."""
    run: BookieRun = nemesis
    return run


@fault("bookie killed", 6, BOOKIE_KINDS)
def kill(nemesis: Any, random: Random) -> bool:
    """End the process; the machine goes on."""
    run = run_of(nemesis)
    if not run.host.is_up:
        return False
    run.host.kill()
    run.start_later(random.choice(RESTART_MS))
    return True


@fault("power cut", 6, BOOKIE_KINDS)
def cut(nemesis: Any, random: Random) -> bool:
    """End the machine between two operations of the disk."""
    run = run_of(nemesis)
    if not run.host.is_up:
        return False
    run.host.cut_power()
    run.start_later(random.choice(RESTART_MS))
    return True


@fault("power cut in an operation", 12, BOOKIE_KINDS)
def cut_in(nemesis: Any, random: Random) -> bool:
    """End the machine within one of the next operations of the disk."""
    run = run_of(nemesis)
    if not run.host.is_up:
        return False
    run.host.disk.cut_in = random.choice((1, 2, 3, 5, 8, 13, 30))
    return True


@fault("power cut behind a change of names", 8, BOOKIE_KINDS)
def ambush(nemesis: Any, random: Random) -> bool:
    """End the machine soon after a file gets a name, is cut off or leaves, or after an index changes."""
    run = run_of(nemesis)
    if not run.host.is_up:
        return False
    verb = random.choice(("create", "link", "rename", "remove", "truncate", "index"))
    run.host.disk.ambush = (verb, random.choice((1, 2, 3, 4, 5)))
    for number in range(3):
        run.later(10 + 30 * number, run.checkpoint)
    return True


@fault("power cut in a start", 8, BOOKIE_KINDS)
def cut_start(nemesis: Any, random: Random) -> bool:
    """End the machine, and end it again within the replay or the flush of the next start."""
    run = run_of(nemesis)
    run.next_start_is_cut_in = random.randrange(1, 30)
    return cut(nemesis, random) or True


@fault("sync failed", 4, BOOKIE_KINDS)
def fail_sync(nemesis: Any, random: Random) -> bool:
    """Let the next sync fail, of a file or of a directory."""
    run = run_of(nemesis)
    if not run.host.is_up:
        return False
    run.host.disk.fails_next_sync = True
    return True


@fault("index write failed", 4, BOOKIE_KINDS)
def fail_index(nemesis: Any, random: Random) -> bool:
    """Let the next change of an index fail, which may have been made."""
    run = run_of(nemesis)
    if not run.host.is_up:
        return False
    run.host.disk.fails_next_index = True
    return True


@fault("disk full", 4, BOOKIE_KINDS)
def fill(nemesis: Any, random: Random) -> bool:
    """Let no file grow for a while."""
    run = run_of(nemesis)
    run.is_full = True
    if run.host.is_up:
        run.host.disk.is_full = True
    run.later(random.choice(FULL_MS), run.make_room)
    return True


@fault("bits flipped", 4, BOOKIE_KINDS)
def flip(nemesis: Any, random: Random) -> bool:
    """End the process, and damage a byte of a file before it starts again.

    Of a journal file, only what a later batch proves is damaged: the end of a journal cannot be told from a torn one.
    """
    run = run_of(nemesis)
    if run.host.is_up:
        run.host.kill() if random.random() < 0.5 else run.host.cut_power()
        run.start_later(random.choice(RESTART_MS))
    names = run.host.platter.names
    ends = {path: inode.proven if path.suffix == ".journal" else len(inode.content) for path, inode in names.items()}
    for path in sorted(names):
        if names[path].proven and names[path].proven < len(names[path].content):
            ends[path] = names[path].proven  # under any of its names
    chosen = [path for path in sorted(ends) if ends[path] and path.suffix != ".draft"]
    if not chosen:
        return False
    journals = [path for path in chosen if path.suffix == ".journal"]
    path = random.choice(journals if journals and random.random() < 0.5 else chosen)
    run.world.note("damage in", path)
    names[path].flip(random.randrange(ends[path]), random.choice(MASKS))
    return True


@fault("orderly stop", 4, BOOKIE_KINDS)
def stop(nemesis: Any, random: Random) -> bool:
    """Stop the bookie as a rolling restart does."""
    run = run_of(nemesis)
    if not run.host.is_up:
        return False
    run.stop()
    run.start_later(random.choice(RESTART_MS))
    return True


@fault("checkpoints in a row", 4, BOOKIE_KINDS)
def checkpoint(nemesis: Any, random: Random) -> bool:
    """Ask for checkpoints among adds, so that files become spares, and logs, as fast as they can."""
    run = run_of(nemesis)
    for number in range(random.choice((1, 3, 6))):
        run.later(number * random.choice((5, 30)), run.checkpoint)
    return True


@fault("ledgers deleted and collected", 4, BOOKIE_KINDS)
def collect(nemesis: Any, random: Random) -> bool:
    """Delete ledgers, and collect them while others are written."""
    run = run_of(nemesis)
    models = [model for model in run.model.ledgers.values() if not model.is_removed and random.random() < 0.5]
    for model in models:
        run.clients.remove(model)
    for number in range(3):
        run.later(random.randrange(50) + 40 * number, run.collect)
    return bool(models)
