"""The rules of the leader: the broker for a bundle without an owner, and the bundles that leave a busy broker (pure).

The *load* of a broker is the largest of four shares: processor, memory, and its messages and bytes as shares of the
limits. Shedding has hysteresis. A broker sheds only after several rounds far above the average, until it is close to
the average, and a few bundles a round at most; a bundle that moved stays where it is for a while. No move makes its
receiver busier than its giver, so bundles do not go back and forth.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from heliograph.actors.broker.config import BalanceLimits, SplitLimits
from heliograph.actors.broker.namespaces.bundles import candidate
from heliograph.metadata.model import BrokerLoad, BundleLoad

LOAD_STEP = 0.1  # loads that differ by less count as the same when a bundle is assigned
FRESH_LOAD = 0.02  # expected of a bundle that no report has yet: a burst of them does not go to one broker
ASSIGNMENTS_MAX = 10_000  # kept until the next round
MOVES_MAX = 10_000  # kept so that no bundle moves twice in a short time


@dataclass(frozen=True, slots=True)
class Move:
    """A bundle, the broker that it leaves and the broker that it goes to."""

    path: str
    giver: str
    receiver: str


def load_of(report: BrokerLoad, limits: BalanceLimits) -> float:
    """Return the load of a broker: 0 is idle, 1 is its limit."""
    return max(
        report.cpu_share,
        report.memory_share,
        (report.messages_in_per_second + report.messages_out_per_second) / limits.messages_per_second,
        (report.bytes_in_per_second + report.bytes_out_per_second) / limits.bytes_per_second,
    )


class LoadBalancer:
    """The decisions of the leader, with its latest assignments and moves."""

    def __init__(self, limits: BalanceLimits | None = None) -> None:
        self.limits = limits or BalanceLimits()
        self._assigned: dict[str, str] = {}  # bundle -> broker, since the last round
        self._busy_rounds: dict[str, int] = {}  # broker -> rounds in a row in which it was too busy
        self._moved: dict[str, float] = {}  # bundle -> time of its last move

    def assign(self, path: str, willing: Iterable[str], reports: Mapping[str, BrokerLoad]) -> str | None:
        """Choose the broker that should own a bundle: the least loaded, among equals the one with the fewest bundles.

        Args:
            willing: the brokers that may be chosen.
            reports: by broker; a broker without a report counts as idle.
        """
        names = list(willing)
        planned = self._assigned.get(path)
        if planned in names:
            return planned
        if not names:
            return None
        keys = {name: self._key(name, reports.get(name)) for name in names}
        least = min(keys.values())
        chosen = candidate(path, [name for name in names if keys[name] == least])
        assert chosen in keys, "the choice is among the willing brokers"
        if chosen is not None and len(self._assigned) < ASSIGNMENTS_MAX:
            self._assigned[path] = chosen
        return chosen

    def round(self, reports: Mapping[str, BrokerLoad], willing: Iterable[str], now: float) -> list[Move]:
        """Return the moves to make by new reports, at most ``moves_max``.

        Args:
            reports: of the live brokers.
            willing: the brokers that may be given bundles.
            now: seconds of a monotonic clock.
        """
        self._assigned.clear()
        limits = self.limits
        self._moved = {path: at for path, at in self._moved.items() if now - at < limits.rest_seconds}
        loads = {name: load_of(report, limits) for name, report in reports.items()}
        if len(loads) < 2:
            self._busy_rounds.clear()
            return []
        average = sum(loads.values()) / len(loads)
        busy = {
            name
            for name, load in loads.items()
            if load > average + limits.shed_gap and load > limits.shed_load_min and reports[name].bundles_owned > 1
        }
        self._busy_rounds = {name: self._busy_rounds.get(name, 0) + 1 for name in busy}
        moves: list[Move] = []
        receivers = [name for name in willing if name in loads]
        for giver in sorted(busy, key=lambda name: (-loads[name], name)):
            if self._busy_rounds[giver] >= limits.rounds:
                moves += self._shed(reports[giver], loads, receivers, average, limits.moves_max - len(moves))
        assert len(moves) <= limits.moves_max, "a round has a bound"
        for move in moves:
            # What the next round finds may have been measured before the move: the giver sheds in the second at first.
            self._busy_rounds[move.giver] = limits.rounds - 2
            self._assigned[move.path] = move.receiver
            if len(self._moved) < MOVES_MAX:
                self._moved[move.path] = now
        return moves

    def forget(self, move: Move) -> None:
        """Forget the receiver of a move that was not made, so that its bundle is assigned as any other."""
        if self._assigned.get(move.path) == move.receiver:
            del self._assigned[move.path]

    def _key(self, name: str, report: BrokerLoad | None) -> tuple[int, int]:
        fresh = sum(1 for owner in self._assigned.values() if owner == name)
        load, owned = (0.0, 0) if report is None else (load_of(report, self.limits), report.bundles_owned)
        return int((load + fresh * FRESH_LOAD) / LOAD_STEP), owned + fresh

    def _shed(
        self,
        report: BrokerLoad,
        loads: dict[str, float],
        receivers: Sequence[str],
        average: float,
        moves_max: int,
    ) -> list[Move]:
        """Return the moves away from one broker, and change ``loads`` to the expected loads after them."""
        giver = report.broker_id
        moves: list[Move] = []
        for bundle, share in _shares(report, loads[giver]):
            if len(moves) >= moves_max or loads[giver] <= average + self.limits.settle_gap:
                break
            others = [name for name in receivers if name != giver]
            if bundle.path in self._moved or not others:
                continue
            receiver = min(others, key=lambda name: (loads[name], name))
            if loads[receiver] + share > loads[giver] - share:  # the receiver would become the busier one
                continue
            loads[giver] -= share
            loads[receiver] += share
            assert receiver != giver, "a move changes the broker"
            assert loads[receiver] <= loads[giver], "no move makes its receiver busier than its giver"
            moves.append(Move(bundle.path, giver, receiver))
        return moves


def _shares(report: BrokerLoad, load: float) -> list[tuple[BundleLoad, float]]:
    """Return the bundles with traffic, busiest first, each with its part of the broker's load."""
    total = sum(bundle.bytes_per_second for bundle in report.bundles)
    if total <= 0:
        return []
    busiest = sorted(report.bundles, key=lambda bundle: (-bundle.bytes_per_second, bundle.path))
    return [(bundle, load * bundle.bytes_per_second / total) for bundle in busiest if bundle.bytes_per_second > 0]


def is_stuck(report: BrokerLoad, bundle: BundleLoad, limits: BalanceLimits) -> bool:
    """Return whether a bundle of several topics is half or more of a busy broker's load.

    No other broker can take it as a whole, so it is split, and the leader moves a half.
    """
    if bundle.topics < 2 or bundle.bytes_per_second == 0 or bundle != report.bundles[0]:  # the busiest one
        return False
    is_most = 2 * bundle.bytes_per_second >= sum(one.bytes_per_second for one in report.bundles)
    return is_most and load_of(report, limits) > limits.shed_load_min


def is_too_large(bundle: BundleLoad, limits: SplitLimits) -> bool:
    """Return whether a bundle should be split. One with a single topic is not: one half would be as large as before."""
    if bundle.topics < 2:
        return False
    return (
        0 < limits.topics < bundle.topics
        or 0 < limits.messages_per_second < bundle.messages_per_second
        or 0 < limits.bytes_per_second < bundle.bytes_per_second
    )


def is_worth_writing(old: BrokerLoad | None, new: BrokerLoad, limits: BalanceLimits, change: float) -> bool:
    """Return whether a report has news: other bundles, or a load that differs by at least ``change``."""
    if old is None or old.bundles_owned != new.bundles_owned:
        return True
    if {bundle.path for bundle in old.bundles} != {bundle.path for bundle in new.bundles}:
        return True
    return abs(load_of(old, limits) - load_of(new, limits)) >= change
