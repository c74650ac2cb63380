"""One size: its directory with synthetic metadata, and the cluster on it, started for the first row that needs it."""

from __future__ import annotations

import contextlib
import shutil
from functools import cached_property
from pathlib import Path

from tests.scale.cluster import ScaleCluster
from tests.scale.filling import fill

LEDGERS_PER_TOPIC = 10
OPEN_MAX = 50_000  # topics of a broker at the goal: a million on twenty brokers


class Site:
    """The measurements of one size.

    Args:
        size: topics in the metadata, and as many open topics as a broker is to have.
        ledgers_per_topic: in the metadata; fewer make the filling of a row that reads topics only shorter.
        counts_steps: count the work of jobs, which no other load of the machine changes, instead of timing it.
    """

    def __init__(
        self,
        directory: Path,
        size: int,
        *,
        ledgers_per_topic: int = LEDGERS_PER_TOPIC,
        open_max: int = OPEN_MAX,
        counts_steps: bool = False,
    ) -> None:
        self.directory = directory
        self.topics = size
        self.ledgers = size * ledgers_per_topic
        self.open = min(size, open_max)
        self.counts_steps = counts_steps
        self._owned = contextlib.ExitStack()

    @cached_property
    def metadata(self) -> Path:
        """The directory of a store with the synthetic metadata, which does not run."""
        directory = self.directory / "data" / "metadata"
        fill(directory, topics=self.topics, ledgers=self.ledgers)
        return directory

    @cached_property
    def cluster(self) -> ScaleCluster:
        assert self.metadata.exists(), "it was filled"
        return self._owned.enter_context(ScaleCluster(self.directory, counts_steps=self.counts_steps))

    @cached_property
    def crowded(self) -> ScaleCluster:
        """The cluster, with as many topics open as a broker is to have."""
        self.cluster.open(self.open)
        return self.cluster

    def close(self) -> None:
        """Stop the cluster and delete everything."""
        self._owned.close()
        shutil.rmtree(self.directory, ignore_errors=True)
