"""The records that replication workers keep of their progress."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RepairProgress:
    """The counts of one replication worker since its session began. Its node is ephemeral: it goes with the worker."""

    worker: str
    ledgers_repaired: int = 0
    ledgers_damaged: int = 0
    entries_repaired: int = 0
    bytes_repaired: int = 0
    repair_seconds: float = 0.0
    last_failure: str = ""
