"""One sentence about bookies that take no entries, for refusals, logs and ``helio status``. No I/O."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from heliograph.base.errors import STORAGE_FULL, TOO_FEW_BOOKIES, StorageFullError, TooFewBookiesError
from heliograph.metadata.model import BookieRegistration

NAMED_MAX = 10  # bookies that a sentence names


def states_of(
    usable: Collection[str],
    writable: Collection[str],
    readonly: Mapping[str, BookieRegistration],
    known: Collection[str],
) -> str:
    """Return the states of all bookies that take no entries, such as "bookie-2 is down, bookie-3 is full (97% used)".

    Args:
        usable: bookies that take entries.
        writable, readonly: bookies that are registered so.
        known: the bookies of the cluster, registered now or not.
    """
    states = {}
    for bookie_id in sorted({*known, *readonly, *writable}.difference(usable)):
        found = readonly.get(bookie_id)
        if found is None:
            states[bookie_id] = "does not answer" if bookie_id in writable else "is down"
        else:
            states[bookie_id] = f"is full ({found.used_share:.0%} used)" if found.is_full else "is read-only"
    named = ", ".join(f"{bookie_id} {states[bookie_id]}" for bookie_id in list(states)[:NAMED_MAX])
    more = f" and {len(states) - NAMED_MAX} more" if len(states) > NAMED_MAX else ""
    return f"{named or 'no other is known'}{more}"


def taking_entries(bookies: int) -> str:
    """Return how many bookies take entries, as a clause."""
    return "1 bookie takes entries" if bookies == 1 else f"{bookies} bookies take entries"


def shortage(
    copies: int,
    usable: Collection[str],
    writable: Collection[str],
    readonly: Mapping[str, BookieRegistration],
    known: Collection[str],
) -> TooFewBookiesError:
    """Return the error for a lack of bookies that take entries. It names all others, and the way out.

    Args:
        copies: how many bookies are required. The other arguments are as of ``states_of``.
    """
    states = states_of(usable, writable, readonly, known)
    text = f"{copies} copies are required, {taking_entries(len(usable))}; {states}"
    full = sum(one.is_full for one in readonly.values())
    if full and len(usable) + full >= copies:
        return StorageFullError(f"{STORAGE_FULL}: {text}. To go on, free space on their disks, or add bookies")
    way_out = "start them, replace a lost disk (helio bookies replace), or add bookies"
    return TooFewBookiesError(f"{TOO_FEW_BOOKIES}: {text}. To go on, {way_out}")
