"""The topic of a stream, batch by batch: what Spark's micro-batches and streams of Datasets have in common."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from heliograph.base.errors import BadRequestError, NotFoundError
from heliograph.pipelines.planning.conditions import Where, both
from heliograph.pipelines.planning.patience import Patience
from heliograph.pipelines.planning.plan import plan_topic, refresh_addresses
from heliograph.pipelines.planning.ranges import LedgerRange, Position
from heliograph.pipelines.reading.options import ReadOptions, StreamKeywords
from heliograph.pipelines.reading.registry import TopicSchemas
from heliograph.pipelines.reading.topic_plan import registry_schemas
from heliograph.pipelines.streaming.checkpoint import (
    EARLIEST,
    ENTRIES_PER_BATCH,
    START_BATCH,
    Batch,
    StreamCheckpoint,
    batches,
)
from heliograph.pipelines.streaming.start import StreamStart
from heliograph.pipelines.streaming.storage import CheckpointPlace
from heliograph.pipelines.streaming.subscription import StreamSubscription
from heliograph.protocol.topic_name import TopicName

_STATE_FORMAT = 1


class StreamSource:
    """A topic in batches, each under an id that always stands for the same rows, with the subscription that the stream
    owns. Every call waits for a cluster that does not answer.

    Args:
        checkpoint: where only this stream stores its plans.
        options: how rows are read.
        given: the keywords of the stream.

    Raises:
        BadRequestError: a bound, the start or the checkpoint is not acceptable.
        UnsupportedError: nothing that is installed knows the file system of the checkpoint.
    """

    def __init__(
        self, topic: str, checkpoint: CheckpointPlace, options: ReadOptions, given: StreamKeywords | None = None
    ) -> None:
        given = given or {}
        self._topic = str(TopicName.parse(topic))
        self._plans = StreamCheckpoint(checkpoint)
        self._start = StreamStart.of(given.get("start"))
        self._options = options
        self._where = _text_of(options.where)
        self._subscription = given.get("subscription")
        self._entries_max = _bound(given.get("entries_per_batch", ENTRIES_PER_BATCH), "entries_per_batch")
        bytes_max = given.get("bytes_per_batch")
        self._bytes_max = None if bytes_max is None else _bound(bytes_max, "bytes_per_batch")
        self._until_caught_up = given.get("until_caught_up", False)
        self._patience = Patience()
        self._loaded: Mapping[str, Any] | None = None
        self._last: Batch | None = None  # the batch that was handed out
        self._is_running = False
        self._states: deque[Mapping[int, Position]] = deque(maxlen=2)  # where the newest states go on reading

    @property
    def options(self) -> ReadOptions:
        """How rows are read, with the conditions that the start adds."""
        return self._options

    def batches(self) -> Generator[Batch, None, None]:
        """Yield one batch after another, with the present addresses of its ranges; taking the next one commits the one
        before.

        Raises:
            BadRequestError: the checkpoint is of another topic, start or conditions.
            ConflictError: another stream runs on this checkpoint.
            ResourceError: the checkpoint cannot be written.
            TopicNotFoundError, ClusterNotFoundError: there is no such topic or cluster.
            DataLostError: entries that were not planned yet were deleted, or the topic was deleted and created again.
            NotFoundError: rows of a planned batch were deleted; says how to continue.
        """
        self._is_running = True
        for batch in batches(
            self._plans,
            self._plan,
            entries_max=self._entries_max,
            bytes_max=self._bytes_max,
            until_caught_up=self._until_caught_up,
            on_start=self._open,
            on_commit=self._acknowledge,
        ):
            self._last = batch
            yield batch if batch.is_fresh else replace(batch, ranges=tuple(self._ranges_of(batch)))
        self._last = None

    def schemas(self) -> TopicSchemas | None:
        """Return the present schemas of the registry, if they are asked for."""
        what = f"reading the schemas of {self._topic}"
        return self._patience.call(what, lambda: registry_schemas(self._topic, self._options))

    def state(self, rows: int) -> dict[str, Any]:
        """Return the position of the stream for JSON, with ``rows`` of the batch in hand handed out.

        From the first state on, the subscription is acknowledged up to the state before the newest one.
        """
        batch, is_done = self._last, False
        if batch is None and self._loaded is not None:
            return dict(self._loaded)
        if batch is None:
            batch = self._plans.last_plan()
            is_done = batch is not None and self._plans.is_committed(batch)
        if batch is not None:
            self._states.append(batch.next_positions if is_done else batch.first_positions())
        known = self._plans.options() or {}
        return {
            "format": _STATE_FORMAT,
            "stream": self._plans.stream_id(),
            "topic": self._topic,
            "where": self._where,
            "start": known.get("start", EARLIEST if self._start is None else self._start.text),
            "batch": None if batch is None else batch.batch_id,
            "plan": None if batch is None else batch.to_fields(),
            "is_done": is_done,
            "rows": 0 if is_done else rows,
        }

    def load_state(self, state: Mapping[str, Any]) -> int:
        """Begin where a state says, instead of where the checkpoint stands. Return how many rows of the first batch are
        left out.

        Raises:
            BadRequestError: it is no state, one of another stream, or the stream runs already.
        """
        try:
            rows, is_running = int(state["rows"]), self._is_running
            if state["format"] != _STATE_FORMAT or rows < 0:
                raise ValueError(state["format"])
            _batch_of(state)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise BadRequestError("this is no state of a stream", field="state") from error
        if is_running:
            raise BadRequestError("a state is loaded before the first batch is taken", field="state")
        if state["topic"] != self._topic:
            raise BadRequestError(f"the state is of {state['topic']}, not {self._topic}", field="state")
        self._loaded = dict(state)
        return rows

    def _open(self) -> None:
        """Check whose checkpoint it is, find the start, and open the subscription there."""
        loaded = self._loaded
        if loaded is not None and not self._plans.adopt(loaded["stream"]):
            raise BadRequestError(f"the state is of another stream than checkpoint {self._plans}", field="state")
        given = {"topic": self._topic, "where": self._where}
        if self._start is not None:
            given["start"] = self._start.text
        for name in ("where", "start") if loaded is not None else ():  # they decide which rows the state counts
            text = str((loaded or {}).get(name, given.get(name, EARLIEST)))
            if given.setdefault(name, text) != text:
                raise BadRequestError(f"the state is of a stream with {name} {text}, not {given[name]}", field=name)
        noted = self._plans.claim(given)
        start = StreamStart.noted(noted["start"]) if self._start is None else self._start
        self._options = replace(self._options, where=both(self._options.where, start.where))
        if loaded is not None:
            batch = _batch_of(loaded)
            self._plans.go_back(batch, is_done=loaded["is_done"])
            if batch is not None:
                self._states.append(batch.next_positions if loaded["is_done"] else batch.first_positions())
            self._loaded = None
        if self._plans.last_plan() is None:
            self._begin(start)
        positions = self._plans.committed_positions()
        self._patience.call(f"opening the stream of {self._topic}", lambda: self._owned().open(positions))

    def _begin(self, start: StreamStart) -> None:
        what = f"looking for the start of {self._topic}"
        positions = self._patience.call(what, lambda: start.found(self._topic, self._options.access))
        if positions:
            begin = Batch(START_BATCH, (), positions)
            self._plans.plan(begin)
            self._plans.commit(begin)

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
                f"skip the batch, create the file {self._plans}/commit-{batch.batch_id}; to handle what is "
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
        kept = self._states[0] if self._states else positions
        self._patience.call(f"acknowledging a batch of {self._topic}", lambda: self._owned().acknowledge(kept))

    def _owned(self) -> StreamSubscription:
        name = self._subscription or f"stream-{self._plans.stream_id()}"
        return StreamSubscription(self._options.access.admin_sync(), self._topic, name)


def _batch_of(state: Mapping[str, Any]) -> Batch | None:
    return None if state["batch"] is None else Batch.from_fields(int(state["batch"]), state["plan"])


def _text_of(where: Where | None) -> str:
    """Return conditions as a text that is equal for equal ones."""
    told = []
    for one in where.conditions if where is not None else ():
        value = sorted(one.value) if isinstance(one.value, frozenset) else one.value
        told.append(f"{one.column} {one.operator} {value!r}")
    return " and ".join(told) or "nothing"


def _bound(given: object, name: str) -> int:
    if not isinstance(given, int) or isinstance(given, bool) or given < 1:
        raise BadRequestError(f"{name} is {given!r}", field=name, limit="an integer of 1 or more")
    return given
