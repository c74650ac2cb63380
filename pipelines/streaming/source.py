"""The topic of a stream, batch by batch: what Spark's micro-batches and streams of Datasets have in common."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from heliograph.base.errors import NotFoundError
from heliograph.client.identity import Identity
from heliograph.pipelines.planning.access import ClusterAccess
from heliograph.pipelines.planning.loss import OnDataLoss, check_on_data_loss
from heliograph.pipelines.planning.patience import Patience
from heliograph.pipelines.planning.plan import plan_topic, refresh_addresses
from heliograph.pipelines.planning.ranges import LedgerRange, Position
from heliograph.pipelines.reading.registry import USUAL, RegistryRead, TopicSchemas
from heliograph.pipelines.reading.topic_plan import registry_schemas
from heliograph.pipelines.streaming.checkpoint import ENTRIES_PER_BATCH, Batch, StreamCheckpoint, batches
from heliograph.pipelines.streaming.subscription import StreamSubscription

T = TypeVar("T")


def stream_access(namespace: str | None, identity: Identity, gateway: str) -> ClusterAccess:
    """Return how a stream asks its cluster: by the gateway that is named or noted on this machine, else through Ray."""
    return ClusterAccess(namespace, identity, gateway.rstrip("/"))


class StreamSource:
    """A topic in batches, each under an id that always stands for the same rows, with the subscription that the stream
    owns. Every call waits for a cluster that does not answer.

    Args:
        checkpoint: a directory that only this stream uses.
        subscription: its name; None: ``stream-`` and the id in the checkpoint.
        read: how values are read by the registry.

    Raises:
        BadRequestError: ``on_data_loss`` has no such value.
        ResourceError: the checkpoint cannot be written.
    """

    def __init__(
        self,
        topic: str,
        checkpoint: str | Path,
        access: ClusterAccess,
        *,
        subscription: str | None = None,
        on_data_loss: OnDataLoss = "fail",
        read: RegistryRead = USUAL,
    ) -> None:
        check_on_data_loss(on_data_loss)
        self._topic = topic
        self._directory = Path(checkpoint)
        self._plans = StreamCheckpoint(self._directory)
        self._access = access
        self._read = read
        self._on_data_loss = on_data_loss
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
        self._wait(f"opening the stream of {self._topic}", lambda: self._owned().open(positions))
        for batch in batches(
            self._plans,
            self._plan,
            entries_max=entries_max,
            until_caught_up=until_caught_up,
            on_commit=self._acknowledge,
        ):
            yield batch.batch_id, list(batch.ranges) if batch.is_fresh else self._ranges_of(batch)

    def schemas(self, schema: object) -> TopicSchemas | None:
        """Return the schemas of the registry as they are now, if ``schema`` asks for them."""
        what = f"reading the schemas of {self._topic}"
        return self._wait(what, lambda: registry_schemas(self._topic, schema, self._access, self._read))

    def _ranges_of(self, batch: Batch) -> list[LedgerRange]:
        what = f"planning batch {batch.batch_id} of {self._topic} again"
        try:
            return self._wait(
                what,
                lambda: refresh_addresses(batch.ranges, on_data_loss=self._on_data_loss, access=self._access),
            )
        except NotFoundError as error:
            raise NotFoundError(
                f"batch {batch.batch_id} was planned and not handled, and some of its rows were deleted ({error}): to "
                f"skip the batch, create the file {self._directory / f'commit-{batch.batch_id}'}; to handle what is "
                "left of it, pass on_data_loss='skip'",
                field="checkpoint",
            ) from error

    def _plan(self, start: Mapping[int, Position]) -> Sequence[LedgerRange]:
        what = f"planning a batch of {self._topic}"
        return self._wait(
            what,
            lambda: plan_topic(self._topic, start=start, on_data_loss=self._on_data_loss, access=self._access),
        )

    def _acknowledge(self, positions: Mapping[int, Position]) -> None:
        what = f"acknowledging a batch of {self._topic}"
        self._wait(what, lambda: self._owned().acknowledge(positions))

    def _owned(self) -> StreamSubscription:
        return StreamSubscription(self._access.admin_sync(), self._topic, self._subscription)

    def _wait(self, what: str, work: Callable[[], T]) -> T:
        return self._patience.call(what, work)
