"""Operations on the cursors of subscriptions, and a look at stored messages: ``admin.cursors``."""

# mypy: disable-error-code="empty-body"

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from heliograph.base.clock import Moment
from heliograph.operations.table import (
    INTEGER_MAX,
    PEEK_MAX,
    Answer,
    IntegerRange,
    Natural,
    OperationGroup,
    Owner,
    Right,
    Scope,
    Seconds,
    TimeMs,
    operation,
)

MASKED = "masked by policy"  # stands for what ``payloads_masked`` hides


class CursorOperations(OperationGroup, group="cursors"):
    """Message ids are text, ``ledger:entry[:partition[:batch_index]]``; times are aware datetimes, or ms since
    the epoch.

    Every method raises TopicNotFoundError; SubscriptionNotFoundError where no partition has the subscription; and
    BadRequestError where a partitioned topic is named and one partition is meant.
    """

    @operation(Scope.SUBSCRIPTION, Right.CONSUME, owner=Owner.OF_ONE, is_repeatable=False)
    async def skip(self, topic: str, subscription: str, count: Natural) -> None:
        """Acknowledge the next ``count`` entries that are not acknowledged. Never repeated."""

    @operation(Scope.SUBSCRIPTION, Right.CONSUME, owner=Owner.OF_EACH)
    async def skip_all(self, topic: str, subscription: str) -> None:
        """Acknowledge all entries."""

    @operation(Scope.SUBSCRIPTION, Right.CONSUME, owner=Owner.OF_EACH)
    async def expire(self, topic: str, subscription: str | None, seconds: Seconds) -> int:
        """Acknowledge the entries older than ``seconds``, of one subscription or (None) of all durable ones.

        Returns:
            how many entries were acknowledged.
        """

    @operation(Scope.SUBSCRIPTION, Right.CONSUME, owner=Owner.OF_ONE)
    async def expire_to(self, topic: str, subscription: str, message_id: str, excluded: bool = False) -> int:
        """Acknowledge everything up to a message, including it unless ``excluded``; return how many entries."""

    @operation(Scope.SUBSCRIPTION, Right.CONSUME, owner=Owner.OF_EACH)
    async def reset(self, topic: str, subscription: str, to: str | Moment, excluded: bool = False) -> None:
        """Move a subscription to another position. Its consumers are disconnected and reconnect by themselves.

        Args:
            to: a time (everything published at or after it is delivered again, nothing before it), ``earliest``,
                ``latest``, or a message id, which is for a topic without partitions.
            excluded: with a message id: start behind that message.
        """

    @operation(Scope.TOPIC, Right.CONSUME, owner=Owner.OF_ONE)
    async def backlog_size(self, topic: str, message_id: str) -> int:
        """Return the bytes from a message on to the end of the topic, estimated from the sizes of its ledgers."""

    @operation(Scope.SUBSCRIPTION, Right.CONSUME, owner=Owner.OF_ONE)
    async def analyze_backlog(self, topic: str, subscription: str, start: str | None = None) -> Answer:
        """Read the backlog of a subscription and count its contents. Nothing changes.

        Args:
            start: the message id to begin at, instead of the first message that is not acknowledged.

        Returns:
            ``entries``, ``messages``, ``first`` and ``last`` (``ledger:entry`` or None), and ``is_cut``: the limit on
            entries, bytes or time was reached before the end.
        """

    @operation(Scope.NAMESPACE, Right.TENANT_ADMIN)
    async def clear_namespace(self, namespace: str, bundle: str | None = None, subscription: str | None = None) -> int:
        """Acknowledge everything in the persistent topics of a namespace.

        Args:
            bundle: only topics of this bundle.
            subscription: only subscriptions of this name; None for all durable ones.

        Returns:
            how many subscriptions of topics were cleared.

        Raises:
            NamespaceNotFoundError.
            NotFoundError: there is no such bundle.
        """

    @operation(Scope.NAMESPACE, Right.TENANT_ADMIN)
    async def unsubscribe_namespace(self, namespace: str, subscription: str, bundle: str | None = None) -> int:
        """Delete the subscriptions of one name from the persistent topics of a namespace, or of one bundle of it.

        Returns:
            how many topics had it.

        Raises:
            NamespaceNotFoundError.
            NotFoundError: there is no such bundle.
            ConflictError: a subscription has consumers; others may be deleted by then.
        """

    @operation(Scope.SUBSCRIPTION, Right.CONSUME, owner=Owner.OF_EACH)
    async def properties(self, topic: str, subscription: str) -> dict[str, str]:
        """Return the properties that users attached to a subscription; of a partitioned topic to any partition."""

    @operation(Scope.SUBSCRIPTION, Right.CONSUME, owner=Owner.OF_EACH)
    async def set_properties(self, topic: str, subscription: str, properties: Mapping[str, str]) -> None:
        """Replace the properties of a subscription."""

    @operation(Scope.SUBSCRIPTION, Right.CONSUME, owner=Owner.OF_ONE)
    async def peek(
        self,
        topic: str,
        subscription: str,
        count: Annotated[int, IntegerRange(0, PEEK_MAX)] = 1,
        as_entry: bool = False,
    ) -> list[Answer]:
        """Return the next messages that are not acknowledged, those of a batch one by one. Nothing changes.

        Args:
            as_entry: return only the ``count``th entry ahead, as a whole, or nothing where there are fewer.

        Returns:
            of each message ``message_id``, ``payload`` (bytes), ``key``, ``properties``, ``publish_time_ms``,
            ``event_time_ms``, ``deliver_at_ms``, ``producer_name``, ``sequence_id``, ``batch_size`` (0: no batch),
            ``is_raw`` (the payload is as stored), ``is_masked`` (the policy ``payloads_masked`` hides the payload and
            values of properties from the caller), and ``index`` and ``broker_publish_time_ms``, if the broker noted
            them. Fewer than ``count`` where there are fewer, or they are large.
            Of a whole entry ``message_id``, ``payload`` (decompressed and not taken apart), ``metadata`` (bytes of
            ``MessageMetadata``) and ``broker_metadata`` (bytes of ``BrokerEntryMetadata``).
        """

    @operation(Scope.TOPIC, Right.CONSUME, owner=Owner.OF_ONE)
    async def examine(
        self,
        topic: str,
        initial: str = "latest",
        number: Annotated[int, IntegerRange(1, INTEGER_MAX)] = 1,
        as_entry: bool = False,
    ) -> list[Answer]:
        """Return the messages of the ``number``th entry from ``earliest`` or ``latest``, counted from 1; see ``peek``.

        Raises:
            NotFoundError: the topic has fewer entries.
        """

    @operation(Scope.TOPIC, Right.CONSUME, owner=Owner.OF_ONE)
    async def message(self, topic: str, ledger_id: int, entry_id: int, as_entry: bool = False) -> list[Answer]:
        """Return the messages of one entry; see ``peek``.

        Raises:
            NotFoundError: the topic has no such entry.
        """

    @operation(Scope.TOPIC, Right.CONSUME, owner=Owner.OF_ONE)
    async def trace(self, topic: str, ledger_id: int, entry_id: int) -> Answer:
        """Return where an entry is, and who has had it.

        Returns:
            ``topic``, ``message_id``, ``messages``, ``bytes``, ``published_ms`` (the producer's clock), ``stored_ms``
            (the topic's), ``now_ms``; ``ledger``: its ``state``, quorums and ``ensemble``; ``copies``: of each
            ``bookie`` that is to have one whether it is ``present``, ``missing``, ``damaged``, or there is ``no
            answer``; ``subscriptions``: of each its ``state`` (``waits``, ``delayed``, ``delivered``, ``to be delivered
            again``, ``acknowledged``, ``compacted away``), ``unacknowledged`` messages of a batch that is partly
            acknowledged, ``held_by`` which consumers, and how often it was ``refused`` and ``crashed``.
            Where the message is followed (``tracing.sampled_share``), ``trace_id``, and ``steps``: each with
            ``step`` (``copy``, ``receipt``, ``dispatch``, ``acknowledge``), ``at_ms``, and what it concerns. They are
            in the memory of the broker: a topic that moves leaves them behind.

        Raises:
            NotFoundError: the topic has no such entry, or no longer.
            UnsupportedError: the topic stores nothing.
        """

    @operation(Scope.TOPIC, Right.CONSUME, owner=Owner.OF_ONE)
    async def find(
        self,
        topic: str,
        property_name: str,
        value: str,
        limit: Annotated[int, IntegerRange(1, PEEK_MAX)] = 10,
    ) -> Answer:
        """Return the ids of the newest messages that have a value of a property.

        Args:
            value: the whole value; of ``traceparent`` a trace id is enough.

        Returns:
            ``message_ids``, the newest first; ``entries``, how many were looked at, from the newest one back; and
            ``is_cut``, whether older ones were not: because ``limit`` was reached, or after 10,000 entries, 256 MiB or
            10 s.

        Raises:
            PolicyLimitError: the policy ``payloads_masked`` hides values of properties from the caller. A trace is
                found all the same.
        """

    @operation(Scope.TOPIC, Right.CONSUME, owner=Owner.OF_ONE)
    async def message_id_at(self, topic: str, time_ms: TimeMs) -> str:
        """Return ``ledger:entry:partition`` of the first entry published at or after a time, or of the last one."""

    @operation(Scope.TOPIC, Right.CONSUME, owner=Owner.OF_ONE)
    async def last_message_id(self, topic: str) -> str:
        """Return ``ledger:entry:partition[:batch_index]`` of the newest message, ``-1:-1:...`` when there is none."""
