"""Small sabotages of adds in ranges: what a run names, and what its hearer makes of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from unittest.mock import patch

from heliograph.actors.ledger.effects import AddRequest
from heliograph.actors.ledger.pipeline import AddPipeline
from heliograph.actors.wire import ranges
from tests.simulation.cluster.ranges import AddRanges, Item
from tests.simulation.mutants.mutant import changed, edit, mutant

PENDING = "heliograph.actors.wire.ranges:PendingAdds"


def run_over_gaps(request_ids: Iterable[int]) -> list[tuple[int, int]]:
    """Return one run from the first id to the last, whatever is missing between them."""
    ids = list(request_ids)
    return [(min(ids), max(ids))]


@mutant(start=3)
def count_a_refused_entry_in_a_run() -> Iterator[None]:
    """A refused entry between two stored ones is answered as stored (I1)."""
    with patch.object(ranges, "runs_of", run_over_gaps):
        yield


@mutant(start=1)
def answer_a_range_after_its_first_entry() -> Iterator[None]:
    """A whole frame is answered as stored when the first of its entries is (I1)."""

    def arrive(self: AddRanges, frame: list[Item]) -> None:
        last_of[frame[0][0]] = frame[-1][0]
        real(self, frame[:1])
        if frame[1:]:
            self._world.after(200, lambda: real(self, frame[1:]), self._bookie)

    def tell_run(self: AddRanges, first: int, last: int) -> None:
        real_tell(self, first, max(last, last_of.get(first, last)))

    last_of: dict[int, int] = {}  # the last id of a frame by its first
    real, real_tell = AddRanges._arrive, AddRanges._tell_run
    with patch.object(AddRanges, "_arrive", arrive), patch.object(AddRanges, "_tell_run", tell_run):
        yield


@changed(AddRanges, "_arrive", start=5)
def hear_a_run_before_the_sync(real: Callable[..., None], self: AddRanges, frame: list[Item]) -> None:
    """The entries of a frame are answered as stored when they come, before they are durable (I1)."""
    real(self, frame)
    if len(frame) > 1:
        self._tell_run(frame[0][0], frame[-1][0])


@changed(AddPipeline, "on_acks", start=1)
def take_a_run_for_all_before_it(
    real: Callable[..., bool], self: AddPipeline, bookie_id: str, requests: Iterable[AddRequest]
) -> bool:
    """The acknowledgement of an entry counts for every earlier one of that bookie (I1)."""
    before = [
        (entry_id, epoch, positions)
        for last, epoch, positions in requests
        for entry_id in self.held
        if entry_id <= last
    ]
    return real(self, bookie_id, before)


@changed(AddPipeline, "on_acks", start=5)
def take_an_old_run_for_a_new_bookie(
    real: Callable[..., bool], self: AddPipeline, bookie_id: str, requests: Iterable[AddRequest]
) -> bool:
    """A run that the bookie before answered counts for the one that replaced it (I1)."""
    return real(self, bookie_id, [(entry_id, self.epoch, positions) for entry_id, _, positions in requests])


@edit(f"{PENDING}.take_run", "sent is None or sent.last != last", "sent is None")
def answer_a_shared_frame_by_its_first_part() -> None:
    """The answer for the first part of a frame acknowledges all of it (I1)."""


@edit(f"{PENDING}.take_expired", "self.in_ranges -= sent.count", "pass")
def count_an_expired_frame_for_ever() -> None:
    """The adds of a frame that expired stay counted, until the connection takes no more (I15)."""


@edit(f"{PENDING}._split_ranges", "del self._ranges[sent.first]", "pass")
def acknowledge_a_refused_entry_with_its_frame() -> None:
    """An entry that was refused alone stays in its frame, whose answer then acknowledges it (I1)."""
