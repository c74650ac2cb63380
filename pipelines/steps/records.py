"""Records of steps and of their keys, and the states that they add up to. Pure: no I/O."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from heliograph.base.errors import BadRequestError, ConflictError, ProtocolError, StepDroppedError

RECORD_BYTES_MAX = 512 << 10  # of keys and locations in one record of an index  # I15
KEYS_MAX = 1_000_000  # of one step  # I15
KEY_BYTES_MAX = 1 << 10
DROPPED_MAX = 10_000  # steps that were dropped one by one, above all that were dropped together  # I15
STEP_MAX = (1 << 63) - 1
_FORMAT = 1


def record(**fields: Any) -> bytes:
    return json.dumps({"format": _FORMAT, **fields}, separators=(",", ":")).encode()


def fields_of(data: bytes | memoryview) -> dict[str, Any]:
    """Return the fields of a record.

    Raises:
        ProtocolError: the bytes are none, or of a later release.
    """
    try:
        fields = json.loads(bytes(data))
        if fields["format"] == _FORMAT:
            return dict(fields)
    except (ValueError, KeyError, TypeError):
        pass
    raise ProtocolError("a record of steps is damaged, or of a later release")


def put_records(locations: Mapping[str, str]) -> Iterator[bytes]:
    """Yield records that say where values are, each of at most RECORD_BYTES_MAX or one key."""
    share: dict[str, str] = {}
    size = 0
    for key, location in locations.items():
        added = len(key.encode()) * 2 + len(location) + 8
        if share and size + added > RECORD_BYTES_MAX:
            yield record(put=share)
            share, size = {}, 0
        share[key] = location
        size += added
    if share:
        yield record(put=share)


def clear_records(keys: Iterable[str]) -> Iterator[bytes]:
    """Yield records that say which values are gone."""
    share: list[str] = []
    size = 0
    for key in keys:
        share.append(key)
        size += len(key.encode()) * 2 + 8
        if size > RECORD_BYTES_MAX:
            yield record(clear=share)
            share, size = [], 0
    if share:
        yield record(clear=share)


def check_step(step: object) -> int:
    """Return the number of a step. Raises BadRequestError if it is none."""
    if not isinstance(step, int) or isinstance(step, bool) or not 0 <= step <= STEP_MAX:
        raise BadRequestError(f"step is {step!r:.100}", field="step", limit="an integer of 0 or more")
    return step


def check_keys(keys: Sequence[object]) -> list[str]:
    """Return keys. Raises BadRequestError if one is no text, too long, or there twice."""
    found: dict[str, None] = {}
    for key in keys:
        if not isinstance(key, str) or not key or len(key.encode()) > KEY_BYTES_MAX:
            raise BadRequestError(f"{key!r:.100} is no key", field="keys", limit=f"text of 1 to {KEY_BYTES_MAX} bytes")
        found[key] = None
    if len(found) < len(keys):
        raise BadRequestError("a key is named twice", field="keys")
    return [*found]


class StepStates:
    """Which step is the newest, and which are dropped. All of it only grows: the order of records is of no matter."""

    def __init__(self) -> None:
        self.newest: int | None = None
        self.floor = 0  # all steps below it are dropped
        self.dropped: set[int] = set()  # above the floor

    def add(self, data: bytes | memoryview) -> None:
        """Add a record. Raises ProtocolError."""
        fields = fields_of(data)
        if "begin" in fields:
            self.newest = max(fields["begin"], self.newest or 0)
        self.floor = max(fields.get("drop_before", 0), self.floor)
        self.dropped.update(fields.get("drop", ()))
        while self.floor in self.dropped:
            self.floor += 1
        self.dropped = {step for step in self.dropped if step > self.floor}

    def is_dropped(self, step: int) -> bool:
        return step < self.floor or step in self.dropped

    def check_there(self, step: int) -> None:
        """Raise StepDroppedError if a step is dropped."""
        if self.is_dropped(step):
            raise StepDroppedError(f"step {step} was dropped", field="step")

    def check_room(self) -> None:
        """Raise ConflictError if no more steps can be dropped one by one."""
        if len(self.dropped) >= DROPPED_MAX:
            raise ConflictError(
                f"{DROPPED_MAX} steps above step {self.floor} were dropped one by one: drop the steps before them",
                field="step",
                limit=f"{DROPPED_MAX} steps",
            )


class StepIndex:
    """The keys of one step and the locations of their values."""

    def __init__(self, step: int) -> None:
        self._step = step
        self.locations: dict[str, str] = {}

    def add(self, data: bytes | memoryview) -> None:
        """Add a record.

        Raises:
            ProtocolError: it is none.
            BadRequestError: the step has more than KEYS_MAX keys.
        """
        fields = fields_of(data)
        for key in fields.get("clear", ()):
            self.locations.pop(key, None)
        self.locations |= fields.get("put", {})
        if len(self.locations) > KEYS_MAX:
            raise BadRequestError(
                f"step {self._step} has {len(self.locations)} keys", field="keys", limit=f"{KEYS_MAX} keys"
            )
