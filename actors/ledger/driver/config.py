"""Settings of a ledger client."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field

from actors.ledger.limits import MIB, QuarantineLimits, ReaderLimits, RecoveryLimits, RepairLimits, WriterLimits
from actors.ledger.placement import Placement, RackAwarePlacement, RandomPlacement
from actors.wire.entry import ENTRY_HEADER_BYTES
from actors.wire.frame import FRAME_BYTES_MAX, FRAME_SLACK_BYTES
from actors.wire.handshake import check_secret
from heliograph.errors import InvalidConfigError

BUILT_IN = ("random", "rack", "random-weighted", "rack-weighted")
ENTRY_BYTES_MAX = FRAME_BYTES_MAX - FRAME_SLACK_BYTES - ENTRY_HEADER_BYTES  # payload that a frame has room for


@dataclass(frozen=True, slots=True)
class LedgerClientConfig:
    """How one process uses ledgers.

    Args:
        request_timeout_ms: silence after which a request to a bookie counts as unanswered.
        tick_ms: how often cores that wait for something learn the time, and timeouts are looked for.
        waiting_adds_max: adds of one writer that wait for room in its window, before ``add`` refuses more.
        waiting_bytes_max: their payload bytes.
        placement: ``random``, ``rack``, ``random-weighted``, ``rack-weighted``, or the dotted name of a class of the
            user's that follows ``actors.ledger.placement.Placement``.
        hole_search_delay_ms: pause after a recovery before bookies are asked what the dead writer left them without.
        is_upkeep: for processes that keep other people's ledgers whole: they need no ledger passwords.
        cluster_secret: what bookies ask for; None where they are open.
    """

    request_timeout_ms: int = 5_000
    tick_ms: int = 50
    waiting_adds_max: int = 100_000
    waiting_bytes_max: int = 64 * MIB
    placement: str = "rack"
    hole_search_delay_ms: int = 1_000
    is_upkeep: bool = False
    cluster_secret: str | None = field(default=None, repr=False)
    writer: WriterLimits = field(default_factory=WriterLimits)
    recovery: RecoveryLimits = field(default_factory=RecoveryLimits)
    reader: ReaderLimits = field(default_factory=ReaderLimits)
    repair: RepairLimits = field(default_factory=RepairLimits)
    quarantine: QuarantineLimits = field(default_factory=QuarantineLimits)

    def __post_init__(self) -> None:
        check_secret(self.cluster_secret)
        for name in ("request_timeout_ms", "tick_ms", "waiting_adds_max", "waiting_bytes_max", "hole_search_delay_ms"):
            if getattr(self, name) < 1:
                raise InvalidConfigError(f"{name} must be at least 1", field=name, limit="at least 1")
        if self.writer.entry_bytes_max > ENTRY_BYTES_MAX:
            raise InvalidConfigError(
                f"entries of {self.writer.entry_bytes_max} bytes do not fit a frame of the bookie protocol",
                field="entry_bytes_max",
                limit=f"at most {ENTRY_BYTES_MAX} bytes",
            )


PLACEMENT = "placement"  # property of a ledger whose bookies another policy chooses than the process's own


def load_placement(name: str) -> Placement:
    """The policy of that name.

    Raises:
        InvalidConfigError: there is no such policy, module or class, or the class cannot be made without arguments.
    """
    if name in ("random", "random-weighted"):
        return RandomPlacement(by_free_space=name.endswith("weighted"))
    if name in ("rack", "rack-weighted"):
        return RackAwarePlacement(by_free_space=name.endswith("weighted"))
    module_name, _, class_name = name.rpartition(".")
    try:
        made: Placement = getattr(importlib.import_module(module_name), class_name)()
    except Exception as error:  # a user's module and class may raise anything
        raise InvalidConfigError(
            f"placement {name!r} is neither a built-in policy ({', '.join(BUILT_IN)}) nor the dotted name of a class "
            f"that can be imported and made without arguments: {type(error).__name__}: {error}",
            field="placement",
        ) from error
    for method in ("new_ensemble", "replacement"):
        if not callable(getattr(made, method, None)):
            raise InvalidConfigError(f"placement {name!r} has no method {method}", field="placement")
    return made
