"""Administration through the brokers' actors: topics, subscriptions, statistics.

Any broker answers any call (it forwards to the owner where needed), so a call goes to one of them and, when that one
cannot be reached, to another. A call whose outcome is unknown is repeated; where the repetition finds the wish already
fulfilled (the topic to be created exists), that counts as success. Only ``publish`` and ``cursors.skip`` are never
repeated.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from heliograph import discovery
from heliograph.admin_brokers import Brokers, BrokersSync
from heliograph.admin_cursors import Cursors, CursorsSync
from heliograph.admin_namespaces import Namespaces, NamespacesSync
from heliograph.admin_schemas import Schemas, SchemasSync
from heliograph.config import DEFAULT_NAMESPACE
from heliograph.errors import (
    Advice,
    ClusterNotFoundError,
    ConflictError,
    ConnectionLostError,
    HeliographError,
    NamespaceNotFoundError,
    NotFoundError,
    RequestTimeoutError,
    SubscriptionExistsError,
    SubscriptionNotFoundError,
    TopicExistsError,
    TopicNotFoundError,
)

T = TypeVar("T")
Answer = dict[str, Any]

CALL_TIMEOUT_SECONDS = 30.0  # of one attempt at one broker
ATTEMPTS_MAX = 8
RETRY_PAUSE_SECONDS = 0.5  # a killed broker is back, or its topics are elsewhere, in about 2 s

# What a repeated call raises when the attempt before it, of unknown outcome, did happen.
_FULFILLED: Mapping[str, type[HeliographError]] = {
    "create_topic": TopicExistsError,
    "delete_topic": TopicNotFoundError,
    "create_subscription": SubscriptionExistsError,
    "delete_subscription": SubscriptionNotFoundError,
    "namespaces.create_tenant": ConflictError,
    "namespaces.delete_tenant": NotFoundError,
    "namespaces.create": ConflictError,
    "namespaces.delete": NamespaceNotFoundError,
}


class Admin:
    """The async form. Not bound to an event loop; needs a process that is in Ray or can join it.

    Args:
        namespace: Ray namespace of the cluster.

    Every method raises ClusterNotFoundError when there is no cluster or no broker of it answers, RequestTimeoutError
    when the outcome stayed unknown, and otherwise what the broker's method of the same name raises.
    """

    def __init__(self, namespace: str = DEFAULT_NAMESPACE) -> None:
        self._namespace = namespace
        self.schemas = Schemas(self._call)
        self.cursors = Cursors(self._call)
        self.namespaces = Namespaces(self._call)
        self.brokers = Brokers(self._call)
        self._preferred: str | None = None  # the broker that answered last

    async def lookup(self, topic: str) -> dict[str, str]:
        """The topic's owner: ``broker_id``, ``service_url``, ``actor_name``."""
        answer: dict[str, str] = await self._call("lookup", topic)
        return answer

    async def create_topic(self, topic: str, partitions: int = 0, persistence: Mapping[str, int] | None = None) -> None:
        """Create a topic, partitioned if ``partitions`` is above 0.

        Args:
            persistence: ``ensemble_size``, ``write_quorum``, ``ack_quorum``; None: the namespace's.

        Raises:
            TopicExistsError, InvalidTopicNameError, InvalidQuorumError.
        """
        await self._call("create_topic", topic, partitions, dict(persistence) if persistence else None)

    async def delete_topic(self, topic: str, force: bool = False) -> None:
        """Delete a topic with its subscriptions and messages.

        Raises:
            TopicNotFoundError, TopicBusyError (in use, and not ``force``).
        """
        await self._call("delete_topic", topic, force)

    async def list_topics(self, namespace: str = "public/default") -> list[Answer]:
        """``name`` and ``partitions`` (0: not partitioned) of each topic of a Heliograph namespace."""
        answer: list[Answer] = await self._call("list_topics", namespace)
        return answer

    async def update_partitions(self, topic: str, partitions: int) -> None:
        """Have a partitioned topic grow; its subscriptions are on the new partitions before anybody publishes there.

        Raises:
            TopicNotFoundError: it is not a partitioned topic.
            BadRequestError: it has more partitions already.
        """
        await self._call("update_partitions", topic, partitions)

    async def create_missing_partitions(self, topic: str) -> int:
        """Create the partitions that a partitioned topic should have and has not; returns how many."""
        return int(await self._call("create_missing_partitions", topic))

    async def unload_topic(self, topic: str) -> None:
        """Close a topic where it is served; the next request opens it again, and clients do so by themselves."""
        await self._call("unload_topic", topic)

    async def partitions(self, topic: str, may_create: bool = False) -> int:
        """How many partitions the topic has; 0: not partitioned.

        Args:
            may_create: the topic is about to be used; one that is missing gets partitions where policies say so.

        Raises:
            TopicNotFoundError.
        """
        return int(await self._call("partitions", topic, may_create))

    async def topic_stats(self, topic: str) -> Answer:
        """Rates, counts, subscriptions and clients, in Pulsar's shape."""
        answer: Answer = await self._call("topic_stats", topic)
        return answer

    async def topic_internal_stats(self, topic: str) -> Answer:
        """Ledgers and cursors, in Pulsar's shape."""
        answer: Answer = await self._call("topic_internal_stats", topic)
        return answer

    async def subscriptions(self, topic: str) -> list[str]:
        """Names of the topic's subscriptions."""
        return list(await self._call("subscriptions", topic))

    async def create_subscription(self, topic: str, name: str, position: str = "latest") -> None:
        """Create a subscription at ``latest`` or ``earliest``.

        Raises:
            SubscriptionExistsError, TopicNotFoundError.
        """
        await self._call("create_subscription", topic, name, position)

    async def delete_subscription(self, topic: str, name: str, force: bool = False) -> None:
        """Delete a subscription; ``force`` disconnects its consumers.

        Raises:
            SubscriptionNotFoundError, TopicNotFoundError, ConsumerBusyError.
        """
        await self._call("delete_subscription", topic, name, force)

    async def terminate_topic(self, topic: str) -> dict[str, str]:
        """End a topic, with all partitions: it can be read, and nothing is published to it any more. Idempotent.

        Returns:
            ``ledger:entry`` of the last message by name of the topic or partition; entry -1 for none.

        Raises:
            TopicNotFoundError.
            ServiceNotReadyError, PersistenceError: not now; some partitions may be ended.
        """
        return dict(await self._call("terminate_topic", topic))

    async def compact_topic(self, topic: str) -> None:
        """Begin to keep the latest message of each key for those who read compacted.

        Raises:
            ConflictError: that is under way already.
        """
        await self._call("compact_topic", topic)

    async def compaction_status(self, topic: str) -> Answer:
        """``status`` (NOT_RUN, RUNNING, SUCCESS, ERROR) and ``lastError`` of the last compaction."""
        return dict(await self._call("compaction_status", topic))

    async def ledger_ranges(self, topic: str) -> list[Answer]:
        """``ledger_id``, ``first_entry_id``, ``last_entry_id`` of everything acknowledged up to now, in order."""
        answer: list[Answer] = await self._call("ledger_ranges", topic)
        return answer

    async def publish(
        self, topic: str, payloads: Sequence[bytes], keys: Sequence[str | None] | None = None
    ) -> list[str]:
        """Publish through the actor and return the message ids. Never repeated.

        Raises:
            ConnectionLostError, RequestTimeoutError: the outcome is unknown.
        """
        return list(await self._call("publish", topic, list(payloads), list(keys) if keys else None))

    async def _call(self, method: str, *arguments: Any) -> Any:
        failure: HeliographError | None = None
        may_have_happened = False
        for attempt in range(ATTEMPTS_MAX):
            if attempt:
                await asyncio.sleep(RETRY_PAUSE_SECONDS)
            name = await self._choose(attempt)
            try:
                answer = await self._call_one(name, method, arguments)
            except HeliographError as error:
                self._preferred = None
                if may_have_happened and isinstance(error, _FULFILLED.get(_wish(method, arguments), ())):
                    return None
                if error.advice is Advice.STOP or _is_once(method, arguments):
                    raise
                failure = error
                may_have_happened = may_have_happened or error.advice is Advice.RETRY
            else:
                self._preferred = name
                return answer
        assert failure is not None, "every attempt ended in an answer or an error"
        raise failure

    async def _choose(self, attempt: int) -> str:
        if self._preferred is not None and attempt == 0:
            return self._preferred
        names = await asyncio.to_thread(discovery.broker_names, self._namespace)
        return random.choice(names)

    async def _call_one(self, name: str, method: str, arguments: Sequence[Any]) -> Any:
        import ray.exceptions

        try:
            handle = await asyncio.to_thread(discovery.actor, name, self._namespace)
        except ClusterNotFoundError as error:
            raise ConnectionLostError(str(error)) from error  # this broker is gone; another may answer
        reference = getattr(handle, method).remote(*arguments)
        try:
            return await asyncio.wait_for(_awaited(reference), CALL_TIMEOUT_SECONDS)
        except TimeoutError:
            raise RequestTimeoutError(f"{name} did not answer {method} within {CALL_TIMEOUT_SECONDS:.0f} s") from None
        except ray.exceptions.RayError as error:
            raise unwrapped(error, name) from error


class AdminSync:
    """The blocking form: the same methods, each run to its end. Safe to share between threads."""

    def __init__(self, namespace: str = DEFAULT_NAMESPACE) -> None:
        self._admin = Admin(namespace)
        self.schemas = SchemasSync(self._admin.schemas, _blocking)
        self.cursors = CursorsSync(self._admin.cursors, _blocking)
        self.namespaces = NamespacesSync(self._admin.namespaces, _blocking)
        self.brokers = BrokersSync(self._admin.brokers, _blocking)

    def lookup(self, topic: str) -> dict[str, str]:
        """As ``Admin.lookup``."""
        return _blocking(self._admin.lookup(topic))

    def create_topic(self, topic: str, partitions: int = 0, persistence: Mapping[str, int] | None = None) -> None:
        """As ``Admin.create_topic``."""
        _blocking(self._admin.create_topic(topic, partitions, persistence))

    def delete_topic(self, topic: str, force: bool = False) -> None:
        """As ``Admin.delete_topic``."""
        _blocking(self._admin.delete_topic(topic, force))

    def list_topics(self, namespace: str = "public/default") -> list[Answer]:
        """As ``Admin.list_topics``."""
        return _blocking(self._admin.list_topics(namespace))

    def update_partitions(self, topic: str, partitions: int) -> None:
        """As ``Admin.update_partitions``."""
        _blocking(self._admin.update_partitions(topic, partitions))

    def create_missing_partitions(self, topic: str) -> int:
        """As ``Admin.create_missing_partitions``."""
        return _blocking(self._admin.create_missing_partitions(topic))

    def unload_topic(self, topic: str) -> None:
        """As ``Admin.unload_topic``."""
        _blocking(self._admin.unload_topic(topic))

    def partitions(self, topic: str, may_create: bool = False) -> int:
        """As ``Admin.partitions``."""
        return _blocking(self._admin.partitions(topic, may_create))

    def topic_stats(self, topic: str) -> Answer:
        """As ``Admin.topic_stats``."""
        return _blocking(self._admin.topic_stats(topic))

    def topic_internal_stats(self, topic: str) -> Answer:
        """As ``Admin.topic_internal_stats``."""
        return _blocking(self._admin.topic_internal_stats(topic))

    def subscriptions(self, topic: str) -> list[str]:
        """As ``Admin.subscriptions``."""
        return _blocking(self._admin.subscriptions(topic))

    def create_subscription(self, topic: str, name: str, position: str = "latest") -> None:
        """As ``Admin.create_subscription``."""
        _blocking(self._admin.create_subscription(topic, name, position))

    def delete_subscription(self, topic: str, name: str, force: bool = False) -> None:
        """As ``Admin.delete_subscription``."""
        _blocking(self._admin.delete_subscription(topic, name, force))

    def terminate_topic(self, topic: str) -> dict[str, str]:
        """As ``Admin.terminate_topic``."""
        return _blocking(self._admin.terminate_topic(topic))

    def compact_topic(self, topic: str) -> None:
        """As ``Admin.compact_topic``."""
        _blocking(self._admin.compact_topic(topic))

    def compaction_status(self, topic: str) -> Answer:
        """As ``Admin.compaction_status``."""
        return _blocking(self._admin.compaction_status(topic))

    def ledger_ranges(self, topic: str) -> list[Answer]:
        """As ``Admin.ledger_ranges``."""
        return _blocking(self._admin.ledger_ranges(topic))

    def publish(self, topic: str, payloads: Sequence[bytes], keys: Sequence[str | None] | None = None) -> list[str]:
        """As ``Admin.publish``."""
        return _blocking(self._admin.publish(topic, payloads, keys))


def _wish(method: str, arguments: Sequence[Any]) -> str:
    """What a call asks for, as ``_FULFILLED`` names it."""
    if method == "administer_namespaces":
        return f"namespaces.{arguments[0]}"
    return method


def unwrapped(error: BaseException, name: str) -> HeliographError:
    """What an actor raised, out of Ray's wrapping; trouble of Ray's own with reaching it is a lost connection."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, HeliographError):
        return cause
    text = (str(cause or error).strip() or type(error).__name__).splitlines()[0]
    if cause is not None:
        return HeliographError(f"{name} failed with {type(cause).__name__}: {text}")
    return ConnectionLostError(f"{name} cannot be reached now: {text}")


def _is_once(method: str, arguments: Sequence[Any]) -> bool:
    """Whether doing it twice is more than doing it once: publishing, and skipping so many messages."""
    return method == "publish" or (method == "administer_cursors" and arguments[0] == "skip")


async def _awaited(reference: Any) -> Any:
    return await reference


def _blocking(work: Coroutine[Any, Any, T]) -> T:
    """Run to the end, in a thread of its own where the caller's thread runs an event loop already."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    outcome: list[T] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            outcome.append(asyncio.run(work))
        except BaseException as error:  # carried over to the caller's thread
            failure.append(error)

    thread = threading.Thread(target=run, name="heliograph-admin")
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
    return outcome[0]
