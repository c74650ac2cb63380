"""The states of a managed ledger (pure)."""

from __future__ import annotations

import enum

from heliograph.base.errors import HeliographError, ServiceNotReadyError, TopicTerminatedError
from heliograph.base.lifecycle import Lifecycle


class WriteState(enum.Enum):
    """The handling of published entries by a managed ledger. The values stand in ``internalStats``."""

    DORMANT = "dormant"
    WRITING = "writing"
    DRAINING = "draining"
    RECOVERING = "recovering"
    TERMINATED = "terminated"
    CLOSED = "closed"


WRITE_LIFECYCLE = Lifecycle(
    {
        WriteState.DORMANT: (
            "All ledgers are closed: nothing was published since the topic was opened. The first entry has one made.",
            {WriteState.DRAINING, WriteState.RECOVERING, WriteState.CLOSED},
        ),
        WriteState.WRITING: (
            "Entries go to the writer of the last ledger.",
            {WriteState.DRAINING, WriteState.RECOVERING, WriteState.CLOSED},
        ),
        WriteState.DRAINING: (
            "Entries wait until the last ledger has confirmed its entries; then comes a new ledger, or the end.",
            {WriteState.WRITING, WriteState.RECOVERING, WriteState.TERMINATED, WriteState.CLOSED},
        ),
        WriteState.RECOVERING: (
            "No writer, or one that failed. Entries wait until its ledger is recovered and a new one is open.",
            {WriteState.WRITING, WriteState.CLOSED},
        ),
        WriteState.TERMINATED: ("Entries are refused for good, whichever broker owns the topic.", {WriteState.CLOSED}),
        WriteState.CLOSED: ("Entries are refused: this broker does not serve the topic any more.", ()),
    }
)


def refusal_in(state: WriteState, name: str) -> HeliographError | None:
    """Return why the ledger ``name`` takes no entries; None if it does, at once or after it was repaired."""
    if state is WriteState.CLOSED:
        return ServiceNotReadyError(f"{name} is not served here any more")
    if state is WriteState.TERMINATED:
        return TopicTerminatedError(f"{name} was terminated")
    return None
