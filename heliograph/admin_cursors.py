"""Administration of subscriptions and a look at their messages: ``admin.cursors``."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from heliograph.admin_schemas import Call

Answer = dict[str, Any]


class Cursors:
    """The async form. Ids of messages are text, ``ledger:entry[:partition[:batch_index]]``; times are ms since the
    epoch. Every method raises TopicNotFoundError and SubscriptionNotFoundError; BadRequestError where a partitioned
    topic is named and one partition is meant.

    Args:
        call: runs a method of the brokers' admin interface.
    """

    def __init__(self, call: Call) -> None:
        self._call = call

    async def skip(self, topic: str, subscription: str, count: int) -> None:
        """Acknowledge the next ``count`` entries that are not acknowledged. Not for a partitioned topic."""
        await self._run("skip", topic=topic, subscription=subscription, count=count)

    async def skip_all(self, topic: str, subscription: str) -> None:
        """Acknowledge everything there is."""
        await self._run("skip_all", topic=topic, subscription=subscription)

    async def expire(self, topic: str, subscription: str | None, seconds: int) -> int:
        """Acknowledge what is older, of one subscription or (None) of all; returns how many entries that were."""
        return int(await self._run("expire", topic=topic, subscription=subscription, seconds=seconds))

    async def expire_to(self, topic: str, subscription: str, message_id: str, excluded: bool = False) -> int:
        """Acknowledge everything up to a message, and it too unless ``excluded``. Not for a partitioned topic."""
        found = await self._run(
            "expire_to", topic=topic, subscription=subscription, message_id=message_id, excluded=excluded
        )
        return int(found)

    async def reset(self, topic: str, subscription: str, to: str | int, excluded: bool = False) -> None:
        """Have a subscription go on elsewhere; its consumers are disconnected and come back.

        Args:
            to: a time (everything published at or after it is delivered again), ``earliest``, ``latest``, or a
                message id, whose topic is not partitioned.
            excluded: with an id: behind that message.
        """
        await self._run("reset", topic=topic, subscription=subscription, to=to, excluded=excluded)

    async def properties(self, topic: str, subscription: str) -> dict[str, str]:
        """What is attached to a subscription."""
        return dict(await self._run("properties", topic=topic, subscription=subscription))

    async def set_properties(self, topic: str, subscription: str, properties: Mapping[str, str]) -> None:
        """Replace what is attached to a subscription."""
        await self._run("set_properties", topic=topic, subscription=subscription, properties=dict(properties))

    async def peek(self, topic: str, subscription: str, count: int = 1) -> list[Answer]:
        """The next messages that are not acknowledged, each with ``message_id``, ``payload`` (bytes), ``key``,
        ``properties``, ``publish_time_ms``, ``event_time_ms``, ``deliver_at_ms``, ``batch_size``. Nothing changes."""
        return list(await self._run("peek", topic=topic, subscription=subscription, count=count))

    async def examine(self, topic: str, initial: str = "latest", number: int = 1) -> list[Answer]:
        """The messages of the ``number``th entry from the ``earliest`` or ``latest``, from 1 on; see ``peek``."""
        return list(await self._run("examine", topic=topic, initial=initial, number=number))

    async def message(self, topic: str, ledger_id: int, entry_id: int) -> list[Answer]:
        """The messages of one entry; see ``peek``. Raises NotFoundError."""
        return list(await self._run("message", topic=topic, ledger_id=ledger_id, entry_id=entry_id))

    async def message_id_at(self, topic: str, time_ms: int) -> str:
        """The first message published at or after a time, or the last one."""
        return str(await self._run("message_id_at", topic=topic, time_ms=time_ms))

    async def last_message_id(self, topic: str) -> str:
        """The newest message; both numbers are -1 when there is none."""
        return str(await self._run("last_message_id", topic=topic))

    async def _run(self, method: str, **arguments: Any) -> Any:
        return await self._call("administer_cursors", method, arguments)


class CursorsSync:
    """The blocking form: the same methods.

    Args:
        run: runs a coroutine to its end.
    """

    def __init__(self, cursors: Cursors, run: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        self._cursors = cursors
        self._run = run

    def skip(self, topic: str, subscription: str, count: int) -> None:
        """As ``Cursors.skip``."""
        self._run(self._cursors.skip(topic, subscription, count))

    def skip_all(self, topic: str, subscription: str) -> None:
        """As ``Cursors.skip_all``."""
        self._run(self._cursors.skip_all(topic, subscription))

    def expire(self, topic: str, subscription: str | None, seconds: int) -> int:
        """As ``Cursors.expire``."""
        return int(self._run(self._cursors.expire(topic, subscription, seconds)))

    def expire_to(self, topic: str, subscription: str, message_id: str, excluded: bool = False) -> int:
        """As ``Cursors.expire_to``."""
        return int(self._run(self._cursors.expire_to(topic, subscription, message_id, excluded)))

    def reset(self, topic: str, subscription: str, to: str | int, excluded: bool = False) -> None:
        """As ``Cursors.reset``."""
        self._run(self._cursors.reset(topic, subscription, to, excluded))

    def properties(self, topic: str, subscription: str) -> dict[str, str]:
        """As ``Cursors.properties``."""
        return dict(self._run(self._cursors.properties(topic, subscription)))

    def set_properties(self, topic: str, subscription: str, properties: Mapping[str, str]) -> None:
        """As ``Cursors.set_properties``."""
        self._run(self._cursors.set_properties(topic, subscription, properties))

    def peek(self, topic: str, subscription: str, count: int = 1) -> list[Answer]:
        """As ``Cursors.peek``."""
        return list(self._run(self._cursors.peek(topic, subscription, count)))

    def examine(self, topic: str, initial: str = "latest", number: int = 1) -> list[Answer]:
        """As ``Cursors.examine``."""
        return list(self._run(self._cursors.examine(topic, initial, number)))

    def message(self, topic: str, ledger_id: int, entry_id: int) -> list[Answer]:
        """As ``Cursors.message``."""
        return list(self._run(self._cursors.message(topic, ledger_id, entry_id)))

    def message_id_at(self, topic: str, time_ms: int) -> str:
        """As ``Cursors.message_id_at``."""
        return str(self._run(self._cursors.message_id_at(topic, time_ms)))

    def last_message_id(self, topic: str) -> str:
        """As ``Cursors.last_message_id``."""
        return str(self._run(self._cursors.last_message_id(topic)))
