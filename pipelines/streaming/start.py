"""The start of a stream: the forms that a caller may give, and their positions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from heliograph.base.errors import BadRequestError, InvalidMessageIdError
from heliograph.pipelines.planning.access import ClusterAccess
from heliograph.pipelines.planning.conditions import PUBLISH_TIME, Where, where_of
from heliograph.pipelines.planning.plan import ends_of, starts_at
from heliograph.pipelines.planning.ranges import Position
from heliograph.pipelines.streaming.checkpoint import EARLIEST
from heliograph.protocol.message_id import MessageId
from heliograph.protocol.topic_name import TopicName

LATEST = "latest"
_TIME, _AT = "time ", "at "
_FORMS = "earliest, latest, a time, message ids, or positions by partition"


@dataclass(frozen=True)
class StreamStart:
    """Where a stream begins.

    Args:
        text: what the checkpoint notes; it is equal for equal starts.
        time_ms: of a start by time.
        positions: of a start by messages or positions.
    """

    text: str
    time_ms: int | None = None
    positions: Mapping[int, Position] | None = None
    has_ids: bool = False  # every partition has to be named

    @classmethod
    def of(cls, given: Any) -> StreamStart | None:
        """Return the start that a caller named; None without one.

        Raises:
            BadRequestError: it is no start.
        """
        if given is None or (isinstance(given, str) and given in (EARLIEST, LATEST)):
            return cls(given) if given else None
        if isinstance(given, datetime | int) and not isinstance(given, bool):
            return cls._of_time(given)
        try:
            if isinstance(given, Mapping):
                return cls._of_positions({int(partition): (int(a), int(b)) for partition, (a, b) in given.items()})
            if isinstance(given, str):
                is_id = given.replace(":", "").isdecimal()
                return cls._of_ids([_id_of_text(given)]) if is_id else cls._of_time(datetime.fromisoformat(given))
            named = [given] if isinstance(given, bytes | MessageId) else list(given)
            ids = [MessageId.from_bytes(one) if isinstance(one, bytes) else one for one in named]
            if ids in ([MessageId.EARLIEST], [MessageId.LATEST]):  # these are places in no ledger
                return cls(EARLIEST if ids == [MessageId.EARLIEST] else LATEST)
            return cls._of_ids(ids)
        except (TypeError, ValueError, AttributeError, InvalidMessageIdError) as error:
            raise BadRequestError(f"{given!r:.200} is no start of a stream", field="start", limit=_FORMS) from error

    @classmethod
    def _of_time(cls, given: datetime | int) -> StreamStart:
        if isinstance(given, datetime):
            given = int((given if given.tzinfo else given.replace(tzinfo=UTC)).timestamp() * 1000)
        return cls(f"{_TIME}{given}", time_ms=given)

    @classmethod
    def noted(cls, text: str) -> StreamStart:
        if text.startswith(_AT):
            places = [tuple(map(int, place.split(":"))) for place in text.removeprefix(_AT).split(" ")]
            return cls(text, positions={partition: (ledger, entry) for partition, ledger, entry in places})
        return cls(text, time_ms=int(text.removeprefix(_TIME)) if text.startswith(_TIME) else None)

    @classmethod
    def _of_positions(cls, positions: Mapping[int, Position], *, has_ids: bool = False) -> StreamStart:
        if not positions or any(entry_id < 0 or ledger_id < 0 for ledger_id, entry_id in positions.values()):
            raise ValueError("no position")
        places = (f"{partition}:{ledger}:{entry}" for partition, (ledger, entry) in sorted(positions.items()))
        return cls(_AT + " ".join(places), positions=positions, has_ids=has_ids)

    @classmethod
    def _of_ids(cls, ids: Iterable[MessageId]) -> StreamStart:
        positions: dict[int, Position] = {}
        for one in ids:
            if one.partition in positions:
                raise ValueError("two messages of one partition")
            positions[one.partition] = one.ledger_id, one.entry_id
        return cls._of_positions(positions, has_ids=True)

    @property
    def where(self) -> Where | None:
        """Return the condition that rows have to satisfy because of the start."""
        return where_of([(PUBLISH_TIME, ">=", self.time_ms)]) if self.time_ms is not None else None

    def found(self, topic: str, access: ClusterAccess) -> dict[int, Position]:
        """Return the first positions by partition; a partition that is not among them begins at its beginning.

        Raises:
            BadRequestError: no named message is of a partition; or the topic has no such partition.
            TopicNotFoundError, ClusterNotFoundError: there is no such topic or cluster.
        """
        if self.positions is not None:
            self._check(TopicName.parse(topic), access)
            return dict(self.positions)
        if self.text == EARLIEST:
            return {}
        named = ends_of(topic, access) if self.time_ms is None else starts_at(topic, self.time_ms, access)
        return {TopicName.parse(name).partition: at for name, at in named.items()}

    def _check(self, topic: TopicName, access: ClusterAccess) -> None:
        assert self.positions is not None, "the start names positions"
        there = {one.partition for one in topic.partitions(access.admin_sync().partitions(str(topic)))}
        if wrong := sorted(set(self.positions) - there):
            raise BadRequestError(f"{topic} has no partition {wrong[0]}", field="start")
        if self.has_ids and (missing := sorted(there - set(self.positions))):
            raise BadRequestError(
                f"start names no message of partition {missing[0]} of {topic}: name one of each partition",
                field="start",
            )


def _id_of_text(text: str) -> MessageId:
    ledger_id, entry_id, *rest = map(int, text.split(":"))
    return MessageId(ledger_id, entry_id, rest[0] if rest else -1)
