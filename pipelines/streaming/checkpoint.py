"""Micro-batches with a write-ahead plan: after a crash, the same rows run again under the same batch id.

The plan of a batch (batch id and ledger ranges) is durable before the batch is handled; its commit is durable after
that. On start, the last plan without a commit runs first, unchanged. Every row is therefore in exactly one batch, and
a sink that ignores a batch id it has seen is exactly-once.

The checkpoint holds ``plan-<id>.json`` and ``commit-<id>`` of the newest batches, ``stream-id``, and ``stream.json``,
which says what it is of. It belongs to one stream and must be where the next driver can read it. A stream that does not
begin at the beginning has a committed batch -1 without rows, behind which the first batch begins.
"""

from __future__ import annotations

import json
import time
import uuid
import zlib
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from heliograph.base.errors import BadRequestError
from heliograph.pipelines.planning.ranges import LedgerRange, Position, limited, range_from_json
from heliograph.pipelines.streaming.storage import CheckpointPlace, files_of

ENTRIES_PER_BATCH = 10_000
POLL_SECONDS = 1.0
PLANS_KEPT = 2  # the last plan holds the position of the next; one more for debugging
EARLIEST = "earliest"
START_BATCH = -1  # the id of the batch without rows that a start is
_FORMAT = 1  # of stream.json

Planner = Callable[[Mapping[int, Position]], Sequence[LedgerRange]]


@dataclass(frozen=True, slots=True)
class Batch:
    """One micro-batch: a ``batch_id`` always stands for the same ranges. A batch that ``is_fresh`` was planned by this
    process just now; the addresses of others, which were stored, may have changed since."""

    batch_id: int
    ranges: tuple[LedgerRange, ...]
    next_positions: Mapping[int, Position]  # per partition: the first position after the batch
    is_fresh: bool = field(default=False, compare=False)

    def first_positions(self) -> dict[int, Position]:
        """Return the position of the first entry, by partition; of partitions without a range, the next position."""
        first = {piece.partition: (piece.ledger_id, piece.first_entry_id) for piece in reversed(self.ranges)}
        return {**self.next_positions, **first}

    def to_fields(self) -> dict[str, Any]:
        return {
            "ranges": [piece.without_grant().to_json() for piece in self.ranges],
            "next": {str(partition): list(place) for partition, place in self.next_positions.items()},
        }

    @staticmethod
    def from_fields(batch_id: int, fields: Mapping[str, Any]) -> Batch:
        """Return the batch that ``to_fields`` wrote. Raises ValueError, KeyError, TypeError or IndexError."""
        positions = {int(partition): (place[0], place[1]) for partition, place in fields["next"].items()}
        return Batch(batch_id, tuple(map(range_from_json, fields["ranges"])), positions)


class StreamCheckpoint:
    """The plans and commits of one stream.

    Args:
        place: a directory, a URI, or a file system of pyarrow or fsspec with a path.

    Raises:
        BadRequestError, UnsupportedError: it is no place, or nothing that is installed knows it.
    """

    def __init__(self, place: CheckpointPlace) -> None:
        self._files = files_of(place)

    def __str__(self) -> str:
        return str(self._files)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Own the checkpoint.

        Raises:
            ConflictError: another stream runs on this directory.
            ResourceError: the checkpoint cannot be written.
        """
        with self._files.locked():
            yield

    def stream_id(self) -> str:
        """Return the id of the stream, which is made with the first call and stays with the checkpoint.

        Raises:
            ResourceError: the checkpoint cannot be written.
        """
        found = self._files.read("stream-id")
        if found is None:
            found = uuid.uuid4().hex
            self._files.write("stream-id", found)
        return found

    def adopt(self, stream_id: str) -> bool:
        """Assign the checkpoint to a stream, if it has none yet. Return whether it is of that stream."""
        if self._files.read("stream-id") is None:
            self._files.write("stream-id", stream_id)
        return self.stream_id() == stream_id

    def claim(self, options: Mapping[str, str]) -> dict[str, str]:
        """Note the stream of the checkpoint, and return all its notes.

        Args:
            options: those that decide which rows a batch id stands for, as texts; without the start if none is asked
                for.

        Raises:
            BadRequestError: the checkpoint is of a stream with other options; names the first of them.
        """
        known = self.options()
        noted = dict(known or {})
        if known is None and ("start" not in options or self._planned_ids()):
            noted["start"] = EARLIEST  # a release without the file knew no other
        for name, text in options.items():
            if noted.get(name, text) != text:
                raise BadRequestError(
                    f"checkpoint {self} is of a stream with {name} {noted[name]}, not {text}: use another checkpoint",
                    field=name,
                )
        merged = {**noted, **options}
        if merged != known:
            body = json.dumps(merged, sort_keys=True)
            text = json.dumps({"format": _FORMAT, "options": body, "crc32": zlib.crc32(body.encode())})
            self._files.write("stream.json", text)
        return merged

    def options(self) -> dict[str, str] | None:
        """Return the notes of ``claim``, None before it. Raises BadRequestError if the file is damaged."""
        text = self._files.read("stream.json")
        if text is None:
            return None  # new, or of a release without it
        try:
            fields = json.loads(text)
            if fields["format"] == _FORMAT and zlib.crc32(fields["options"].encode()) == fields["crc32"]:
                return dict(json.loads(fields["options"]))
        except (ValueError, KeyError, TypeError, AttributeError):
            pass
        raise BadRequestError(f"{self}/stream.json is damaged, or of a later release", field="checkpoint")

    def last_plan(self) -> Batch | None:
        """Return the newest planned batch, None when there is none.

        Raises:
            BadRequestError: the plan's file is damaged.
        """
        ids = self._planned_ids()
        return self._read_plan(max(ids)) if ids else None

    def _planned_ids(self) -> list[int]:
        names = (name.removesuffix(".json").partition("-")[2] for name in self._files.names() if _is_plan(name))
        return [int(number) for number in names]

    def _committed_ids(self) -> list[int]:
        ends = (name.removeprefix("commit-") for name in self._files.names() if name.startswith("commit-"))
        return [int(end) for end in ends if end.removeprefix("-").isdecimal()]

    def _read_plan(self, batch_id: int) -> Batch:
        name = _plan_file(batch_id)
        try:
            return Batch.from_fields(batch_id, json.loads(self._files.read(name) or ""))
        except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
            raise BadRequestError(f"{self}/{name} is not a plan: the file is damaged", field="checkpoint") from error

    def committed_positions(self) -> Mapping[int, Position]:
        """Return the positions after the newest batch that was handled, by partition; nothing where none was.

        Raises:
            BadRequestError: a plan's file is damaged.
        """
        names = set(self._files.names())
        for batch_id in sorted(self._planned_ids(), reverse=True):
            if _commit_file(batch_id) in names:
                return self._read_plan(batch_id).next_positions
        return {}

    def is_committed(self, batch: Batch) -> bool:
        return self._files.read(_commit_file(batch.batch_id)) is not None

    def plan(self, batch: Batch) -> None:
        """Store the plan durably, before the batch is handled. Raises ConflictError if another stream took over."""
        self._files.check_owner()
        self._files.write(_plan_file(batch.batch_id), json.dumps(batch.to_fields()))
        self._files.check_owner()

    def commit(self, batch: Batch) -> None:
        """Store durably that the batch was handled, and delete old plans and commits. Raises as ``plan``.

        The start stays: a state of a program that has read nothing yet goes back to it.
        """
        self._files.check_owner()
        self._files.write(_commit_file(batch.batch_id), "")
        if batch.batch_id - PLANS_KEPT > START_BATCH:
            self._forget(batch.batch_id - PLANS_KEPT)

    def go_back(self, batch: Batch | None, *, is_done: bool) -> None:
        """Make a batch the newest one, committed or not; None: the start, if there is one. Later ones are deleted, the
        newest first: if the process dies meanwhile, the checkpoint is at one of them."""
        self._files.check_owner()
        if batch is not None:
            self._files.write(_plan_file(batch.batch_id), json.dumps(batch.to_fields()))
            if is_done:
                self._files.write(_commit_file(batch.batch_id), "")
            else:
                self._files.delete(_commit_file(batch.batch_id))
        last = START_BATCH if batch is None else batch.batch_id
        for batch_id in sorted({*self._planned_ids(), *self._committed_ids()}, reverse=True):
            if batch_id > last:
                self._forget(batch_id)

    def _forget(self, batch_id: int) -> None:
        """Delete the commit, then the plan: a commit left behind would later count for another batch."""
        self._files.delete(_commit_file(batch_id))
        self._files.delete(_plan_file(batch_id))


def _is_plan(name: str) -> bool:
    return name.startswith("plan-") and name.endswith(".json")


def _plan_file(batch_id: int) -> str:
    return f"plan-{batch_id}.json"


def _commit_file(batch_id: int) -> str:
    return f"commit-{batch_id}"


def next_batch(
    last: Batch | None,
    available: Sequence[LedgerRange],
    entries_max: int = ENTRIES_PER_BATCH,
    bytes_max: int | None = None,
) -> Batch | None:
    """Return the batch after ``last``: at most ``entries_max`` available entries and about ``bytes_max`` bytes, shared
    fairly by the partitions.

    Returns:
        None when there are no new entries.
    """
    chosen = limited(available, entries_max, bytes_max)
    if not chosen:
        return None
    positions = dict(last.next_positions) if last else {}
    positions |= {piece.partition: (piece.ledger_id, piece.last_entry_id + 1) for piece in chosen}
    return Batch(last.batch_id + 1 if last else 0, tuple(chosen), positions, is_fresh=True)


def batches(
    checkpoint: StreamCheckpoint,
    plan: Planner,
    *,
    entries_max: int = ENTRIES_PER_BATCH,
    bytes_max: int | None = None,
    until_caught_up: bool = False,
    on_start: Callable[[], None] = lambda: None,
    on_commit: Callable[[Mapping[int, Position]], None] = lambda positions: None,
) -> Generator[Batch, None, None]:
    """Yield one batch after another; taking the next one commits the one before.

    Args:
        plan: returns all acknowledged entries from the given positions (from the beginning of a partition that is
            not named).
        entries_max, bytes_max: the bounds of one batch.
        until_caught_up: end when there are no new entries, instead of waiting for more.
        on_start: called before anything is read, once the checkpoint is owned.
        on_commit: called with the position after a batch, by partition, once its commit is durable.
    """
    with checkpoint.locked():
        on_start()
        last = checkpoint.last_plan()
        if last is not None and not checkpoint.is_committed(last):
            yield last
            checkpoint.commit(last)
            on_commit(last.next_positions)
        while True:
            available = plan(last.next_positions if last else {})
            batch = next_batch(last, available, entries_max, bytes_max)
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
