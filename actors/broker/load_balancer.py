"""Which broker gets a bundle that nobody owns, and which bundles leave a broker that is too busy (pure).

A broker's *load* is its scarcest resource: the largest of its shares of processor and memory, and of what it lets
through as a share of the limits. Shedding has hysteresis: a broker has to be far above the average for several rounds
before it gives anything away, gives away until it is close to the average, no more than a few bundles a round, and a
bundle that moved stays where it is for a while. No move makes the receiver busier than the giver is left, so nothing
goes back and forth.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from actors.broker.bundles import candidate
from metadata.model import BrokerLoad, BundleLoad

LOAD_STEP = 0.1  # loads that differ by less count as the same when a bundle is assigned
ASSIGNMENTS_MAX = 10_000  # remembered until the next reports
MOVES_MAX = 10_000  # remembered so that no bundle moves twice in short time


@dataclass(frozen=True, slots=True)
class BalanceLimits:
    """When to shed, and how much.

    Args:
        messages_per_second: in and out together, that count as a load of 1.
        bytes_per_second: likewise.
        shed_load_min: a broker below it never sheds.
        shed_gap: above the average of all brokers, before shedding begins.
        settle_gap: above the average, at which it ends; below ``shed_gap``.
        rounds: in a row that a broker has to be above before it sheds.
        moves_max: bundles in one round, over all brokers.
        rest_seconds: that a bundle stays where it was moved to.
    """

    messages_per_second: float = 200_000.0
    bytes_per_second: float = 500e6
    shed_load_min: float = 0.5
    shed_gap: float = 0.25
    settle_gap: float = 0.1
    rounds: int = 3
    moves_max: int = 4
    rest_seconds: float = 600.0


@dataclass(frozen=True, slots=True)
class Move:
    """A bundle and the brokers that it leaves and goes to."""

    path: str
    giver: str
    receiver: str


def load_of(report: BrokerLoad, limits: BalanceLimits) -> float:
    """The broker's load: 0 is idle, 1 as much as it should bear."""
    return max(
        report.cpu_share,
        report.memory_share,
        (report.messages_in_per_second + report.messages_out_per_second) / limits.messages_per_second,
        (report.bytes_in_per_second + report.bytes_out_per_second) / limits.bytes_per_second,
    )


class LoadBalancer:
    """The leader's memory: what it has assigned and moved lately.

    Args:
        limits: see there.
    """

    def __init__(self, limits: BalanceLimits | None = None) -> None:
        self.limits = limits or BalanceLimits()
        self._assigned: dict[str, str] = {}  # since the last reports: bundle to broker
        self._busy_rounds: dict[str, int] = {}
        self._moved: dict[str, float] = {}  # bundle to the time of its last move

    def assign(self, path: str, willing: Iterable[str], reports: Mapping[str, BrokerLoad]) -> str | None:
        """The broker that should own a free bundle: the least loaded, among equals the one with the fewest bundles.

        Args:
            willing: the brokers that may be chosen.
            reports: by broker; one without a report counts as idle.
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
        if chosen is not None and len(self._assigned) < ASSIGNMENTS_MAX:
            self._assigned[path] = chosen
        return chosen

    def round(self, reports: Mapping[str, BrokerLoad], willing: Iterable[str], now: float) -> list[Move]:
        """One look at new reports: the moves to make, at most ``moves_max``.

        Args:
            reports: of the live brokers.
            willing: those of them that may be given bundles.
            now: seconds of a clock that only goes forward.
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
        for move in moves:
            self._assigned[move.path] = move.receiver
            if len(self._moved) < MOVES_MAX:
                self._moved[move.path] = now
        return moves

    def forget(self, move: Move) -> None:
        """A move was not made: its bundle goes to whom it would otherwise."""
        if self._assigned.get(move.path) == move.receiver:
            del self._assigned[move.path]

    def _key(self, name: str, report: BrokerLoad | None) -> tuple[int, int]:
        fresh = sum(1 for owner in self._assigned.values() if owner == name)
        if report is None:
            return 0, fresh
        return int(load_of(report, self.limits) / LOAD_STEP), report.bundles_owned + fresh

    def _shed(
        self,
        report: BrokerLoad,
        loads: dict[str, float],
        receivers: Sequence[str],
        average: float,
        moves_max: int,
    ) -> list[Move]:
        """Moves away from one broker; ``loads`` is changed to what is expected after them."""
        giver = report.broker_id
        moves: list[Move] = []
        for bundle, share in _shares(report, loads[giver]):
            if len(moves) >= moves_max or loads[giver] <= average + self.limits.settle_gap:
                break
            others = [name for name in receivers if name != giver]
            if bundle.path in self._moved or not others:
                continue
            receiver = min(others, key=lambda name: (loads[name], name))
            if loads[receiver] + share > loads[giver] - share:  # it would be the busier one then
                continue
            loads[giver] -= share
            loads[receiver] += share
            moves.append(Move(bundle.path, giver, receiver))
        return moves


def _shares(report: BrokerLoad, load: float) -> list[tuple[BundleLoad, float]]:
    """The bundles with traffic, busiest first, and what of the broker's load each stands for."""
    total = sum(bundle.bytes_per_second for bundle in report.bundles)
    if total <= 0:
        return []
    busiest = sorted(report.bundles, key=lambda bundle: (-bundle.bytes_per_second, bundle.path))
    return [(bundle, load * bundle.bytes_per_second / total) for bundle in busiest if bundle.bytes_per_second > 0]


@dataclass(frozen=True, slots=True)
class SplitLimits:
    """When a broker splits one of its bundles; a limit of 0 counts for nothing.

    Args:
        topics: loaded in the bundle.
        messages_per_second: in and out together.
        bytes_per_second: in and out together.
        bundles_max: of a namespace, from which on nothing is split by itself.
    """

    topics: int = 1_000
    messages_per_second: float = 30_000.0
    bytes_per_second: float = 100e6
    bundles_max: int = 128


def is_too_large(bundle: BundleLoad, limits: SplitLimits) -> bool:
    """Whether a bundle should be split: two topics at least, or both halves would be what it was."""
    if bundle.topics < 2:
        return False
    return (
        0 < limits.topics < bundle.topics
        or 0 < limits.messages_per_second < bundle.messages_per_second
        or 0 < limits.bytes_per_second < bundle.bytes_per_second
    )


def is_worth_writing(old: BrokerLoad | None, new: BrokerLoad, limits: BalanceLimits, change: float) -> bool:
    """Whether a report tells something new: another set of bundles, or a load that moved by ``change``."""
    if old is None or old.bundles_owned != new.bundles_owned:
        return True
    if {bundle.path for bundle in old.bundles} != {bundle.path for bundle in new.bundles}:
        return True
    return abs(load_of(old, limits) - load_of(new, limits)) >= change
