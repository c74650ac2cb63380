"""Which bookies may leave: by one rule for the operator, a decommission and a lost disk."""

from __future__ import annotations

import pytest

from heliograph.base.errors import ConflictError
from heliograph.cluster.operator.departure import require_others
from heliograph.metadata import paths
from heliograph.metadata.backends.memory import MemoryServer, MemoryStore
from heliograph.metadata.codec import encode
from heliograph.metadata.model import VACANCY, BookieRegistration, LedgerMetadata, LedgerState, Segment
from heliograph.metadata.recipes.cluster_init import initialise


async def world(held: str, alive: str) -> MemoryStore:
    """Return a store with one ledger of Qw=3 and Qa=2, and with bookies that serve."""
    store = MemoryServer().open_session()
    await initialise(store)
    for name in alive.split():
        await store.create(paths.bookie_available(name), encode(BookieRegistration(name, f"{name}:1")), parents=True)
    segments = (Segment(0, tuple(held.split())),)
    closed = LedgerMetadata(1, 3, 3, 2, segments, state=LedgerState.CLOSED, last_entry_id=9)
    await store.create(paths.ledger(1), encode(closed), parents=True)
    return store


async def test_a_dead_bookie_beside_a_vacancy_may_leave() -> None:
    store = await world(f"b1 b2 {VACANCY}2", "b1 b3 b4")
    await require_others(store, ["b2"], 3)


async def test_a_dead_bookie_that_may_have_the_last_copy_stays() -> None:
    store = await world("b1 b2 b5", "b1 b3 b4")
    with pytest.raises(ConflictError, match=r"b2 may hold the last copies of entries in 1 ledgers, such as 1"):
        await require_others(store, ["b2"], 3)


async def test_too_few_bookies_are_refused_as_by_a_decommission() -> None:
    store = await world("b1 b2 b3", "b1 b2 b3")
    with pytest.raises(ConflictError, match=r"without b1, 2 writable bookies would be left.*ensemble of 3") as refused:
        await require_others(store, ["b1"], 2)
    assert (refused.value.field, refused.value.limit) == ("count", "at least 3 left")
    assert "keep more bookies, start others first, or lower ensemble_size" in str(refused.value)
