"""Hot topics spread over the brokers of a machine with many cores: a model of such machines, and the leader's rules.

A broker is one event loop, so it has a core at most: what its topics ask for beyond that waits, and its report says 1.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from itertools import pairwise

import pytest

from heliograph.actors.broker.balance.load_balancer import LoadBalancer, Move, is_too_large
from heliograph.actors.broker.config import BalanceLimits, SplitLimits
from heliograph.actors.broker.namespaces.bundles import RING, bundles_for
from heliograph.metadata.model import BrokerLoad, BundleLoad

SECONDS_PER_MESSAGE = 1 / 80_000  # of a broker's core, by docs/operations/capacity.md
MESSAGE_BYTES = 1_024
ROUND_SECONDS = 60.0
LIMITS, SPLITS = BalanceLimits(), SplitLimits()


class Machine:
    """Brokers on a machine with a core for each, and topics at places of the ring that ask for messages a second."""

    def __init__(self, brokers: int, topics: dict[int, float]) -> None:
        self.topics = topics
        self.brokers = [f"broker-{number}" for number in range(1, brokers + 1)]
        count = bundles_for(brokers)
        self.cuts = [RING * number // count for number in range(count + 1)]
        self._at: list[int] = []
        self._bundles: dict[str, list[float]] = {}  # at the cuts ``_at``
        self.owner: dict[str, str] = {}
        self.balancer = LoadBalancer(LIMITS)
        self.now = 0.0

    def bundles(self) -> dict[str, list[float]]:
        """Return what the topics of each bundle ask for."""
        if self._at != self.cuts:
            self._at = self.cuts
            rates: list[list[float]] = [[] for _ in self.cuts[1:]]
            for place, rate in self.topics.items():
                rates[bisect_right(self.cuts, place) - 1].append(rate)
            names = (f"{first:08x}_{end:08x}" for first, end in pairwise(self.cuts))
            self._bundles = dict(zip(names, rates, strict=True))
        return self._bundles

    def reports(self) -> dict[str, BrokerLoad]:
        """Return what each broker reports: what it serves is what its core permits."""
        found = {}
        for name in self.brokers:
            asked = {path: rates for path, rates in self.bundles().items() if self.owner.get(path) == name}
            cores = sum(map(sum, asked.values())) * SECONDS_PER_MESSAGE
            served = min(1.0, 1 / cores) if cores else 1.0
            rows = sorted(
                (BundleLoad(path, len(rates), sum(rates) * served, sum(rates) * served * MESSAGE_BYTES)
                for path, rates in asked.items()),
                key=lambda row: (-row.bytes_per_second, row.path),
            )  # fmt: skip
            messages = sum(row.messages_per_second for row in rows)
            found[name] = BrokerLoad(
                name, 0, min(1.0, cores), 0.01, messages, 0.0, messages * MESSAGE_BYTES, 0.0, 0, len(rows), tuple(rows)
            )
        return found

    def round(self) -> list[Move]:
        """Let owners be found, brokers split what is too large, and the leader move bundles."""
        reports = self.reports()
        for path in self.bundles():
            if path not in self.owner:
                chosen = self.balancer.assign(path, self.brokers, reports)
                assert chosen is not None
                self.owner[path] = chosen
        for row in [row for report in self.reports().values() for row in report.bundles]:
            if is_too_large(row, SPLITS) and len(self.cuts) <= SPLITS.bundles_max:
                self._split(row.path)
        moves = self.balancer.round(self.reports(), self.brokers, self.now)
        for move in moves:
            self.owner[move.path] = move.receiver
        self.now += ROUND_SECONDS
        return moves

    def _split(self, path: str) -> None:
        first, end = (int(part, 16) for part in path.split("_"))
        middle = (first + end) // 2
        self.cuts = sorted({*self.cuts, middle})
        owner = self.owner.pop(path)
        self.owner |= {f"{first:08x}_{middle:08x}": owner, f"{middle:08x}_{end:08x}": owner}

    def served(self) -> float:
        """Return the share of what is asked for that is served."""
        served = sum(row.messages_per_second for report in self.reports().values() for row in report.bundles)
        return served / sum(self.topics.values())


def hot(number: int, total: float, seed: int) -> dict[int, float]:
    """Return topics by their places, of which the first asks for most (Zipf), for ``total`` messages a second."""
    places = random.Random(seed).sample(range(RING), number)
    weights = [1 / rank for rank in range(1, number + 1)]
    return {place: total * weight / sum(weights) for place, weight in zip(places, weights, strict=True)}


@pytest.mark.parametrize("brokers", [2, 4, 8, 16])
@pytest.mark.parametrize("seed", range(5))
def test_hot_topics_spread_over_the_brokers_and_come_to_rest(brokers: int, seed: int) -> None:
    capacity = brokers / SECONDS_PER_MESSAGE
    machine = Machine(brokers, hot(number=40 * brokers, total=0.5 * capacity, seed=seed))
    for _ in range(20):
        machine.round()
    assert machine.served() >= 0.95 * _possible(machine), {
        name: report.cpu_share for name, report in machine.reports().items()
    }
    assert not [move for _ in range(5) for move in machine.round()], "they do not move for ever"


def test_all_bundles_of_one_broker_spread_after_the_others_joined() -> None:
    machine = Machine(16, hot(number=640, total=0.5 * 16 / SECONDS_PER_MESSAGE, seed=1))
    machine.owner = dict.fromkeys(machine.bundles(), "broker-1")
    for _ in range(20):
        machine.round()
    assert machine.served() >= 0.9 * _possible(machine)


def _possible(machine: Machine) -> float:
    """Return the share that can be served: of one topic, a core's worth at most, because it has one broker."""
    rates = machine.topics.values()
    return sum(min(rate, 1 / SECONDS_PER_MESSAGE) for rate in rates) / sum(rates)
