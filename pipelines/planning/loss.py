"""Lost data: whether the entries at a start position were deleted, and how many. Pure: no I/O, no Ray, no Spark.

A broker tells the ledgers of a topic that have entries, and the newest ledgers that were trimmed. Ledger ids of a topic
grow and no id is given twice, so a position in a ledger that is neither belongs to entries that are gone: they were
trimmed long ago, or the topic was deleted and created again.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from heliograph.base.errors import BadRequestError, DataLostError
from heliograph.pipelines.planning.ranges import Position

log = logging.getLogger(__name__)

OnDataLoss = Literal["fail", "skip"]
ON_DATA_LOSS: tuple[OnDataLoss, ...] = ("fail", "skip")


@dataclass(frozen=True, slots=True)
class Holdings:
    """The contents of a topic or partition, as its broker describes them.

    Args:
        ledgers: the ledgers that have entries, in publish order.
        trimmed: the newest ledgers that were trimmed, with their entries, oldest first.
    """

    topic: str
    partition: int  # -1 when the topic is not a partition
    ledgers: Sequence[int]
    trimmed: Sequence[tuple[int, int]] = ()


def find_loss(held: Holdings, wanted: Position) -> DataLostError | None:
    """Return the error that says which entries at or after ``wanted`` were deleted, None when all are there.

    The first entry of a ledger that is not known is not missed: such a ledger may never have had entries.
    """
    ledger_id, entry_id = wanted
    if ledger_id in held.ledgers:
        return None
    missed = sum(entries for trimmed, entries in held.trimmed if trimmed > ledger_id)
    there = dict(held.trimmed).get(ledger_id)
    if there is not None:
        missed += max(0, there - entry_id)
        if not missed:
            return None  # all of the ledger had been read when it was trimmed
    elif entry_id == 0 and not missed:
        return None
    oldest = (held.ledgers[0], 0) if held.ledgers else None
    return DataLostError(held.topic, held.partition, wanted, oldest, missed, is_exact=there is not None)


def check_losses(
    holdings: Sequence[Holdings], start: Mapping[int, Position] | None, on_data_loss: OnDataLoss = "fail"
) -> list[DataLostError]:
    """Look for losses at the start positions of all partitions.

    Returns:
        the losses, which were logged. There are none unless ``on_data_loss`` is ``skip``.

    Raises:
        DataLostError: entries at or after a start position were deleted, and ``on_data_loss`` is ``fail``.
    """
    found = []
    for held in holdings:
        wanted = (start or {}).get(held.partition)
        loss = None if wanted is None else find_loss(held, wanted)
        if loss is None:
            continue
        if on_data_loss == "fail":
            raise loss
        log.warning("skipping lost data: %s", loss)
        found.append(loss)
    return found


def check_on_data_loss(value: str) -> None:
    """Raise BadRequestError unless ``value`` is ``fail`` or ``skip``."""
    if value not in ON_DATA_LOSS:
        raise BadRequestError(f"on_data_loss is {value!r}", field="on_data_loss", limit=" or ".join(ON_DATA_LOSS))
