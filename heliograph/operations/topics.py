"""Operations on topics and on the existence of subscriptions: the methods of ``Admin`` itself."""

# mypy: disable-error-code="empty-body"

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Annotated

from heliograph.base.errors import (
    BadRequestError,
    SubscriptionExistsError,
    SubscriptionNotFoundError,
    TopicExistsError,
    TopicNotFoundError,
)
from heliograph.operations.table import (
    TOPICS_LISTED_MAX,
    TOPICS_PAGE,
    Answer,
    IntegerRange,
    OperationGroup,
    Owner,
    Right,
    Scope,
    operation,
)


class TopicOperations(OperationGroup, group=""):
    """Topics are named as everywhere, such as ``orders`` or ``persistent://public/default/orders``."""

    @operation(Scope.TOPIC, Right.PRODUCE_OR_CONSUME)
    async def lookup(self, topic: str, listener: str = "") -> dict[str, str]:
        """Return the topic's owner: ``broker_id``, ``service_url``, ``service_url_tls``, ``actor_name``.

        Each partition of a partitioned topic has its own owner.

        Args:
            listener: the advertised listener whose addresses are wanted; empty for the owner's own.

        Raises:
            UnsupportedError: the owner has no listener of that name.
        """

    @operation(Scope.TOPIC, Right.PRODUCE_OR_CONSUME)
    async def bundle_of(self, topic: str) -> str:
        """Return the name of the bundle that a topic, existing or not, belongs to.

        Raises:
            NamespaceNotFoundError.
        """

    @operation(Scope.TOPIC, Right.TENANT_ADMIN, fulfilled_by=TopicExistsError)
    async def create_topic(
        self,
        topic: str,
        partitions: int = 0,
        persistence: Mapping[str, int] | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        """Create a topic, partitioned if ``partitions`` is above 0.

        Args:
            properties: the user's own, which ``topic_properties`` returns.
            persistence: ``ensemble_size``, ``write_quorum``, ``ack_quorum``; the namespace's where left out.

        Raises:
            TopicExistsError, NamespaceNotFoundError, InvalidTopicNameError, InvalidQuorumError.
            TooFewBookiesError: fewer bookies take entries than the ack quorum.
        """

    @operation(Scope.TOPIC, Right.PRODUCE_OR_CONSUME)
    async def topic_properties(self, topic: str) -> dict[str, str]:
        """Return the properties that users attached to a topic, partitioned or not.

        Raises:
            TopicNotFoundError.
        """

    @operation(Scope.TOPIC, Right.TENANT_ADMIN, owner=Owner.OF_EACH)
    async def update_topic_properties(self, topic: str, properties: Mapping[str, str]) -> None:
        """Set some properties of a topic; the others stay.

        Raises:
            TopicNotFoundError.
            BadRequestError: they are no text, or all of them together are too large.
        """

    @operation(Scope.TOPIC, Right.TENANT_ADMIN, owner=Owner.OF_EACH)
    async def remove_topic_properties(self, topic: str, names: Sequence[str]) -> None:
        """Remove some properties of a topic; missing properties are ignored. Raises TopicNotFoundError."""

    @operation(Scope.TOPIC, Right.TENANT_ADMIN)
    async def topic_record(self, topic: str) -> Answer:
        """Return the stored records of a topic without partitions, or of one partition. The topic is not loaded.

        Returns:
            ``version``, ``created_ms``, ``modified_ms``, ``terminated_at`` (ledger and entry, or None), ``properties``,
            ``ledgers``, the newest of them (``ledger_id``, ``entries``, ``size``, ``closed_ms``), ``older``, which sums
            up those before (``ledgers``, ``entries``, ``size``), and ``cursors`` by subscription
            (``ledger_id``, ``mark_delete``, ``properties``).

        Raises:
            TopicNotFoundError.
        """

    @operation(Scope.TOPIC, Right.TENANT_ADMIN, owner=Owner.OF_EACH)
    async def trim_topic(self, topic: str) -> int:
        """Delete the ledgers that neither a subscription nor retention needs, now; return how many.

        Raises:
            TopicNotFoundError.
            UnsupportedError: the topic is not persistent.
        """

    @operation(Scope.TOPIC, Right.TENANT_ADMIN, owner=Owner.OF_EACH)
    async def truncate_topic(self, topic: str) -> int:
        """Delete all messages, whatever retention says, and the compacted form; return how many ledgers were deleted.

        All subscriptions move to the end. Messages published meanwhile stay, and so do messages that deduplication has
        yet to record. Of a topic that was terminated the last ledger stays.

        Raises:
            TopicNotFoundError.
            UnsupportedError: the topic is not persistent.
            ConflictError: it is being compacted.
        """

    @operation(Scope.TOPIC, Right.TENANT_ADMIN, owner=Owner.OF_EACH, fulfilled_by=TopicNotFoundError)
    async def delete_topic(self, topic: str, force: bool = False) -> None:
        """Delete a topic with its partitions, subscriptions and messages.

        Raises:
            TopicNotFoundError.
            TopicBusyError: it has producers or consumers, and ``force`` is not set. Some partitions of a
                partitioned topic may be deleted by then.
        """

    @operation(Scope.NAMESPACE, Right.PRODUCE_OR_CONSUME)
    async def list_topics(
        self,
        namespace: str = "public/default",
        after: str = "",
        limit: Annotated[int, IntegerRange(0, TOPICS_LISTED_MAX)] = 0,
        prefix: str = "",
        domain: str = "",
    ) -> list[Answer]:
        """Return ``name`` and ``partitions`` of the topics of a namespace, sorted by domain and local name.

        In that order, characters other than letters, digits and ``_.-~`` count as their percent-encoded form. Only the
        page is read, however many topics there are. A partitioned topic is listed once; ``partitions`` is 0 for a topic
        that is not partitioned.

        Args:
            after: the last topic of the page before, which may be gone; empty: from the first one.
            limit: topics of one page; 0: all, at most ``TOPICS_LISTED_MAX``. ``topic_pages`` returns any number.
            prefix: beginning of the local names.
            domain: ``persistent`` or ``non-persistent``; empty: both.

        Raises:
            NamespaceNotFoundError.
            BadRequestError: ``after`` is no topic name, there is no such domain, or more topics than one list holds.
        """

    async def topic_pages(
        self,
        namespace: str = "public/default",
        prefix: str = "",
        domain: str = "",
        after: str = "",
        limit: int = TOPICS_PAGE,
    ) -> AsyncIterator[list[Answer]]:
        """Return the topics of ``list_topics`` in pages of ``limit``, however many there are.

        Each page is a call. A topic that exists all the time is listed once. Raises what ``list_topics`` raises.
        """
        is_last = False
        while not is_last:
            page, is_last = await topics_page(self, namespace, prefix, domain, after, limit)
            if page:
                yield page
                after = str(page[-1]["name"])

    @operation(Scope.TOPIC, Right.TENANT_ADMIN, owner=Owner.OF_EACH)
    async def update_partitions(self, topic: str, partitions: int) -> None:
        """Add partitions to a partitioned topic.

        Its subscriptions exist on the new partitions before a message can be published there.

        Raises:
            TopicNotFoundError: it is not a partitioned topic.
            BadRequestError: it has more partitions already.
        """

    @operation(Scope.TOPIC, Right.TENANT_ADMIN)
    async def create_missing_partitions(self, topic: str) -> int:
        """Create the partitions that a partitioned topic should have and has not; return how many were created.

        Raises:
            TopicNotFoundError: it is not a partitioned topic.
        """

    @operation(Scope.TOPIC, Right.TENANT_ADMIN, owner=Owner.OF_EACH)
    async def unload_topic(self, topic: str) -> None:
        """Close a topic at its owner. Clients reconnect by themselves, and the next request opens it again.

        Raises:
            TopicNotFoundError.
        """

    @operation(Scope.TOPIC, Right.PRODUCE_OR_CONSUME)
    async def partitions(self, topic: str, may_create: bool = False) -> int:
        """Return how many partitions the topic has; 0 when it is not partitioned.

        Args:
            may_create: the topic is about to be used. A missing topic is created with partitions where the policies
                say so, and the answer is 0 where its first use creates it.

        Raises:
            TopicNotFoundError.
        """

    @operation(Scope.TOPIC, Right.PRODUCE_OR_CONSUME, owner=Owner.OF_EACH)
    async def topic_stats(self, topic: str) -> Answer:
        """Return rates, counters, subscriptions and clients in Pulsar's shape.

        Of a partitioned topic these are the sums, and ``partitions`` has those of each partition by name.
        """

    @operation(Scope.TOPIC, Right.PRODUCE_OR_CONSUME, owner=Owner.OF_EACH)
    async def topic_internal_stats(self, topic: str) -> Answer:
        """Return the newest ledgers with their ensembles, at most ``LEDGERS_PAGE_MAX``, and the cursors, in Pulsar's
        shape. ``ledgersTotal`` counts all ledgers."""

    @operation(Scope.TOPIC, Right.PRODUCE_OR_CONSUME, owner=Owner.OF_EACH)
    async def topic_history(self, topic: str) -> Answer:
        """Return the samples of the last two hours that the topic's owner keeps in memory.

        An owner keeps them of the busiest topics, of those furthest behind, and of any topic that was asked for in the
        last two hours, from then on. Samples are lost when the topic moves or its broker ends.

        Returns:
            ``step_seconds`` between two samples; ``age_seconds`` of the last one; and ``series``: pairs of a key (name,
            topic or partition, and for some the subscription) and the samples, oldest first, None where there is none.
            The names are ``in_messages_rate``, ``in_bytes_rate``, ``out_messages_rate``, ``out_bytes_rate``,
            ``publish_seconds`` (the mean from arrival to receipt); by subscription ``backlog_messages`` and
            ``acknowledged_entries_rate``, of the five that are furthest behind. All end together.

        Raises:
            TopicNotFoundError.
        """

    @operation(Scope.TOPIC, Right.CONSUME, owner=Owner.OF_EACH)
    async def subscriptions(self, topic: str) -> list[str]:
        """Return the names of the subscriptions, sorted; of a partitioned topic, of all its partitions."""

    @operation(
        Scope.SUBSCRIPTION, Right.CONSUME, target="name", owner=Owner.OF_EACH, fulfilled_by=SubscriptionExistsError
    )
    async def create_subscription(
        self, topic: str, name: str, position: str = "latest", properties: Mapping[str, str] | None = None
    ) -> None:
        """Create a durable subscription, on every partition of a partitioned topic.

        Args:
            properties: the user's own, which ``cursors.properties`` returns.
            position: ``latest``, ``earliest``, or ``ledger:entry`` of the last message not to deliver.

        Raises:
            SubscriptionExistsError, TopicNotFoundError, BadRequestError.
        """

    @operation(
        Scope.SUBSCRIPTION, Right.CONSUME, target="name", owner=Owner.OF_EACH, fulfilled_by=SubscriptionNotFoundError
    )
    async def delete_subscription(self, topic: str, name: str, force: bool = False) -> None:
        """Delete a subscription, on every partition of a partitioned topic; ``force`` disconnects its consumers.

        Raises:
            SubscriptionNotFoundError, TopicNotFoundError.
            ConflictError: it has consumers, and ``force`` is not set.
        """

    @operation(Scope.TOPIC, Right.TENANT_ADMIN, owner=Owner.OF_EACH)
    async def terminate_topic(self, topic: str) -> dict[str, str]:
        """End a topic with all partitions: it can be read, and nothing can be published to it. Idempotent.

        Returns:
            ``ledger:entry`` of the last message by name of the topic or partition; the entry is -1 for none.

        Raises:
            TopicNotFoundError.
            ServiceNotReadyError, PersistenceError: it cannot be ended now; some partitions may be ended.
        """

    @operation(Scope.TOPIC, Right.TENANT_ADMIN, owner=Owner.OF_EACH)
    async def compact_topic(self, topic: str) -> None:
        """Start to keep only the latest message of each key, on every partition, for readers of the compacted topic.

        Raises:
            ConflictError: a compaction is running already; some partitions may have started.
        """

    @operation(Scope.TOPIC, Right.TENANT_ADMIN, owner=Owner.OF_EACH)
    async def compaction_status(self, topic: str) -> Answer:
        """Return Pulsar's ``status`` (NOT_RUN, RUNNING, SUCCESS, ERROR) and ``lastError`` of the last compaction.

        Of a partitioned topic it is the status of the least finished partition. The owner keeps it in memory: it is
        NOT_RUN again after the topic moved to another broker.
        """

    @operation(Scope.TOPIC, Right.CONSUME, owner=Owner.OF_ONE)
    async def ledger_ranges(self, topic: str) -> list[Answer]:
        """Return all entries acknowledged by now, ledger by ledger in publish order.

        Returns:
            Of each ledger that has entries: ``ledger_id``, ``first_entry_id``, ``last_entry_id``, their ``bytes``, and
            ``closed_ms``, until when it was written by the clock of its broker, 0 for the one that is.

        Raises:
            BadRequestError: the topic is partitioned; ask for each partition. Or it has more than
                ``LEDGER_RANGES_MAX`` ledgers; ask with ``topic_ledgers``.
        """

    @operation(Scope.TOPIC, Right.CONSUME, owner=Owner.OF_ONE)
    async def topic_ledgers(self, topic: str, after: int = -1) -> Answer:
        """Return a page of the ledgers of a topic, in publish order.

        Args:
            after: the page begins with the newest ledger up to this id; the next page with the last one of this page.

        Returns:
            ``total``, the number of all ledgers; ``has_more``, whether some come after the page; and ``ledgers``, at
            most ``LEDGERS_PAGE_MAX``: of each ``ledger_id``, the ``entries`` acknowledged by now, their ``bytes``, and
            ``closed_ms``, until when it was written by the clock of its broker, 0 for the one that is.

        Raises:
            BadRequestError: the topic is partitioned; ask for each partition.
        """

    @operation(Scope.TOPIC, Right.CONSUME)
    async def read_access(self, topic: str, ledger_ids: Sequence[int]) -> Answer:
        """Return what a program needs to read a topic's ledgers from bookies without the metadata store or a secret.

        Returns:
            ``ledgers``: a list of ``ledger_id``, ``write_quorum``, ``ack_quorum`` and ``segments`` (first entry id and
            bookies of each); ``addresses`` and ``racks`` of bookies by id; ``grants``: by ledger id as text, what
            bookies are shown, for reading only and until ``expires_ms``, empty where bookies are open; ``authority``:
            the certificate, in PEM, of who signs those of bookies, empty where they do not speak TLS; ``trimmed``: the
            newest ledgers that retention deleted, as pairs of id and entries, oldest first, at most 64; ``compacted``:
            ``ledger_id``, ``entries``, 0 if compaction kept none, and ``horizon`` (ledger and entry) of the compacted
            form, or None. Its ledger may be named, too.

        Raises:
            BadRequestError: the topic is partitioned, ask for each partition; or there are more than 1,000 ledgers.
            TopicNotFoundError.
            NotFoundError: a ledger is none of the topic's, or no longer.
        """

    @operation(Scope.TOPIC, Right.CONSUME)
    async def read_plan(
        self, topic: str, first: Mapping[str, int] | None = None, last: Mapping[str, int] | None = None
    ) -> list[Answer]:
        """Return the plan by which a program reads a topic from bookies, in one answer of each partition's owner.

        Args:
            first, last: ids of the first and of the last ledger that are wanted, by partition as text, ``-1`` for a
                topic without partitions. The ledger before the first one is told, too. All partitions together are told
            at most ``LEDGERS_PAGE_MAX`` ledgers, and one each.

        Returns:
            Of the topic, or of each partition: ``topic``, its full name; ``rows``, as ``topic_ledgers`` answers; and
            ``access``, as ``read_access`` answers for those of them that have entries, up to the last one.

        Raises:
            TopicNotFoundError.
            NotFoundError: a ledger was deleted meanwhile; ask again.
            UnsupportedError: the topic is not persistent.
        """

    @operation(Scope.TOPIC, Right.PRODUCE, owner=Owner.OF_EACH, is_repeatable=False)
    async def publish(
        self, topic: str, payloads: Sequence[bytes], keys: Sequence[str | None] | None = None
    ) -> list[str]:
        """Publish a list of payloads, packed into as few entries as the size limit allows. Never repeated.

        A call costs about a millisecond, so give it many payloads. On a partitioned topic, a message with a key goes
        to the key's partition; those without one all go to the next partition in turn.

        Returns:
            ``ledger:entry:partition:batch_index`` of each, in the order given, when all are durable.

        Raises:
            MessageTooLargeError: one payload is above the limit; nothing was published.
            ConnectionLostError, RequestTimeoutError, PersistenceError, ServiceNotReadyError: the outcome of what was
                not confirmed is unknown.
        """


async def topics_page(
    admin: TopicOperations, namespace: str, prefix: str, domain: str, after: str, limit: int
) -> tuple[list[Answer], bool]:
    """Return one page of ``topic_pages``, and whether it is the last one."""
    try:
        page = await admin.list_topics(namespace, after, limit, prefix, domain)
    except BadRequestError as error:  # a broker of the previous release may know no pages, or no domains
        if error.field != "arguments" or after:
            raise
        rows = [(*str(row["name"]).partition("://")[::2], row) for row in await admin.list_topics(namespace)]
        begin = f"{namespace}/{prefix}"
        return [row for each, rest, row in rows if domain in ("", each) and rest.startswith(begin)], True
    return page, len(page) < limit
