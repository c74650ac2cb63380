"""Small sabotages of what a broker does while the metadata store is silent, and when it answers again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any
from unittest.mock import patch

from heliograph.actors.broker.cursor.log import CursorLog
from heliograph.actors.broker.silence_watch import SilenceWatch
from heliograph.actors.broker.subscription.witness import Witness
from heliograph.actors.broker.topic.topics import Topics
from heliograph.actors.errors import LedgerFencedError
from heliograph.metadata.errors import ConnectionLossError
from tests.simulation.mutants.mutant import TOPIC, mutant


@mutant(start=14, world=TOPIC)
def serve_on_after_a_bookie_says_fenced() -> Iterator[None]:
    """A quiet owner that a bookie tells of a fence serves on (I13)."""

    async def deaf(self: SilenceWatch, topic: Any) -> None:
        asked_at = topic.setting.witness.now()
        with suppress(LedgerFencedError):
            if await topic.ledger.writer.probe():
                topic.setting.witness.confirm(asked_at)

    with patch.object(SilenceWatch, "_probe", deaf):
        yield


@mutant(world=TOPIC)
def deliver_keys_without_a_witness() -> Iterator[None]:
    """An owner in doubt delivers to Key_Shared consumers, whatever the bookies say (I16)."""
    real = Witness.holds

    def holds(self: Witness) -> bool:
        return real(self) or self.now() >= self._held_until

    with patch.object(Witness, "holds", holds):
        yield


@mutant(world=TOPIC)
def deliver_keys_at_once_after_a_takeover() -> Iterator[None]:
    """The next owner does not wait until the lease of the previous one is over (I16)."""
    with patch.object(Witness, "fenced", lambda self, at: None):
        yield


@mutant(world=TOPIC)
def take_back_without_a_look_at_the_record() -> Iterator[None]:
    """A broker takes its topic back, whatever another owner has done with it meanwhile (I11, I16)."""

    async def nothing(self: Any, path: str) -> None:
        return None

    with patch.object(Topics, "_check_bundle", nothing):
        yield


@mutant(world=TOPIC)
def confirm_acks_while_the_store_is_silent() -> Iterator[None]:
    """An acknowledgement is confirmed although its cursor cannot have a ledger, because the store is silent (I11)."""
    real = CursorLog._replace_ledger

    async def careless(self: CursorLog) -> None:
        with suppress(ConnectionLossError):
            await real(self)

    with patch.object(CursorLog, "_replace_ledger", careless):
        yield
