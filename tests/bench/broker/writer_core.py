"""The ledger writer core alone: adds per second, with three bookies that answer immediately.

The limit is the least bookkeeping that any such writer needs: an add is noted, three answers are counted, the add is
forgotten. Processor time is measured, so that other work on the machine does not count.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from heliograph.actors.ledger.effects import AddsConfirmed, Effect, Reply
from heliograph.actors.ledger.writer import WriterCore
from tests.bench.bench import Bench
from tests.bench.figure import Limit, ratio_at_least
from tests.unit.ledger.cores import Spares, ledger

SECTION = "writer core"
PAYLOAD_BYTES = 1 << 10
COPIES = 3
IN_FLIGHT = 1_000
CHUNK = 1_000  # adds between two reads of the clock
AIM_SHARE = 0.05  # of what the bare bookkeeping does


@dataclass(slots=True)
class CoreRun:
    """The number of adds and effects, and their processor time."""

    adds: int = 0
    effects: int = 0
    seconds: float = 0.0

    @property
    def per_second(self) -> float:
        return self.adds / self.seconds


class Memory:
    """Three bookies that store entries in a dictionary and answer OK."""

    def __init__(self) -> None:
        self.stored: list[dict[int, bytes | memoryview]] = [{} for _ in range(COPIES)]

    def forget(self) -> None:
        for entries in self.stored:
            entries.clear()


def report(bench: Bench) -> None:
    """Measure the rows of the section."""
    bench.say("measuring the writer core")
    seconds = bench.seconds(2.0)
    bare = Limit(_timed(_bare, seconds).per_second, "bare bookkeeping")
    for name, chunk in (("each answered at once", _one_by_one), (f"{IN_FLIGHT:,} in flight", _pipelined)):
        run = _timed(_with_core(chunk), seconds)
        bench.add(
            SECTION,
            f"adds, Qw=3 Qa=2, 1 KiB, {name}",
            run.per_second,
            "adds/s",
            bare,
            aim=ratio_at_least(AIM_SHARE),
            effects_per_add=run.effects / run.adds,
        )


def _timed(chunk: Callable[[], int], seconds: float) -> CoreRun:
    """Run chunks of adds for some processor time."""
    run = CoreRun()
    begun = time.process_time()
    while run.seconds < seconds:
        run.effects += chunk()
        run.adds += CHUNK
        run.seconds = time.process_time() - begun
    return run


def _with_core(chunk: Callable[[WriterCore, Memory], int]) -> Callable[[], int]:
    core, memory = WriterCore(ledger(), Spares()), Memory()

    def run_chunk() -> int:
        effects = chunk(core, memory)
        assert core.last_add_confirmed == core.last_add_pushed, "every add was confirmed"
        memory.forget()
        return effects

    return run_chunk


def _one_by_one(core: WriterCore, memory: Memory) -> int:
    payload, count = bytes(PAYLOAD_BYTES), 0
    for now in range(CHUNK):
        add = core.add(payload, now)
        count += 1
        for position, _ in add.targets:
            memory.stored[position][add.entry_id] = add.payload
            count += len(core.on_add_answer(add.entry_id, position, add.epoch, Reply.OK, now))
    return count


def _pipelined(core: WriterCore, memory: Memory) -> int:
    """Answer all adds in flight, one bookie after another, as their batches do."""
    payload, answered = bytes(PAYLOAD_BYTES), list[Effect]()
    sent = [core.add(payload, 0) for _ in range(IN_FLIGHT)]
    for position in range(COPIES):
        entries = memory.stored[position]
        for add in sent:
            entries[add.entry_id] = add.payload
            answered += core.on_add_answer(add.entry_id, position, add.epoch, Reply.OK, 0)
    assert any(isinstance(effect, AddsConfirmed) for effect in answered)
    return len(sent) + len(answered)


def _bare() -> int:
    held: dict[int, list[int]] = {}
    for entry_id in range(CHUNK):
        held[entry_id] = [0, 0]
        for position in range(COPIES):
            add = held[entry_id]
            add[0] |= 1 << position
            add[1] = add[0].bit_count()
        del held[entry_id]
    return 0
