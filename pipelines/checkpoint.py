"""Micro-batches with a write-ahead plan: a crash runs the same rows again under the same batch id.

Before a batch is handled, its plan (batch id and ledger ranges) is on disk, fsynced; after it, its commit is. On start
the last plan without a commit is run first, unchanged. So every row is in exactly one batch, and a sink that ignores
a batch id it has seen is exactly-once.

The checkpoint directory holds ``plan-<id>.json`` and ``commit-<id>`` of the newest batches; it belongs to one stream
and must be on storage that the next driver can read.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from heliograph.errors import BadRequestError, ConflictError, ResourceError
from pipelines.ranges import LedgerRange, Position, narrow, range_from_json

ENTRIES_PER_BATCH = 10_000
POLL_SECONDS = 1.0
PLANS_KEPT = 2  # the last plan holds the position of the next; one more for people who look

Planner = Callable[[Mapping[int, Position]], Sequence[LedgerRange]]


@dataclass(frozen=True, slots=True)
class Batch:
    """One micro-batch: ``batch_id`` always stands for these very ranges."""

    batch_id: int
    ranges: tuple[LedgerRange, ...]
    next_positions: Mapping[int, Position]  # per partition: the first position after it


class Checkpoint:
    """Plans and commits in a directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep a second stream out.

        Raises:
            ConflictError: one runs on this directory.
            ResourceError: the directory cannot be written.
        """
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            lock = (self._directory / "lock").open("w")
        except OSError as error:
            raise ResourceError(
                f"checkpoint {self._directory} cannot be written: {error.strerror}", field="checkpoint"
            ) from error
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConflictError(f"another stream runs on checkpoint {self._directory}") from None
            yield

    def last_plan(self) -> Batch | None:
        """The newest planned batch.

        Raises:
            BadRequestError: its file is damaged.
        """
        ids = [int(file.stem.partition("-")[2]) for file in self._directory.glob("plan-*.json")]
        if not ids:
            return None
        file = self._plan_file(max(ids))
        try:
            fields = json.loads(file.read_text())
            positions = {int(partition): (place[0], place[1]) for partition, place in fields["next"].items()}
            return Batch(max(ids), tuple(map(range_from_json, fields["ranges"])), positions)
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise BadRequestError(f"{file} is no plan", field="checkpoint") from error

    def is_committed(self, batch: Batch) -> bool:
        """Whether the batch was handled."""
        return self._commit_file(batch.batch_id).exists()

    def plan(self, batch: Batch) -> None:
        """Have the plan on disk before anything is done by it."""
        fields = {
            "ranges": [piece.to_json() for piece in batch.ranges],
            "next": {str(partition): place for partition, place in batch.next_positions.items()},
        }
        self._write(self._plan_file(batch.batch_id), json.dumps(fields))

    def commit(self, batch: Batch) -> None:
        """Note that the batch was handled, and forget old ones."""
        self._write(self._commit_file(batch.batch_id), "")
        self._plan_file(batch.batch_id - PLANS_KEPT).unlink(missing_ok=True)
        self._commit_file(batch.batch_id - PLANS_KEPT).unlink(missing_ok=True)

    def _plan_file(self, batch_id: int) -> Path:
        return self._directory / f"plan-{batch_id}.json"

    def _commit_file(self, batch_id: int) -> Path:
        return self._directory / f"commit-{batch_id}"

    def _write(self, file: Path, text: str) -> None:
        temporary = file.with_name(f".{file.name}.new")
        with temporary.open("w") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        os.replace(temporary, file)
        directory = os.open(self._directory, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def next_batch(
    last: Batch | None, available: Sequence[LedgerRange], entries_max: int = ENTRIES_PER_BATCH
) -> Batch | None:
    """The batch after ``last`` out of what is there now, at most ``entries_max`` entries, shared fairly by partitions.

    Returns:
        None when nothing new is there.
    """
    positions = dict(last.next_positions) if last else {}
    partitions = sorted({piece.partition for piece in available})
    room = entries_max
    chosen: list[LedgerRange] = []
    for index, partition in enumerate(partitions):
        share = max(1, room // (len(partitions) - index))
        for piece in (piece for piece in available if piece.partition == partition):
            if share <= 0 or room <= 0:
                break
            last_entry = min(piece.last_entry_id, piece.first_entry_id + min(share, room) - 1)
            taken = narrow(piece, piece.first_entry_id, last_entry)
            chosen.append(taken)
            share -= taken.entries
            room -= taken.entries
            positions[partition] = (taken.ledger_id, taken.last_entry_id + 1)
    if not chosen:
        return None
    return Batch(last.batch_id + 1 if last else 0, tuple(chosen), positions)


def batches(
    checkpoint: Checkpoint, plan: Planner, *, entries_max: int = ENTRIES_PER_BATCH, until_caught_up: bool = False
) -> Generator[Batch, None, None]:
    """One batch after another; asking for the next one commits the one before.

    Args:
        plan: everything acknowledged from the given positions (the beginning, for a partition that is not named).
        entries_max: of one batch.
        until_caught_up: end where there is nothing new, instead of waiting for more.
    """
    with checkpoint.locked():
        last = checkpoint.last_plan()
        if last is not None and not checkpoint.is_committed(last):
            yield last
            checkpoint.commit(last)
        while True:
            batch = next_batch(last, plan(last.next_positions if last else {}), entries_max)
            if batch is None:
                if until_caught_up:
                    return
                time.sleep(POLL_SECONDS)
                continue
            checkpoint.plan(batch)
            yield batch
            checkpoint.commit(batch)
            last = batch
