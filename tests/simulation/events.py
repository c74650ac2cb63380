"""Events that are not faults but may do harm together with one: takeovers, recoveries, repairs, deletions."""

from __future__ import annotations

from random import Random

from heliograph.metadata.model import TopicRecord
from tests.simulation.cluster.network import ANYONE
from tests.simulation.faults.fault import fault
from tests.simulation.faults.faults import REQUESTS
from tests.simulation.faults.nemesis import BROKERS_MAX, REPAIRERS_MAX, Nemesis
from tests.simulation.workload.deletion import Trimmer, collect_garbage


@fault("takeover beside a live broker", 4)
def take_over(nemesis: Nemesis, random: Random) -> bool:
    """Let a new broker take the topic over while the old one goes on as if it owned it."""
    return nemesis.take_over()


@fault("takeover past a congested bookie", 2)
def take_over_past_congestion(nemesis: Nemesis, random: Random) -> bool:
    """Delay and reorder messages to one bookie of the open ledger during a takeover."""
    ensemble = nemesis.ensemble()
    if not ensemble or not nemesis.can_take_over():
        return False
    nemesis.slow(ANYONE, random.choice(ensemble).name, random.choice((200, 600)), 3_000)
    nemesis.later(random.randrange(100), nemesis.take_over)
    return True


@fault("handover among late requests", 6)
def hand_over(nemesis: Nemesis, random: Random) -> bool:
    """Move producers to a new broker while their last adds are under way, and requests overtake each other.

    The old broker goes on without anything to send: it learns about its last adds from late answers only.
    """
    ensemble = nemesis.ensemble()
    if not ensemble or not nemesis.can_take_over():
        return False
    nemesis.delay_kinds(ensemble, REQUESTS, random)
    delay = random.randrange(50, 400)
    old = nemesis.brokers[-1]

    def go_quiet() -> None:
        old.quiet_until = nemesis.world.now + 4_000

    nemesis.later(delay, go_quiet)
    nemesis.later(delay + random.randrange(100), nemesis.take_over)
    return True


@fault("takeover among failing bookies", 8)
def take_over_among_failures(nemesis: Nemesis, random: Random) -> bool:
    """Fail bookies of the open ledger before and while a new owner recovers it, perhaps several times."""
    ensemble = nemesis.ensemble()
    if not ensemble or not nemesis.can_take_over():
        return False
    random.shuffle(ensemble)
    if random.random() < 0.5:  # the old owner gets no answers: many adds are under way, and the recovery is long
        for bookie in ensemble:
            nemesis.delay_kind(bookie.name, ANYONE, 1_000, "SendAdd")
    delay = random.randrange(1_000)
    if random.random() < 0.7:
        nemesis.later(delay, lambda: nemesis.crash_when_unsynced(ensemble[-1], "recovered entry", 0, 4_000))
    for bookie in ensemble[: random.choice((0, 0, 1, 2))]:
        nemesis.later(random.randrange(1_500), lambda bookie=bookie: nemesis.crash(bookie, random))  # type: ignore[misc]
    nemesis.later(delay, nemesis.take_over)
    if random.random() < 0.5:
        nemesis.later(random.randrange(1_000, 3_000), nemesis.take_over)
    return True


@fault("ledger deleted behind its writer", 2)
def delete_behind_writer(nemesis: Nemesis, random: Random) -> bool:
    """Pause a broker until its ledger is closed, deleted and collected. Then it goes on."""
    if nemesis.brokers[-1].writer is None or len(nemesis.brokers) + 2 > BROKERS_MAX:
        return False
    nemesis.brokers[-1].paused_until = nemesis.world.now + 4_000
    for delay_ms in (10, 1_200, 2_400):
        nemesis.later(delay_ms, nemesis.take_over)
    for delay_ms in (2_400, 3_200):
        nemesis.later(delay_ms, lambda: trim(nemesis, random))
    for bookie in nemesis.bookies:
        nemesis.later(3_700, lambda bookie=bookie: collect_garbage(bookie, nemesis.cluster, nemesis.checkers))  # type: ignore[misc]
    return True


@fault("takeover in the middle of a rollover", 2)
def take_over_rollover(nemesis: Nemesis, random: Random) -> bool:
    """Replace a broker that appends its next ledger to the topic, and lose the answer to the append."""
    listeners = nemesis.cluster.store.on_topic

    def listen(before: TopicRecord, after: TopicRecord) -> None:
        writer = nemesis.brokers[-1].writer
        is_rolling = writer is not None and any(info.ledger_id == writer.ledger_id for info in before.ledgers)
        if is_rolling and len(after.ledgers) > len(before.ledgers):
            listeners.remove(listen)
            nemesis.cut("store", nemesis.brokers[-1].name, 1_500)
            nemesis.later(random.randrange(50), nemesis.take_over)

    def stop_listening() -> None:
        if listen in listeners:
            listeners.remove(listen)

    listeners.append(listen)
    nemesis.later(3_000, stop_listening)
    return True


@fault("recovery by a bystander", 3)
def meddle(nemesis: Nemesis, random: Random) -> bool:
    """Let a client recover a ledger that may be being written."""
    ledgers = nemesis.cluster.store.topic().record.ledgers
    if not ledgers:
        return False
    nemesis.recover(random.choice(ledgers[-2:]).ledger_id)
    return True


@fault("repair started", 3)
def repair(nemesis: Nemesis, random: Random) -> bool:
    """Let a worker repair a ledger. Several may do so at once."""
    ledgers = nemesis.cluster.store.topic().record.ledgers
    if not ledgers or len(nemesis.repairers) >= REPAIRERS_MAX:
        return False
    ledger_id = random.choice(ledgers).ledger_id
    for _ in range(random.choice((1, 1, 2))):
        nemesis.later(random.randrange(100), lambda: nemesis.repair(ledger_id))
    return True


@fault("checkpoint", 6)
def checkpoint(nemesis: Nemesis, random: Random) -> bool:
    """Flush a bookie, so that it moves its mark."""
    up = nemesis.bookies_up()
    if not up:
        return False
    random.choice(up).checkpoint()
    return True


@fault("old ledgers deleted", 3)
def trim(nemesis: Nemesis, random: Random) -> bool:
    """Delete ledgers at the topic's head while its owner and readers go on."""
    Trimmer(nemesis.name_for("trimmer"), nemesis.cluster).trim()
    return True


@fault("garbage collection", 3)
def collect(nemesis: Nemesis, random: Random) -> bool:
    """Let a bookie collect ledgers that metadata no longer has."""
    up = nemesis.bookies_up()
    if not up:
        return False
    bookie = random.choice(up)
    if random.random() < 0.5:  # its list of metadata is old
        nemesis.delay_kind("store", bookie.name, random.choice((300, 750)), "metadata")
    collect_garbage(bookie, nemesis.cluster, nemesis.checkers)
    return True
