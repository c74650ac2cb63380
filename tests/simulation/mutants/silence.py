"""Small sabotages of what a broker does while the metadata store is silent, and when it answers again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

from heliograph.actors.broker.silence_watch import SilenceWatch
from heliograph.actors.broker.subscription.witness import Witness
from heliograph.actors.broker.topic.topics import Topics
from tests.simulation.mutants.mutant import TOPIC, mutant, replaced

SILENT = "store silent to a broker"


@replaced(SilenceWatch, "_probe", start=65, world=TOPIC)
async def serve_on_after_a_bookie_says_fenced(self: SilenceWatch, topic: Any) -> None:
    """A quiet owner that a bookie tells of a fence serves on (I13)."""
    asked_at = topic.setting.witness.now()
    if await topic.ledger.writer.probe(lambda error: None):
        topic.setting.witness.confirm(asked_at)


@mutant(start=13, world=TOPIC, only=SILENT)
def deliver_keys_without_a_witness() -> Iterator[None]:
    """Brokers deliver keys though no bookie witnesses that the topic is theirs (I16)."""
    with patch.object(Witness, "holds", lambda self: True):
        yield


@mutant(start=13, world=TOPIC, only=SILENT)
def retake_a_bundle_without_a_look_at_its_topics() -> Iterator[None]:
    """A broker serves on after it takes a bundle back, though another one owned the topic meanwhile (I13, I16)."""

    async def trust(self: Topics, path: str) -> None:
        """Compare no record."""

    with patch.object(Topics, "_check_bundle", trust):
        yield
