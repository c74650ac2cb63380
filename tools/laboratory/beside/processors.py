"""Messages a second of a processor with a state per key, exactly once, beside Quix Streams on Kafka, one copy each."""

from __future__ import annotations

import statistics
from pathlib import Path

from tests.bench.bench import Bench
from tests.bench.figure import Limit
from tests.bench.process import Child
from tools.laboratory.beside.environment import OURS, measured
from tools.laboratory.foreign import servers
from tools.laboratory.foreign.servers import Unavailable

SECTION = "processors"
MESSAGES, ROUNDS = 200_000, 3
QUIX = "Quix Streams"
PROGRAMS = "tools.laboratory.beside.processor_programs"


def report(bench: Bench) -> None:
    """Measure the rows of the section; Quix Streams is left out where it cannot be run, and why is printed."""
    rates: dict[str, list[float]] = {OURS: [], QUIX: []}
    for number in range(ROUNDS):
        directory = bench.directory / f"processors-{number}"
        directory.mkdir()
        for name, run in ((OURS, _ours), (QUIX, _on_kafka)):
            bench.say(f"measuring a processor of {name}")
            try:
                rates[name].append(run(directory, bench.count(MESSAGES)))
            except Unavailable as why:
                bench.say(f"{name} is skipped: {why}")
    for name, found in rates.items():
        if found:
            ours = Limit(statistics.median(rates[OURS]), OURS)
            bench.add(SECTION, f"sums by key: {name}", statistics.median(found), "msgs/s", ours)


def _ours(directory: Path, count: int) -> float:
    with Child("tools.laboratory.foreign.host", directory / "heliograph") as server:
        return measured(PROGRAMS, "heliograph", server.said(), count)["rate"]


def _on_kafka(directory: Path, count: int) -> float:
    own = directory / "kafka"
    own.mkdir()
    with servers.kafka(own) as server:
        return measured(PROGRAMS, "quix", f"127.0.0.1:{server.port}", count)["rate"]
