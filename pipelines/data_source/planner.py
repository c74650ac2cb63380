"""Plans of a source: which entries of its topics a query reads. It needs no Ray and no JVM."""

from __future__ import annotations

import re
from collections.abc import Mapping

from heliograph.base.errors import BadRequestError
from heliograph.client.admin.admin import AdminSync
from heliograph.pipelines.data_source.offsets import Offsets, of_topic
from heliograph.pipelines.data_source.options import EARLIEST, LATEST, Bound, SourceOptions
from heliograph.pipelines.planning.access import ClusterAccess
from heliograph.pipelines.planning.conditions import Where
from heliograph.pipelines.planning.patience import BATCH_SECONDS, Patience
from heliograph.pipelines.planning.plan import ends_of, plan_topic, schema_versions, starts_at
from heliograph.pipelines.planning.ranges import LedgerRange, Position
from heliograph.pipelines.reading.registry import REGISTRY, TopicSchemas, schemas_of
from heliograph.pipelines.streaming.subscription import StreamSubscription
from heliograph.protocol.topic_name import DOMAINS, TopicName


class SourcePlanner:
    """The topics of a source, and what they hold."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._access: ClusterAccess = options.access

    @property
    def admin(self) -> AdminSync:
        return self._access.admin_sync()

    def topics(self) -> list[TopicName]:
        """Return the topics that are read, as they are now: a pattern finds new ones.

        Raises:
            BadRequestError: none is named.
            TopicNotFoundError, ClusterNotFoundError: there is no such namespace or cluster.
        """
        if not self._options.pattern:
            if not self._options.topics:
                raise BadRequestError("name one of the options topic, topics and topicsPattern", field="topic")
            return [TopicName.parse(topic) for topic in self._options.topics]
        pattern = re.compile(self._options.pattern)
        pages = self.admin.topic_pages(self._options.pattern_namespace, domain=DOMAINS[0])
        names = (TopicName.parse(str(one["name"])) for page in pages for one in page)
        return sorted({name for name in names if pattern.fullmatch(name.local_name)}, key=str)

    def schemas(self) -> TopicSchemas | None:
        """Return the schemas of the topic, if they are asked for.

        Raises:
            BadRequestError: several topics are read, or the schema is one for writing.
            NotFoundError, UnsupportedError: the topic has no schema, or one that cannot be decoded.
        """
        if self._options.schema not in ("", REGISTRY):
            raise BadRequestError(f"schema={self._options.schema} is for writing", field="schema", limit=REGISTRY)
        if not self._options.schema:
            return None
        topic = self._options.only_topic
        what = f"reading the schemas of {topic}"
        versions = Patience(BATCH_SECONDS).call(what, lambda: schema_versions(topic, self._access))
        return schemas_of(topic, versions, self._options.read)

    def plan(
        self, start: Mapping[str, Position], end: Mapping[str, Position] | None = None, where: Where | None = None
    ) -> list[LedgerRange]:
        """Return what is acknowledged now, from ``start`` (included) to ``end`` (excluded).

        Args:
            start: a topic or partition that is not named is read from its beginning.
            end: one that is not named is not read; None: everything up to now.
            where: conditions on rows; entries that cannot have such rows may be left out.

        Raises:
            DataLostError: entries at or after ``start`` were deleted, and the source fails on that.
            TopicNotFoundError, ClusterNotFoundError: there is no such topic or cluster.
        """
        found: list[LedgerRange] = []
        is_folded = self._options.compacted or self._options.latest
        for topic in self.topics():
            until = None if end is None else of_topic(end, topic)
            if until is not None and not until:
                continue
            ranges = plan_topic(
                str(topic),
                start=None if is_folded else of_topic(start, topic),
                end=None if is_folded else until,
                on_data_loss=self._options.on_data_loss,
                compacted=self._options.compacted,
                latest=self._options.latest,
                where=where,
                access=self._access,
            )
            found += [piece for piece in ranges if until is None or piece.partition in until]
        return found

    def latest(self) -> Offsets:
        """Return the offsets behind everything that is acknowledged now."""
        return {name: end for topic in self.topics() for name, end in ends_of(str(topic), self._access).items()}

    def start(self) -> Offsets:
        """Return where a new query begins; a topic or partition that is not named is read from its beginning.

        Of a time, it is the first entry that was published then or later, or the last one: rows are filtered, too.
        """
        start = self._options.start
        if start == LATEST:
            return self.latest()
        return self._offsets_of(start) if start != EARLIEST else {}

    def end(self) -> Offsets | None:
        """Return where a batch query ends; None: at whatever is acknowledged by then, as rows published before a time
        may be stored after others."""
        end = self._options.end
        return None if end == LATEST or isinstance(end, int) else self._offsets_of(end)

    def _offsets_of(self, bound: Bound) -> Offsets:
        if isinstance(bound, Mapping):
            return {str(TopicName.parse(topic)): position for topic, position in bound.items()}
        assert isinstance(bound, int), "earliest and latest are not looked up"
        return {name: at for topic in self.topics() for name, at in starts_at(str(topic), bound, self._access).items()}

    def subscriptions(self) -> list[tuple[TopicName, StreamSubscription]]:
        """Return the durable subscriptions of the stream, if it has a name for them."""
        if not self._options.subscription:
            return []
        admin = self.admin
        return [(topic, StreamSubscription(admin, str(topic), self._options.subscription)) for topic in self.topics()]
