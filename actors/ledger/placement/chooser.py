"""Choice of bookies: a placement policy gets the registered bookies that did not fail lately."""

from __future__ import annotations

import contextlib
import copy
import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence

from typing_extensions import override

from heliograph.actors.errors import NotEnoughBookiesError
from heliograph.actors.ledger.limits import QuarantineLimits
from heliograph.actors.ledger.placement.ensemble import Chooser
from heliograph.actors.ledger.placement.placement import Placement, Randomness
from heliograph.actors.ledger.schedule import vacancy_at
from heliograph.base.errors import HeliographError, InvalidConfigError
from heliograph.metadata.model import BookieRegistration

log = logging.getLogger(__name__)


class Quarantine:
    """Failures by bookie. A bookie that failed often is not chosen for a while if there are others."""

    def __init__(self, limits: QuarantineLimits) -> None:
        self._limits = limits
        self._failures: dict[str, deque[int]] = {}
        self._until: dict[str, int] = {}

    def note_failure(self, bookie_id: str, now: int) -> None:
        limits = self._limits
        times = self._failures.setdefault(bookie_id, deque(maxlen=limits.failures))
        times.append(now)
        if len(times) == limits.failures and now - times[0] <= limits.window_ms:
            self._until[bookie_id] = now + limits.quarantine_ms

    def is_paused(self, bookie_id: str, now: int) -> bool:
        """Whether the bookie failed just now."""
        times = self._failures.get(bookie_id)
        return times is not None and now - times[-1] < self._limits.pause_ms

    def is_quarantined(self, bookie_id: str, now: int) -> bool:
        """Whether the bookie failed so often that others are preferred."""
        return now < self._until.get(bookie_id, now)

    def failed_since(self, since: int) -> set[str]:
        """Return the bookies that failed at ``since`` or later."""
        return {bookie_id for bookie_id, times in self._failures.items() if times[-1] >= since}

    def keep_only(self, bookies: Collection[str]) -> None:
        """Forget all bookies but these (I15)."""
        for times in (self._failures, self._until):
            for bookie_id in [b for b in times if b not in bookies]:
                del times[bookie_id]


class BookieChooser(Chooser):
    """Chooser that asks a placement policy to pick among the writable bookies."""

    def __init__(
        self,
        placement: Placement,
        random: Randomness,
        limits: QuarantineLimits | None = None,
        can_store: Callable[[], bool] = lambda: True,
    ) -> None:
        """
        Args:
            can_store: whether metadata could name a replacement now.
        """
        self._can_store = can_store
        self._placement = placement
        self._random = random
        self._writable: dict[str, BookieRegistration] = {}
        self._quarantine = Quarantine(limits or QuarantineLimits())

    def set_writable(self, registrations: Iterable[BookieRegistration]) -> None:
        """Set the bookies that are registered as writable now."""
        found = {r.bookie_id: r for r in sorted(registrations, key=lambda r: r.bookie_id)}
        self._writable.clear()  # in place: the choosers of other policies share it
        self._writable.update(found)

    def by(self, placement: Placement) -> BookieChooser:
        """Return a chooser with another policy that shares the bookies and their failures."""
        other = copy.copy(self)
        other._placement = placement
        return other

    def choose_ensemble(
        self,
        size: int,
        write_quorum: int,
        now: int,
        excluded: Collection[str] = (),
        least: int | None = None,
    ) -> tuple[str, ...]:
        """Return bookies for a new ledger; bookies that failed lately only if there are too few others.

        Args:
            least: how many bookies are enough, at least Qa; None: ``size``. With fewer than ``size`` the ensemble is
                smaller, and with fewer than ``write_quorum`` it has vacancies in their place (I20).

        Raises:
            NotEnoughBookiesError: there are fewer than ``least`` writable bookies.
            InvalidConfigError: the policy broke its contract.
        """
        assert least is None or 1 <= least <= size, "an ensemble may be smaller than was asked for"
        candidates = [r for r in self._writable.values() if r.bookie_id not in excluded]
        well = [
            r
            for r in candidates
            if not self._quarantine.is_paused(r.bookie_id, now)
            and not self._quarantine.is_quarantined(r.bookie_id, now)
        ]
        try:
            chosen = self._new_ensemble(well, size, write_quorum)
        except NotEnoughBookiesError:
            chosen = self._largest_ensemble(candidates, size, write_quorum, size if least is None else least)
        assert self._writable.keys() >= set(chosen), "only a writable bookie is chosen"
        return (*chosen, *map(vacancy_at, range(len(chosen), write_quorum)))

    @override
    def choose_replacements(
        self, ensemble: Sequence[str], failed: Collection[int], now: int, excluded: Collection[str] = ()
    ) -> dict[int, str]:
        chosen: dict[int, str] = {}
        if not self._can_store():  # a writer goes on with the bookies that are left
            return chosen
        staying = [self._writable[b] for p, b in enumerate(ensemble) if p not in failed and b in self._writable]
        for position in failed:
            taken = {*ensemble, *chosen.values(), *excluded}
            candidates = [
                r for b, r in self._writable.items() if b not in taken and not self._quarantine.is_paused(b, now)
            ]
            well = [r for r in candidates if not self._quarantine.is_quarantined(r.bookie_id, now)]
            leaving = self._writable.get(ensemble[position])
            new = self._replacement(well or candidates, staying, leaving)
            if new is not None:
                chosen[position] = new
                staying.append(self._writable[new])
        assert not {*ensemble, *excluded}.intersection(chosen.values()), "a replacement is new to the ensemble"
        assert len(set(chosen.values())) == len(chosen), "a bookie replaces one other"
        return chosen

    @override
    def is_available(self, bookie_id: str) -> bool:
        return bookie_id in self._writable

    def failed_since(self, since: int) -> set[str]:
        """Return the bookies that failed a request at ``since`` or later, in ms on the clock of ``now``."""
        return self._quarantine.failed_since(since)

    @override
    def note_failure(self, bookie_id: str, now: int) -> None:
        self._quarantine.note_failure(bookie_id, now)
        if len(self._writable) and bookie_id not in self._writable:
            self._quarantine.keep_only(self._writable.keys() | {bookie_id})

    # -- policies, which may be a user's and wrong: their results are checked

    def _largest_ensemble(
        self, candidates: Sequence[BookieRegistration], size: int, write_quorum: int, least: int
    ) -> list[str]:
        for smaller in range(max(least, min(size, len(candidates))), least, -1):
            with contextlib.suppress(NotEnoughBookiesError):
                return self._new_ensemble(candidates, smaller, min(smaller, write_quorum))
        return self._new_ensemble(candidates, least, min(least, write_quorum))

    def _new_ensemble(self, candidates: Sequence[BookieRegistration], size: int, write_quorum: int) -> list[str]:
        try:
            chosen = list(self._placement.new_ensemble(candidates, size, write_quorum, self._random))
        except HeliographError:
            raise
        except Exception as error:
            raise InvalidConfigError(f"{self._policy} failed: {error!r}", field="placement") from error
        names = {candidate.bookie_id for candidate in candidates}
        if len(chosen) != size or len(set(chosen)) != size or not names.issuperset(chosen):
            raise InvalidConfigError(
                f"{self._policy} chose {chosen} as an ensemble: it must name different bookies of those it is given",
                field="placement",
                limit=f"exactly {size} bookies",
            )
        return chosen

    def _replacement(
        self,
        candidates: Sequence[BookieRegistration],
        staying: Sequence[BookieRegistration],
        leaving: BookieRegistration | None,
    ) -> str | None:
        """Return the policy's choice, or None if it is not valid: the writer then keeps the bookies it has."""
        try:
            new = self._placement.replacement(candidates, staying, leaving, self._random)
        except Exception:
            log.exception("%s failed", self._policy)
            return None
        if new is not None and all(new != candidate.bookie_id for candidate in candidates):
            log.error("%s chose %r as a replacement: it was not among the candidates", self._policy, new)
            return None
        return new

    @property
    def _policy(self) -> str:
        return f"placement {type(self._placement).__name__}"
