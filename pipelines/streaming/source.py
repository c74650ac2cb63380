"""The topic of a stream, batch by batch: what Spark's micro-batches and streams of Datasets have in common."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from pathlib import Path

from heliograph.base.errors import NotFoundError
from heliograph.pipelines.planning.patience import Patience
from heliograph.pipelines.planning.plan import plan_topic, refresh_addresses
from heliograph.pipelines.planning.ranges import LedgerRange, Position
from heliograph.pipelines.reading.options import ReadOptions, StreamKeywords
from heliograph.pipelines.reading.registry import TopicSchemas
from heliograph.pipelines.reading.topic_plan import registry_schemas
from heliograph.pipelines.streaming.checkpoint import ENTRIES_PER_BATCH, Batch, StreamCheckpoint, batches
from heliograph.pipelines.streaming.subscription import StreamSubscription


def stream_tables(
    topic: str, checkpoint: str | Path, options: ReadOptions, given: StreamKeywords
) -> Generator[tuple[int, list[LedgerRange], TopicSchemas | None], None, None]:
    """Yield the id and the ranges of one batch after another, with the schemas that decode it, where they are asked
    for; arguments and errors are those of ``StreamSource`` and its ``batches``."""
    source = StreamSource(topic, checkpoint, options, given.get("subscription"))
    entries_max = given.get("entries_per_batch", ENTRIES_PER_BATCH)
    for batch_id, ranges in source.batches(entries_max, until_caught_up=given.get("until_caught_up", False)):
        yield batch_id, ranges, source.schemas()


class StreamSource:
    """A topic in batches, each under an id that always stands for the same rows, with the subscription that the stream
    owns. Every call waits for a cluster that does not answer.

    Args:
        checkpoint: a directory that only this stream uses.
        options: how rows are read.
        subscription: its name; None: ``stream-`` and the id in the checkpoint.

    Raises:
        ResourceError: the checkpoint cannot be written.
    """

    def __init__(
        self, topic: str, checkpoint: str | Path, options: ReadOptions, subscription: str | None = None
    ) -> None:
        self._topic = topic
        self._directory = Path(checkpoint)
        self._plans = StreamCheckpoint(self._directory)
        self._options = options
        self._subscription = subscription or f"stream-{self._plans.stream_id()}"
        self._patience = Patience()

    def batches(
        self, entries_max: int = ENTRIES_PER_BATCH, *, until_caught_up: bool = False
    ) -> Generator[tuple[int, list[LedgerRange]], None, None]:
        """Yield the id and the ranges of one batch after another; taking the next one commits the one before.

        Raises:
            ConflictError: another stream runs on this checkpoint.
            TopicNotFoundError, ClusterNotFoundError: there is no such topic or cluster.
            DataLostError: entries that were not planned yet were deleted, or the topic was deleted and created again.
            NotFoundError: rows of a planned batch were deleted; says how to continue.
        """
        positions = self._plans.committed_positions()
        self._patience.call(f"opening the stream of {self._topic}", lambda: self._owned().open(positions))
        for batch in batches(
            self._plans,
            self._plan,
            entries_max=entries_max,
            until_caught_up=until_caught_up,
            on_commit=self._acknowledge,
        ):
            yield batch.batch_id, list(batch.ranges) if batch.is_fresh else self._ranges_of(batch)

    def schemas(self) -> TopicSchemas | None:
        """Return the schemas of the registry as they are now, if they are asked for."""
        what = f"reading the schemas of {self._topic}"
        return self._patience.call(what, lambda: registry_schemas(self._topic, self._options))

    def _ranges_of(self, batch: Batch) -> list[LedgerRange]:
        what, options = f"planning batch {batch.batch_id} of {self._topic} again", self._options
        try:
            return self._patience.call(
                what,
                lambda: refresh_addresses(batch.ranges, on_data_loss=options.on_data_loss, access=options.access),
            )
        except NotFoundError as error:
            raise NotFoundError(
                f"batch {batch.batch_id} was planned and not handled, and some of its rows were deleted ({error}): to "
                f"skip the batch, create the file {self._directory / f'commit-{batch.batch_id}'}; to handle what is "
                "left of it, pass on_data_loss='skip'",
                field="checkpoint",
            ) from error

    def _plan(self, start: Mapping[int, Position]) -> Sequence[LedgerRange]:
        what, options = f"planning a batch of {self._topic}", self._options
        return self._patience.call(
            what,
            lambda: plan_topic(self._topic, start=start, on_data_loss=options.on_data_loss, access=options.access),
        )

    def _acknowledge(self, positions: Mapping[int, Position]) -> None:
        self._patience.call(f"acknowledging a batch of {self._topic}", lambda: self._owned().acknowledge(positions))

    def _owned(self) -> StreamSubscription:
        return StreamSubscription(self._options.access.admin_sync(), self._topic, self._subscription)
