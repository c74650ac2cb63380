"""A topic as Spark micro-batches, each under an id that always stands for the same rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from heliograph.base.errors import NotFoundError
from heliograph.client import discovery
from heliograph.client.admin.admin import AdminSync
from heliograph.client.identity import Identity, IdentityOptions
from heliograph.pipelines.planning.loss import OnDataLoss, check_on_data_loss
from heliograph.pipelines.planning.plan import plan_topic, refresh_addresses
from heliograph.pipelines.planning.ranges import LedgerRange, Position
from heliograph.pipelines.reading.columns import OnUnreadable
from heliograph.pipelines.reading.registry import TopicSchemas
from heliograph.pipelines.reading.topic_plan import registry_schemas
from heliograph.pipelines.spark.dataframe import ranges_dataframe
from heliograph.pipelines.streaming.checkpoint import ENTRIES_PER_BATCH, Batch, StreamCheckpoint, batches
from heliograph.pipelines.streaming.patience import Patience
from heliograph.pipelines.streaming.subscription import StreamSubscription

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


def stream(
    spark: SparkSession,
    topic: str,
    handle: Callable[[DataFrame, int], None],
    *,
    checkpoint: str | Path,
    schema: StructType | str | None = None,
    columns: Sequence[str] | None = None,
    entries_per_batch: int = ENTRIES_PER_BATCH,
    until_caught_up: bool = False,
    subscription: str | None = None,
    on_data_loss: OnDataLoss = "fail",
    on_unreadable: OnUnreadable = "fail",
    namespace: str | None = None,
    **credentials: Unpack[IdentityOptions],
) -> int:
    """Call ``handle(frame, batch_id)`` with all rows of a topic, from its beginning and then as they are published.

    A batch whose handler was interrupted, or raised, is handled again under its id by the next call with the same
    checkpoint; no row is left out and no row is in two batches.

    The stream has a durable subscription on the topic, which is acknowledged when a batch is committed: retention waits
    for it, and its backlog is what the stream has not handled. Delete it when the stream is given up. A cluster that
    does not answer is waited for, up to ten minutes.

    Args:
        checkpoint: a directory that only this stream uses.
        schema, columns: as in ``topic_dataframe``.
        entries_per_batch: bound of one batch; an entry holds up to a producer's batch of messages.
        credentials: as in ``topic_dataframe``; they are not stored in the checkpoint.
        subscription: the name of the stream's subscription; None: ``stream-`` and the id in the checkpoint.
        on_data_loss: ``fail`` when entries that the stream has not handled were deleted; ``skip`` logs how many, and
            goes on with those that are left.
        on_unreadable: as in ``topic_dataframe``.
        until_caught_up: return when all available rows were handled; otherwise run without end.

    Returns:
        The number of batches handled.

    Raises:
        ConflictError: another stream runs on this checkpoint.
        ResourceError: the checkpoint cannot be written.
        TopicNotFoundError, ClusterNotFoundError: there is no such topic or cluster.
        DataLostError: entries that were not planned yet were deleted, or the topic was deleted and created again.
        NotFoundError: rows of a planned batch were deleted; says how to continue.
        Exception: any error that ``handle`` raised.
    """
    check_on_data_loss(on_data_loss)
    plans = StreamCheckpoint(Path(checkpoint))
    name = subscription or f"stream-{plans.stream_id()}"
    source = _Source(topic, name, on_data_loss, namespace, Identity.of(credentials))
    source.open(plans.committed_positions())
    handled = 0
    for batch in batches(
        plans,
        source.plan,
        entries_max=entries_per_batch,
        until_caught_up=until_caught_up,
        on_commit=source.acknowledge,
    ):
        ranges = _ranges_of(batch, source, Path(checkpoint))
        decoded = source.schemas(schema)
        frame = ranges_dataframe(spark, ranges, schema=decoded, columns=columns, on_unreadable=on_unreadable)
        handle(frame, batch.batch_id)
        handled += 1
    return handled


def _ranges_of(batch: Batch, source: _Source, checkpoint: Path) -> list[LedgerRange]:
    try:
        return source.refreshed(batch)
    except NotFoundError as error:
        raise NotFoundError(
            f"batch {batch.batch_id} was planned and not handled, and some of its rows were deleted ({error}): to "
            f"skip the batch, create the file {checkpoint / f'commit-{batch.batch_id}'}; to handle what is left of it, "
            "pass on_data_loss='skip'",
            field="checkpoint",
        ) from error


class _Source:
    """The topic of a stream, with the subscription that the stream owns. Every call waits for the cluster."""

    def __init__(
        self, topic: str, subscription: str, on_data_loss: OnDataLoss, namespace: str | None, identity: Identity
    ) -> None:
        self._topic = topic
        self._on_data_loss = on_data_loss
        self._namespace = namespace
        self._identity = identity
        self._patience = Patience()
        admin = AdminSync(discovery.namespace_or_noted(namespace), identity)
        self._subscription = StreamSubscription(admin, topic, subscription)

    def open(self, positions: Mapping[int, Position]) -> None:
        self._patience.call(f"opening the stream of {self._topic}", lambda: self._subscription.open(positions))

    def acknowledge(self, positions: Mapping[int, Position]) -> None:
        what = f"acknowledging a batch of {self._topic}"
        self._patience.call(what, lambda: self._subscription.acknowledge(positions))

    def schemas(self, schema: StructType | str | None) -> StructType | str | TopicSchemas | None:
        def found() -> StructType | str | TopicSchemas | None:
            return registry_schemas(self._topic, schema, self._namespace, self._identity) or schema

        return self._patience.call(f"reading the schemas of {self._topic}", found)

    def plan(self, start: Mapping[int, Position]) -> list[LedgerRange]:
        def planned() -> list[LedgerRange]:
            return plan_topic(
                self._topic,
                start=start,
                on_data_loss=self._on_data_loss,
                namespace=self._namespace,
                identity=self._identity,
            )

        return self._patience.call(f"planning a batch of {self._topic}", planned)

    def refreshed(self, batch: Batch) -> list[LedgerRange]:
        def refreshed() -> list[LedgerRange]:
            return refresh_addresses(
                batch.ranges,
                on_data_loss=self._on_data_loss,
                namespace=self._namespace,
                identity=self._identity,
            )

        return self._patience.call(f"planning batch {batch.batch_id} of {self._topic} again", refreshed)
