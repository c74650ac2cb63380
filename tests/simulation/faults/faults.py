"""Faults of bookies, disks, links and processes. Each returns whether it happened."""

from __future__ import annotations

from random import Random

from tests.simulation.cluster.bookie import UNSYNCED
from tests.simulation.cluster.network import ANYONE
from tests.simulation.faults.fault import fault
from tests.simulation.faults.nemesis import Nemesis

REQUESTS = ("SendAdd", "ReadLac", "ReadEntry")  # kinds that can be delayed on their own


@fault("bookie crashed", 6)
def crash_bookie(nemesis: Nemesis, random: Random) -> bool:
    """Kill one bookie; unsynced data may be lost."""
    up = nemesis.bookies_up()
    if not up:
        return False
    unsynced = [bookie for bookie in up if bookie.has_unsynced]
    bookie = random.choice(unsynced if unsynced and random.random() < 0.7 else up)
    nemesis.crash(bookie, random)
    return True


@fault("bookie crashes at an awkward moment", 4)
def crash_unsynced(nemesis: Nemesis, random: Random) -> bool:
    """Kill a bookie around the sync of its next fence, entry, or entry of a recovery, and restart it soon."""
    what = random.choice(("fence", *UNSYNCED))
    for bookie in random.sample(nemesis.bookies, random.randint(1, 2)):
        nemesis.crash_when_unsynced(bookie, what, random.randrange(8), random.choice((5, 50, 500)))
    return True


@fault("power cut of all bookies", 1)
def cut_power(nemesis: Nemesis, random: Random) -> bool:
    """Kill all bookies at once."""
    for bookie in nemesis.bookies_up():
        nemesis.crash(bookie, random)
    return True


@fault("network partition", 5)
def partition(nemesis: Nemesis, random: Random) -> bool:
    """Cut some links between a client and bookies, in one direction or both."""
    client = random.choice([broker.name for broker in nemesis.brokers[-2:]] + ["store"])
    for bookie in nemesis.bookies:
        if random.random() < 0.5:
            continue
        there, back = (client, bookie.name), (bookie.name, client)
        for source, target in random.choice(([there], [back], [there, back])):
            nemesis.cut(source, target, random.choice((300, 1_500, 5_000)))
    return True


@fault("bookie slow", 3)
def slow_bookie(nemesis: Nemesis, random: Random) -> bool:
    """Make the syncs of one bookie very slow."""
    bookie = random.choice(nemesis.bookies)
    bookie.sync_ms_max = random.choice((200, 2_500))

    def recover() -> None:
        bookie.sync_ms_max = nemesis.profile.sync_ms_max

    nemesis.later(2_000, recover)
    return True


@fault("link slow", 6)
def slow_link(nemesis: Nemesis, random: Random) -> bool:
    """Delay the messages of one broker to one bookie, or back, while all others are quick."""
    pair = [random.choice(nemesis.brokers[-3:]).name, random.choice(nemesis.bookies).name]
    random.shuffle(pair)
    nemesis.slow(pair[0], pair[1], random.choice((100, 400, 1_500)), random.choice((1_000, 4_000)))
    return True


@fault("bookie congested", 4)
def congest(nemesis: Nemesis, random: Random) -> bool:
    """Deliver messages to one bookie late and out of order, while its answers are quick."""
    bookie = random.choice(nemesis.bookies)
    nemesis.slow(ANYONE, bookie.name, random.choice((100, 400, 900)), random.choice((1_000, 4_000)))
    return True


@fault("kind of request late", 4)
def delay_kinds(nemesis: Nemesis, random: Random) -> bool:
    """Delay some kinds of requests to some bookies, so that the others overtake them."""
    nemesis.delay_kinds(nemesis.bookies, REQUESTS, random)
    return True


@fault("bookie read-only", 1)
def fill_disk(nemesis: Nemesis, random: Random) -> bool:
    """Fill the disk of one bookie for a while: it takes no entries."""
    bookie = random.choice(nemesis.bookies)
    bookie.is_full = True

    def free() -> None:
        bookie.is_full = False

    nemesis.later(2_000, free)
    return True


@fault("bookie lost its session", 1)
def expire_session(nemesis: Nemesis, random: Random) -> bool:
    """Remove the registration of a live bookie for a while: others take it for dead, and it serves on."""
    random.choice(nemesis.bookies).unregistered_until = nemesis.world.now + random.choice((500, 3_000))
    return True


@fault("sync about to fail", 1)
def fail_sync(nemesis: Nemesis, random: Random) -> bool:
    """Fail the next sync of one bookie: it answers with an error and dies."""
    random.choice(nemesis.bookies).fails_next_sync = True
    return True


@fault("disk lost", 2)
def lose_disk(nemesis: Nemesis, random: Random) -> bool:
    """Lose all data of a bookie that may lose data."""
    bookie = nemesis.choose_lossy(random)
    if bookie is None or not bookie.is_up:
        return False
    nemesis.lose_disk(bookie, random.choice((50, 500, 4_000)))
    return True


@fault("bookie gone for long", 4)
def go_away(nemesis: Nemesis, random: Random) -> bool:
    """Take a bookie away for as long as others may notice, or until the end. It comes back with its disk or without.

    A takeover or another loss follows at times, so that ledgers are made and recovered meanwhile.
    """
    is_lossy = random.random() < 0.7
    bookie = nemesis.choose_lossy(random) if is_lossy else random.choice(nemesis.bookies)
    if bookie is None or not bookie.is_up:
        return False
    nemesis.go_away(bookie, loses_disk=is_lossy and random.random() < 0.5)
    if random.random() < 0.7 or not is_lossy:
        nemesis.later(random.choice((2_000, 4_000, 8_000)), lambda: nemesis.come_back(bookie))
    if random.random() < 0.5:
        nemesis.later(random.randrange(1_000, 2_500), nemesis.take_over)
    if random.random() < 0.3:
        other = random.choice(nemesis.bookies)
        nemesis.later(random.randrange(500, 3_500), lambda: nemesis.crash(other, random))
    return True


@fault("bit flipped", 2)
def flip_bit(nemesis: Nemesis, random: Random) -> bool:
    """Damage one entry of a bookie that may lose data."""
    bookie = nemesis.choose_lossy(random)
    return bookie is not None and bookie.flip_bit(random)


@fault("broker crashed", 2)
def crash_broker(nemesis: Nemesis, random: Random) -> bool:
    """Kill the newest broker, and let another one take over."""
    nemesis.brokers[-1].crash()
    nemesis.take_over()
    return True


@fault("process paused", 3)
def pause(nemesis: Nemesis, random: Random) -> bool:
    """Stop a process for a while."""
    processes = [*nemesis.bookies, *nemesis.brokers[-2:], nemesis.cluster.store]
    random.choice(processes).paused_until = nemesis.world.now + random.choice((200, 1_500, 6_000))
    return True


@fault("metadata store unreachable", 2)
def cut_store(nemesis: Nemesis, random: Random) -> bool:
    """Cut the newest broker off from the metadata store."""
    name = nemesis.brokers[-1].name
    nemesis.cut(name, "store", 2_500)
    nemesis.cut("store", name, 2_500)
    return True
