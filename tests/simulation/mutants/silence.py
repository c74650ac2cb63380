"""Small sabotages of what a broker does while the metadata store is silent, and when it answers again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any
from unittest.mock import patch

from heliograph.actors.broker.silence_watch import SilenceWatch
from heliograph.actors.errors import LedgerFencedError
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
