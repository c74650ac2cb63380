"""The states of a writer, a recovery and a repair."""

from __future__ import annotations

import enum

from heliograph.base.lifecycle import Lifecycle


class WriterState(enum.Enum):
    """State of a writer. Only OPEN takes adds."""

    OPEN = "open"
    CLOSING = "closing"
    CLOSED = "closed"
    FAILED = "failed"


WRITER_LIFECYCLE = Lifecycle(
    {
        WriterState.OPEN: (
            "Adds are taken, and failed bookies are replaced.",
            {WriterState.CLOSING, WriterState.FAILED},
        ),
        WriterState.CLOSING: (
            "Adds without an outcome have failed, and the closing write is under way.",
            {WriterState.CLOSED, WriterState.FAILED},
        ),
        WriterState.CLOSED: ("The ledger is CLOSED at the writer's LAC.", ()),
        WriterState.FAILED: (
            "Adds are refused: the ledger was taken over, or a quorum or the metadata store was lost. It may still be "
            "closed.",
            {WriterState.CLOSING},
        ),
    }
)


class RecoveryPhase(enum.Enum):
    MARKING = "marking"
    FENCING = "fencing"
    COPYING = "copying"
    MEASURING = "measuring"
    CLOSING = "closing"
    FINISHED = "finished"
    FAILED = "failed"


RECOVERY_LIFECYCLE = Lifecycle(
    {
        RecoveryPhase.MARKING: (
            "The ledger is being marked IN_RECOVERY.",
            {RecoveryPhase.FENCING, RecoveryPhase.FINISHED, RecoveryPhase.FAILED},
        ),
        RecoveryPhase.FENCING: (
            "The bookies of the last segment fence the ledger and return the LAC.",
            {RecoveryPhase.COPYING, RecoveryPhase.FAILED},
        ),
        RecoveryPhase.COPYING: (
            "The entries after the LAC are read and added again.",
            {RecoveryPhase.MEASURING, RecoveryPhase.CLOSING, RecoveryPhase.FAILED},
        ),
        RecoveryPhase.MEASURING: (
            "No entry was found after the LAC. The entry at the LAC is read for the length.",
            {RecoveryPhase.CLOSING, RecoveryPhase.FAILED},
        ),
        RecoveryPhase.CLOSING: (
            "The closing write is under way.",
            {RecoveryPhase.FINISHED, RecoveryPhase.FAILED},
        ),
        RecoveryPhase.FINISHED: ("The ledger is CLOSED.", ()),
        RecoveryPhase.FAILED: ("The ledger is as another client left it, or IN_RECOVERY.", ()),
    }
)


class RepairPhase(enum.Enum):
    LISTING = "listing"
    VERIFYING = "verifying"
    COPYING = "copying"
    NAMING = "naming"
    DONE = "done"


_NEXT_STEP = {RepairPhase.VERIFYING, RepairPhase.COPYING, RepairPhase.NAMING, RepairPhase.DONE}
REPAIR_LIFECYCLE = Lifecycle(
    {
        RepairPhase.LISTING: ("The bookies are asked for the entries that they store.", _NEXT_STEP),
        RepairPhase.VERIFYING: ("The copies of a bookie that was reported are read.", _NEXT_STEP),
        RepairPhase.COPYING: ("Missing copies are read and written.", _NEXT_STEP),
        RepairPhase.NAMING: ("The copies of a new bookie are durable, and metadata is changed to name it.", _NEXT_STEP),
        RepairPhase.DONE: ("The repair has ended.", ()),
    }
)
