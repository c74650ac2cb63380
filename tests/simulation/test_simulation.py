"""Tests of the simulator: disks, network, clock, determinism; and seeds that must be clean."""

from __future__ import annotations

import hashlib
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from pathlib import Path

import pytest

from heliograph.actors.ledger.effects import Reply
from heliograph.actors.ledger.lac import LacReadCore
from heliograph.metadata.model import LedgerMetadata, Segment
from tests.simulation.__main__ import main
from tests.simulation.campaign import Totals, run_plan, spread
from tests.simulation.checkers.judge import Judge
from tests.simulation.cluster.bookie import SimulatedBookie
from tests.simulation.cluster.disk import Copy
from tests.simulation.cluster.network import ANYONE, Network
from tests.simulation.faults.fault import KINDS
from tests.simulation.mutants.mutants import MUTANTS
from tests.simulation.profile import BOOKIE, CLIENT, DELETION, LEDGER, MESSAGES_MAX, TOPIC, Plan, Profile
from tests.simulation.report import ASSERT, CRASH, Report, failure_of
from tests.simulation.run import Run
from tests.simulation.shrink import Shrinker, relevant
from tests.simulation.world import Process, World
from tests.simulation.worlds import RUNS, execute

SEEDS = int(os.environ.get("HELIOGRAPH_SIM_SEEDS", "50"))
SEEDS_PER_TEST = 25
WORLD_OF = {"topic:": TOPIC, "client:": CLIENT, "storage:": BOOKIE, "deletion:": DELETION}
KNOWN_SEEDS = [
    (int(line.split()[0]), WORLD_OF.get(line.split()[1], LEDGER))
    for line in (Path(__file__).parent / "known_seeds.txt").read_text().splitlines()
    if line and not line.startswith("#")
]
DIGEST_SEEDS = {LEDGER: 7, TOPIC: 7, CLIENT: 7, BOOKIE: 7, DELETION: 3}
DIGEST = """
import sys
from tests.simulation.test_simulation import digest
print(digest(sys.argv[1]))
"""


def digest(world: str) -> str:
    """Return a digest of everything that a run did."""
    report = execute(Plan(DIGEST_SEEDS[world], world=world), is_traced=True)
    told = "\n".join([report.failure, str(report.steps), str(sorted(report.counts.items())), *report.trace])
    return hashlib.sha256(told.encode()).hexdigest()


def quiet_profile() -> Profile:
    plan = Plan(1, without=frozenset(("loss", "duplication", "straggler", "reply_loss_metadata")))
    return Profile.of(plan, World(1).stream("profile"))


def settle(world: World) -> None:
    while world.step():
        pass


def copy(number: int, lac: int = -1) -> Copy:
    return Copy(lac, 10 * (number + 1), b"message %d" % number)


# Whole runs


@pytest.mark.parametrize("start", range(0, SEEDS, SEEDS_PER_TEST))
def test_seeds_are_clean(start: int) -> None:
    failures = []
    for seed in range(start, min(start + SEEDS_PER_TEST, SEEDS)):
        report = run_plan(Plan(seed))
        if report.failure:
            failures.append(f"python -m tests.simulation --seed {seed}: {report.failure}")
    assert not failures, "\n".join(failures)


@pytest.mark.parametrize(("seed", "world"), KNOWN_SEEDS)
def test_known_seed_is_clean(seed: int, world: str) -> None:
    assert run_plan(Plan(seed, world=world)).failure == ""


@pytest.mark.parametrize("world", RUNS)
def test_a_seed_decides_everything_whatever_the_process(world: str) -> None:
    told = {digest(world)}
    for hash_seed in ("0", "1", "4711"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        done = subprocess.run(
            [sys.executable, "-c", DIGEST, world], env=environment, capture_output=True, text=True, check=True
        )
        told.add(done.stdout.strip())
    assert len(told) == 1


def test_tracing_changes_nothing() -> None:
    plain, traced = Run(Plan(3)).execute(), Run(Plan(3), is_traced=True).execute()
    assert (plain.steps, plain.counts, plain.simulated_ms) == (traced.steps, traced.counts, traced.simulated_ms)
    assert len(traced.trace) > 100


def test_faults_that_a_plan_leaves_out_do_not_happen() -> None:
    everything = Run(Plan(5)).execute()
    assert everything.struck
    assert Run(Plan(5, faults=frozenset())).execute().struck == []
    first = everything.struck[0]
    assert Run(Plan(5, faults=frozenset({first}))).execute().struck == [first]
    names = frozenset(kind.name for kind in KINDS)
    bare = Run(Plan(5, without=names | {"loss", "duplication"}, messages_max=3)).execute()
    assert bare.accepted == 3 + 5  # and those of the last broker
    assert not names.intersection(bare.counts)
    assert "message lost" not in bare.counts


def test_a_kind_that_never_happens_is_an_error_of_many_seeds() -> None:
    totals = Totals(seeds=200)
    totals.counts["bookie crashed"] = 1
    assert "bookie crashed" not in totals.never_happened()
    assert "disk lost" in totals.never_happened()
    assert Totals(seeds=199).never_happened() == []


# Shrinking and the command line


def test_a_shrunk_plan_breaks_the_same_promise_when_replayed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    name = "use-segment-before-it-is-persisted"
    with MUTANTS[name].sabotage():
        report = next(r for r in (Run(Plan(seed)).execute() for seed in range(200)) if r.failure)
        small = Shrinker(report).shrink()
    assert small.invariant == report.invariant
    assert len(small.struck) < len(report.struck)
    assert small.plan.messages_max < MESSAGES_MAX or small.plan.until_ms is not None
    assert relevant(small)
    assert main([*shlex.split(small.plan.arguments()), "--mutant", name, "--trace"]) == 1
    assert small.failure in capsys.readouterr().out


def failed(function: Callable[[], object]) -> Report:
    with pytest.raises(Exception) as caught:  # noqa: PT011
        function()
    return Report(Plan(1), failure_of(caught.value))


def test_an_accident_catches_no_mutant() -> None:
    """A mutant is caught by an invariant, or by the assertion of the product that it names."""

    def broken_stand_in() -> None:
        raise AssertionError("it serves it")

    core = LacReadCore(LedgerMetadata(1, 1, 1, 1, (Segment(0, ("bookie-1",)),)))
    core.is_done = True
    plain = MUTANTS["skip-fence-on-recovery-read"]
    naming = replace(plain, asserted="only the newest ledger")
    broken = failed(lambda: Judge().require(False, "I7", "closed too early"))
    asserted = failed(lambda: core.start(0))
    assert (broken.invariant, asserted.invariant) == ("I7", ASSERT)
    for report in (failed(lambda: MUTANTS["nothing"]), failed(broken_stand_in)):
        assert report.invariant == CRASH
        assert not plain.is_caught_by(report)
    assert plain.is_caught_by(broken)
    assert not plain.is_caught_by(asserted)
    assert not naming.is_caught_by(asserted)
    assert replace(plain, asserted="a core starts once").is_caught_by(asserted)
    assert not plain.is_caught_by(Report(Plan(1)))


def test_arguments_of_a_plan() -> None:
    plan = Plan(4, frozenset({9, 2}), frozenset({"loss", "disk lost"}), 700, 12)
    assert plan.arguments() == "--seed 4 --faults 2,9 --without 'disk lost,loss' --until 700 --messages 12"
    assert Plan(4, frozenset()).arguments() == "--seed 4 --faults none"
    assert Plan(4, messages_max=MESSAGES_MAX).arguments() == "--seed 4"


def test_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "3", "--jobs", "1"]) == 0
    assert "seeds a minute" in capsys.readouterr().out
    assert main(["--seed", "2"]) == 0
    assert main(["--mutant", "answer-adds-before-the-sync", "--seeds", "20"]) == 0
    assert "--seed" in capsys.readouterr().out
    assert main(["--mutant", "answer-adds-before-the-sync", "--seed", "0"]) == 1
    assert main(["--mutant", "fence-stops-recovery-too", "--seeds", "1", "--start", "0", "--outcomes"]) in (0, 1)


@pytest.mark.parametrize(
    "arguments", [["--seeds", "0"], ["--mutant", "none-such"], ["--trace"], ["--seed", "1", "--without", "weather"]]
)
def test_wrong_arguments(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "error" in capsys.readouterr().err


# Time


def test_a_crashed_process_loses_its_events_and_a_paused_one_gets_them_late() -> None:
    world, seen = World(0), list[tuple[str, int]]()
    crashed, paused = Process("crashed"), Process("paused")
    world.after(10, lambda: seen.append(("crashed", world.now)), crashed)
    world.after(10, lambda: seen.append(("paused", world.now)), paused)
    paused.paused_until = 50
    crashed.crash()
    crashed.restart()
    world.after(20, lambda: seen.append(("restarted", world.now)), crashed)
    settle(world)
    assert seen == [("restarted", 20), ("paused", 50)]


# The network


def test_network_cuts_in_one_direction_and_delays_by_kind() -> None:
    world = World(0)
    network = Network(world, quiet_profile())
    a, b = Process("a"), Process("b")
    seen: dict[str, int] = {}

    def send(source: Process, target: Process, what: str, kind: str) -> None:
        network.send(source, target, lambda: seen.update({what: world.now}), kind)

    network.cut("a", "b")
    network.make_late(ANYONE, "a", 10_000, "ReadLac")
    send(a, b, "cut", "SendAdd")
    send(b, a, "quick", "SendAdd")
    send(b, a, "late", "ReadLac")
    settle(world)
    assert seen.keys() == {"quick", "late"}
    assert seen["quick"] < 1_000
    assert seen["late"] >= 5_000
    network.heal()
    began = world.now
    send(a, b, "healed", "ReadLac")
    settle(world)
    assert seen["healed"] - began <= 3


# The bookie


def make_bookie(seed: int = 0) -> tuple[World, SimulatedBookie]:
    world = World(seed)
    return world, SimulatedBookie(world, "bookie-1", sync_ms_max=10)


def read(bookie: SimulatedBookie, entry_id: int, is_fencing: bool = False) -> list[Reply]:
    replies: list[Reply] = []
    bookie.read_entry(1, entry_id, is_fencing, lambda reply, entry: replies.append(reply))
    return replies


def test_a_crash_takes_unsynced_entries_and_keeps_a_prefix() -> None:
    kept_counts = set()
    for seed in range(30):
        _, bookie = make_bookie(seed)
        replies: list[Reply] = []
        for number in range(4):
            bookie.add(1, number, copy(number), False, replies.append)
        bookie.crash()
        bookie.restart()
        kept = [bookie.disk.holds(1, number) for number in range(4)]
        assert replies == []  # I1: nothing was acknowledged
        assert kept == sorted(kept, reverse=True)
        kept_counts.add(sum(kept))
    assert kept_counts == {0, 1, 2, 3, 4}


def test_what_was_acknowledged_survives_crash_checkpoint_and_crash() -> None:
    world, bookie = make_bookie()
    replies: list[Reply] = []
    bookie.add(1, 0, copy(0), False, replies.append)
    settle(world)
    assert replies == [Reply.OK]
    bookie.checkpoint()
    bookie.crash()  # in the middle of the flush
    bookie.restart()
    bookie.checkpoint()
    settle(world)
    assert bookie.disk.journal == []
    bookie.crash()
    bookie.restart()
    assert read(bookie, 0) == [Reply.OK]
    assert read(bookie, 1) == [Reply.ABSENT]


def test_a_fence_is_answered_when_durable_and_holds_over_a_crash() -> None:
    world, bookie = make_bookie()
    replies = read(bookie, 0, is_fencing=True)
    assert replies == []  # I4: not even a negative answer before the fence is durable
    settle(world)
    assert replies == [Reply.ABSENT]
    bookie.crash()
    bookie.restart()
    answers: list[Reply] = []
    bookie.add(1, 0, copy(0), False, answers.append)
    assert answers == [Reply.FENCED]
    bookie.add(1, 0, copy(0), True, answers.append)
    settle(world)
    assert answers == [Reply.FENCED, Reply.OK]
    bookie.collect([1])
    bookie.add(1, 0, copy(0), False, answers.append)
    assert answers[-1] is Reply.FENCED  # I4: nor does deletion clear it


def test_a_failed_sync_answers_with_an_error_and_ends_the_process() -> None:
    world, bookie = make_bookie()
    replies: list[Reply] = []
    bookie.fails_next_sync = True
    bookie.add(1, 0, copy(0), False, replies.append)
    settle(world)
    assert replies == [Reply.UNKNOWN]
    assert bookie.incarnation == 1
    assert bookie.is_up


def test_a_lost_disk_knows_nothing_and_takes_nothing() -> None:
    world, bookie = make_bookie()
    bookie.add(1, 0, copy(0), False, lambda reply: None)
    settle(world)
    bookie.lose_disk([LedgerMetadata(1, 1, 1, 1, (Segment(0, (bookie.name,)),))], 1)
    bookie.restart()
    assert read(bookie, 0) == [Reply.UNKNOWN]  # I6
    answers: list[Reply] = []
    bookie.add(1, 1, copy(1), False, answers.append)
    assert answers == [Reply.FENCED]  # I6


def test_a_damaged_copy_is_told_apart_from_none() -> None:
    world, bookie = make_bookie()
    bookie.add(1, 0, copy(0), False, lambda reply: None)
    settle(world)
    bookie.checkpoint()
    settle(world)
    assert bookie.flip_bit(world.stream("test"))
    assert read(bookie, 0) == [Reply.DAMAGED]
    assert not bookie.disk.holds(1, 0)
    bookie.add(1, 0, copy(0), True, lambda reply: None)
    settle(world)
    assert read(bookie, 0) == [Reply.OK]


def test_a_runs_list_is_told_when_it_is_durable() -> None:
    world, bookie = make_bookie()
    told: list[tuple[Reply, tuple[tuple[int, int], ...]]] = []
    for number in (0, 1, 3):
        bookie.add(1, number, copy(number), False, lambda reply: None)
    bookie.list_entries(1, lambda reply, runs: told.append((reply, runs)))
    assert told == []
    settle(world)
    assert told == [(Reply.OK, ((0, 1), (3, 3)))]


def test_a_process_that_dies_is_no_reason_to_wait_for_ever() -> None:
    with pytest.raises(BrokenProcessPool):
        list(spread(os._exit, [70], jobs=2))
