"""The bookies that a process knows of, minus those it has reason to avoid, put before a placement policy."""

from __future__ import annotations

import copy
import logging
from collections import deque
from collections.abc import Collection, Iterable, Sequence

from actors.errors import NotEnoughBookiesError
from actors.ledger.limits import QuarantineLimits
from actors.ledger.placement import Placement, Randomness
from heliograph.errors import HeliographError, InvalidConfigError
from metadata.model import BookieRegistration

logger = logging.getLogger(__name__)


class Quarantine:
    """Bookies that fail again and again are left out for a while, if others can take their place."""

    def __init__(self, limits: QuarantineLimits) -> None:
        self._limits = limits
        self._failures: dict[str, deque[int]] = {}
        self._until: dict[str, int] = {}

    def note_failure(self, bookie_id: str, now: int) -> None:
        """Count a failure."""
        limits = self._limits
        times = self._failures.setdefault(bookie_id, deque(maxlen=limits.failures))
        times.append(now)
        if len(times) == limits.failures and now - times[0] <= limits.window_ms:
            self._until[bookie_id] = now + limits.quarantine_ms

    def is_paused(self, bookie_id: str, now: int) -> bool:
        """Whether it failed just now."""
        times = self._failures.get(bookie_id)
        return times is not None and now - times[-1] < self._limits.pause_ms

    def is_quarantined(self, bookie_id: str, now: int) -> bool:
        """Whether it failed so often that others are preferred."""
        return now < self._until.get(bookie_id, now)

    def keep_only(self, bookies: Collection[str]) -> None:
        """Forget all others (I15)."""
        for times in (self._failures, self._until):
            for bookie_id in [b for b in times if b not in bookies]:
                del times[bookie_id]


class BookieChooser:
    """Chooses by a policy among the writable bookies; see ``ensemble.Chooser``."""

    def __init__(self, placement: Placement, random: Randomness, limits: QuarantineLimits | None = None) -> None:
        self._placement = placement
        self._random = random
        self._writable: dict[str, BookieRegistration] = {}
        self._quarantine = Quarantine(limits or QuarantineLimits())

    def set_writable(self, registrations: Iterable[BookieRegistration]) -> None:
        """The bookies registered as writable now."""
        found = {r.bookie_id: r for r in sorted(registrations, key=lambda r: r.bookie_id)}
        self._writable.clear()  # in place: choosers by other policies see it too
        self._writable.update(found)

    def by(self, placement: Placement) -> BookieChooser:
        """A chooser by another policy, among the same bookies and with the same experience of them."""
        other = copy.copy(self)
        other._placement = placement
        return other

    def choose_ensemble(
        self, size: int, write_quorum: int, now: int, excluded: Collection[str] = ()
    ) -> tuple[str, ...]:
        """Bookies for a new ledger, those that failed lately only if there is no other way.

        Raises:
            NotEnoughBookiesError: there are fewer than ``size`` writable bookies.
            InvalidConfigError: the policy broke its contract.
        """
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
            chosen = self._new_ensemble(candidates, size, write_quorum)
        return tuple(chosen)

    def choose_replacements(
        self, ensemble: Sequence[str], failed: Collection[int], now: int, excluded: Collection[str] = ()
    ) -> dict[int, str]:
        """See ``ensemble.Chooser``."""
        chosen: dict[int, str] = {}
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
        return chosen

    def is_available(self, bookie_id: str) -> bool:
        """See ``ensemble.Chooser``."""
        return bookie_id in self._writable

    def note_failure(self, bookie_id: str, now: int) -> None:
        """See ``ensemble.Chooser``."""
        self._quarantine.note_failure(bookie_id, now)
        if len(self._writable) and bookie_id not in self._writable:
            self._quarantine.keep_only(self._writable.keys() | {bookie_id})

    # A user's own policy may be wrong: nothing is done on its word alone.

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
                f"{self._policy} chose {chosen} as an ensemble: it must name different ones of the bookies it is given",
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
        """Without a good answer nobody is replaced: the writer goes on with the bookies that it has."""
        try:
            new = self._placement.replacement(candidates, staying, leaving, self._random)
        except Exception:
            logger.exception("%s failed", self._policy)
            return None
        if new is not None and all(new != candidate.bookie_id for candidate in candidates):
            logger.error("%s chose %r as a replacement: it was not among the candidates", self._policy, new)
            return None
        return new

    @property
    def _policy(self) -> str:
        return f"placement {type(self._placement).__name__}"
