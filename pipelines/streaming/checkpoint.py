"""Micro-batches with a write-ahead plan: after a crash, the same rows run again under the same batch id.

The plan of a batch (batch id and ledger ranges) is fsynced before the batch is handled; its commit is fsynced after
that. On start, the last plan without a commit runs first, unchanged. Every row is therefore in exactly one batch, and
a sink that ignores a batch id it has seen is exactly-once.

The checkpoint directory holds ``plan-<id>.json`` and ``commit-<id>`` of the newest batches, and ``stream-id``; it
belongs to one stream and must be on storage that the next driver can read.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from heliograph.base.errors import BadRequestError, ConflictError, ResourceError
from heliograph.pipelines.planning.ranges import LedgerRange, Position, narrow, range_from_json

ENTRIES_PER_BATCH = 10_000
POLL_SECONDS = 1.0
PLANS_KEPT = 2  # the last plan holds the position of the next; one more for debugging

Planner = Callable[[Mapping[int, Position]], Sequence[LedgerRange]]


@dataclass(frozen=True, slots=True)
class Batch:
    """One micro-batch: a ``batch_id`` always stands for the same ranges. One that ``is_fresh`` was planned by this
    process just now; the addresses of others, which were stored, may have changed since."""

    batch_id: int
    ranges: tuple[LedgerRange, ...]
    next_positions: Mapping[int, Position]  # per partition: the first position after the batch
    is_fresh: bool = field(default=False, compare=False)


class StreamCheckpoint:
    """The plans and commits of one stream, in a directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock of the directory.

        Raises:
            ConflictError: another stream runs on this directory.
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

    def stream_id(self) -> str:
        """Return the id of the stream, which is made with the first call and stays with the directory.

        Raises:
            ResourceError: the directory cannot be written.
        """
        file = self._directory / "stream-id"
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            if not file.exists():
                self._write(file, uuid.uuid4().hex)
            return file.read_text()
        except OSError as error:
            raise ResourceError(f"{file} cannot be used: {error.strerror}", field="checkpoint") from error

    def last_plan(self) -> Batch | None:
        """Return the newest planned batch, None when there is none.

        Raises:
            BadRequestError: the plan's file is damaged.
        """
        ids = self._planned_ids()
        return self._read_plan(max(ids)) if ids else None

    def _planned_ids(self) -> list[int]:
        return [int(file.stem.partition("-")[2]) for file in self._directory.glob("plan-*.json")]

    def _read_plan(self, batch_id: int) -> Batch:
        file = self._plan_file(batch_id)
        try:
            fields = json.loads(file.read_text())
            positions = {int(partition): (place[0], place[1]) for partition, place in fields["next"].items()}
            return Batch(batch_id, tuple(map(range_from_json, fields["ranges"])), positions)
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise BadRequestError(f"{file} is not a plan: the file is damaged", field="checkpoint") from error

    def committed_positions(self) -> Mapping[int, Position]:
        """Return the positions after the newest batch that was handled, by partition; nothing where none was.

        Raises:
            BadRequestError: a plan's file is damaged.
        """
        for batch_id in sorted(self._planned_ids(), reverse=True):
            if self._commit_file(batch_id).exists():
                return self._read_plan(batch_id).next_positions
        return {}

    def is_committed(self, batch: Batch) -> bool:
        return self._commit_file(batch.batch_id).exists()

    def plan(self, batch: Batch) -> None:
        """Store the plan durably, before the batch is handled."""
        fields = {
            "ranges": [piece.without_grant().to_json() for piece in batch.ranges],
            "next": {str(partition): place for partition, place in batch.next_positions.items()},
        }
        self._write(self._plan_file(batch.batch_id), json.dumps(fields))

    def commit(self, batch: Batch) -> None:
        """Store durably that the batch was handled, and delete old plans and commits."""
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
    """Return the batch after ``last``: at most ``entries_max`` available entries, shared fairly by the partitions.

    Returns:
        None when there are no new entries.
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
    return Batch(last.batch_id + 1 if last else 0, tuple(chosen), positions, is_fresh=True)


def batches(
    checkpoint: StreamCheckpoint,
    plan: Planner,
    *,
    entries_max: int = ENTRIES_PER_BATCH,
    until_caught_up: bool = False,
    on_commit: Callable[[Mapping[int, Position]], None] = lambda positions: None,
) -> Generator[Batch, None, None]:
    """Yield one batch after another; taking the next one commits the one before.

    Args:
        plan: returns all acknowledged entries from the given positions (from the beginning of a partition that is
            not named).
        entries_max: the bound on the entries of one batch.
        until_caught_up: end when there are no new entries, instead of waiting for more.
        on_commit: called with the position after a batch, by partition, once its commit is durable.
    """
    with checkpoint.locked():
        last = checkpoint.last_plan()
        if last is not None and not checkpoint.is_committed(last):
            yield last
            checkpoint.commit(last)
            on_commit(last.next_positions)
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
            on_commit(batch.next_positions)
            last = batch
