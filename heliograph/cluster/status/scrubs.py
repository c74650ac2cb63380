"""How far the scrubs of all bookies are, and what they have found, as the bookies tell it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from heliograph.base.clock import iso_time
from heliograph.base.errors import HeliographError
from heliograph.client import discovery
from heliograph.client.admin.over_http import GatewayCalls
from heliograph.client.identity import Identity
from heliograph.cluster.naming import sort_key

ANSWER_TIMEOUT_SECONDS = 5.0
COLUMNS = ("bookie", "last full pass", "place", "entries/s", "damaged entries", "ledgers marked", "mended")


@dataclass(frozen=True, slots=True)
class ScrubStatus:
    """The scrub of one bookie; counts are of all its passes. ``note`` says why nothing else is known, or is empty.

    Attributes:
        last_pass_ms: when the latest complete pass ended, in milliseconds since the epoch; 0: there was none.
        next_ledger: the running pass has read the ledgers below it; -1: none is under way.
    """

    bookie: str
    last_pass_ms: int = 0
    next_ledger: int = -1
    ledgers_left: int = 0
    entries_per_second: float = 0.0
    passes: int = 0
    damaged_entries: int = 0
    incomplete_ledgers: int = 0
    ledgers_marked: int = 0
    ledgers_mended: int = 0
    note: str = ""

    @property
    def row(self) -> tuple[str, ...]:
        """The cells of a table with COLUMNS."""
        if self.note:
            return self.bookie, self.note, *[""] * (len(COLUMNS) - 2)
        place = f"ledger {self.next_ledger}, {self.ledgers_left} left" if self.next_ledger >= 0 else "no pass runs"
        return (
            self.bookie,
            iso_time(self.last_pass_ms) if self.last_pass_ms else "never",
            place,
            f"{self.entries_per_second:.0f}",
            str(self.damaged_entries),
            str(self.ledgers_marked),
            str(self.ledgers_mended),
        )


def scrubs(namespace: str) -> list[ScrubStatus]:
    """Ask all bookies of a cluster in the Ray that this process has joined; each has 5 s to answer.

    Raises:
        ClusterNotFoundError: there is no Ray.
    """
    import ray
    import ray.exceptions

    from heliograph.cluster.diagnosis import reason

    names = [name for name in discovery.actor_names(namespace) if name.startswith(discovery.BOOKIE_PREFIX)]
    calls = {discovery.actor(name, namespace).statistics.remote(): name for name in names}
    done, late = ray.wait(list(calls), num_returns=len(calls), timeout=ANSWER_TIMEOUT_SECONDS) if calls else ([], [])
    found = [ScrubStatus(calls[call], note=f"no answer in {ANSWER_TIMEOUT_SECONDS:.0f} s") for call in late]
    for call in done:
        try:
            found.append(status_of(calls[call], ray.get(call)))
        except ray.exceptions.RayError as error:
            found.append(ScrubStatus(calls[call], note=reason(error)))
    return sorted(found, key=lambda one: sort_key(one.bookie))


async def scrubs_without_ray(gateway: GatewayCalls) -> list[ScrubStatus]:
    """Ask all bookies by way of the gateway.

    Raises:
        GatewayAwayError: it does not answer.
        HeliographError: the caller is refused.
    """
    identity = Identity.from_environment()

    async def ask(bookie: str) -> ScrubStatus:
        try:
            return status_of(bookie, await gateway.ask_part(bookie, "statistics", [], identity))
        except HeliographError as error:
            return ScrubStatus(bookie, note=str(error))

    names = [name for name in await gateway.parts(identity) if name.startswith(discovery.BOOKIE_PREFIX)]
    return list(await asyncio.gather(*map(ask, sorted(names, key=sort_key))))


def status_of(bookie: str, statistics: dict[str, Any]) -> ScrubStatus:
    """Return the part of a bookie's statistics that is about its scrub."""
    if not statistics:
        return ScrubStatus(bookie, note="it has not started yet")
    return ScrubStatus(
        bookie,
        statistics["scrub_ended_ms"],
        statistics["scrub_next_ledger"],
        statistics["scrub_ledgers_left"],
        statistics["scrub_entries_per_second"],
        statistics["scrub_passes"],
        statistics["scrub_damaged_entries"],
        statistics["scrub_incomplete_ledgers"],
        statistics["scrub_ledgers_marked"],
        statistics["scrub_ledgers_mended"],
    )
