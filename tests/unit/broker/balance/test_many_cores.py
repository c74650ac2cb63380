"""Hot topics spread over the brokers of a machine with many cores: a model of such machines, and the leader's rules.

A broker is one event loop, so it has a core at most: what its topics ask for beyond that waits, and its report says 1.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from itertools import pairwise

import pytest

from heliograph.actors.broker.balance.load_balancer import LoadBalancer, Move, is_stuck, is_too_large
from heliograph.actors.broker.config import BalanceLimits, BrokerConfig, SplitLimits
from heliograph.actors.broker.namespaces.bundles import RING, bundles_for
from heliograph.metadata.model import BrokerLoad, BundleLoad

SECONDS_PER_MESSAGE = 1 / 80_000  # of a broker's core, by docs/operations/capacity.md
MESSAGE_BYTES = 1_024
CONFIG = BrokerConfig("broker", actor_name="broker")
ROUND_SECONDS = CONFIG.balance_seconds
MINUTE_ROUNDS = int((60 - CONFIG.load_report_seconds) // ROUND_SECONDS)  # the first report tells of growth that late
SPREAD_MOST = 0.3  # of a core between two brokers: a bundle moves as a whole
LIMITS, SPLITS = BalanceLimits(), SplitLimits()


class Machine:
    """Brokers on a machine with a core for each, and topics at places of the ring that ask for messages a second."""

    def __init__(
        self, brokers: int, topics: dict[int, float], seconds_per_message: float = SECONDS_PER_MESSAGE
    ) -> None:
        self.topics = topics
        self._seconds_per_message = seconds_per_message
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
            cores = sum(map(sum, asked.values())) * self._seconds_per_message
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
        for report, row in [(told, row) for told in self.reports().values() for row in told.bundles]:
            is_split = is_too_large(row, SPLITS) or is_stuck(report, row, LIMITS)
            if is_split and len(self.cuts) <= SPLITS.bundles_max:
                self._split(row.path)
        moves = self.balancer.round(self.reports(), self.brokers, self.now)
        for move in moves:
            self.owner[move.path] = move.receiver
        self.now += ROUND_SECONDS
        return moves

    def _split(self, path: str) -> None:
        first, end = (int(part, 16) for part in path.split("_"))
        places = sorted(place for place in self.topics if first <= place < end)
        middle = places[len(places) // 2]  # as ``bundles.middle`` has it
        self.cuts = sorted({*self.cuts, middle})
        owner = self.owner.pop(path)
        self.owner |= {f"{first:08x}_{middle:08x}": owner, f"{middle:08x}_{end:08x}": owner}

    def grow(self, broker: str, to: float) -> None:
        """Let the topics of one broker ask for ``to`` messages a second together, each for as many."""
        mine = [tuple(int(part, 16) for part in path.split("_")) for path, at in self.owner.items() if at == broker]
        grown = [place for place in self.topics if any(first <= place < end for first, end in mine)]
        self.topics |= dict.fromkeys(grown, to / len(grown))
        self._at = []

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


@pytest.mark.parametrize("seed", range(5))
def test_a_broker_that_comes_has_its_share_within_a_minute(seed: int) -> None:
    machine = Machine(2, hot(number=40, total=0.9 / SECONDS_PER_MESSAGE, seed=seed))
    machine.owner = dict.fromkeys(machine.bundles(), "broker-1")
    for _ in range(MINUTE_ROUNDS):
        machine.round()
    assert _spread(machine) <= SPREAD_MOST


@pytest.mark.parametrize("seed", range(5))
def test_load_that_grows_on_one_broker_is_spread_within_a_minute(seed: int) -> None:
    machine = Machine(2, hot(number=40, total=0.2 / SECONDS_PER_MESSAGE, seed=seed))
    for _ in range(10):
        machine.round()
    machine.grow("broker-1", to=0.9 / SECONDS_PER_MESSAGE)
    before = _spread(machine)
    for _ in range(MINUTE_ROUNDS):
        machine.round()
    assert _spread(machine) <= SPREAD_MOST < before


@pytest.mark.parametrize("brokers", [2, 4])
def test_partitions_in_one_bundle_are_served_by_all_brokers_within_a_minute(brokers: int) -> None:
    costly = 1 / 5_000  # seconds a message, so that the broker is busy long before its bundle counts as large
    asked = {RING // 2 + number: 0.3 / costly for number in range(2 * brokers)}
    machine = Machine(brokers, asked, costly)
    for _ in range(MINUTE_ROUNDS):
        machine.round()
    assert {owner for path, owner in machine.owner.items() if machine.bundles()[path]} == set(machine.brokers)
    assert machine.served() == 1.0


def _spread(machine: Machine) -> float:
    loads = [report.cpu_share for report in machine.reports().values()]
    return max(loads) - min(loads)


def _possible(machine: Machine) -> float:
    """Return the share that can be served: of one topic, a core's worth at most, because it has one broker."""
    rates = machine.topics.values()
    return sum(min(rate, 1 / SECONDS_PER_MESSAGE) for rate in rates) / sum(rates)
