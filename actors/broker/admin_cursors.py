"""Administration of subscriptions and their messages, the same on every broker: what needs the owner is forwarded."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from actors.broker.admin_brokers import run_method
from actors.broker.catalog import Catalog
from actors.broker.owned_cursors import PEEK_MAX, check_properties
from heliograph.errors import BadRequestError, NotFoundError
from heliograph.protocol.message_id import MessageId
from heliograph.protocol.topic_name import TopicName

Json = dict[str, Any]

AtOwner = Callable[..., Awaitable[Any]]


class CursorAdmin:
    """Methods by name. Those that make no sense over several partitions refuse a partitioned topic.

    Args:
        at_owner: runs a method of ``OwnedCursors`` at the owner of a topic or partition.
    """

    def __init__(self, catalog: Catalog, at_owner: AtOwner) -> None:
        self._catalog = catalog
        self._at_owner = at_owner
        self._methods: dict[str, Callable[..., Awaitable[Any]]] = {
            method.__name__: method
            for method in (
                self.skip, self.skip_all, self.expire, self.expire_to, self.reset,
                self.properties, self.set_properties, self.peek, self.examine, self.message, self.message_id_at,
                self.last_message_id,
            )
        }  # fmt: skip

    async def run(self, method: str, arguments: Json) -> Any:
        """Run one of the methods by name.

        Raises:
            BadRequestError: there is no such method, or it takes other arguments.
        """
        return await run_method(self._methods, method, arguments)

    async def skip(self, topic: str, subscription: str, count: int) -> None:
        """Acknowledge the next ``count`` entries that are not acknowledged. Raises SubscriptionNotFoundError."""
        _check_number("count", count)
        await self._at_owner("skip", await self._one(topic), subscription=subscription, count=count)

    async def skip_all(self, topic: str, subscription: str) -> None:
        """Acknowledge everything there is. Raises SubscriptionNotFoundError."""
        await self._on_all("skip", topic, subscription=subscription, count=None)

    async def expire(self, topic: str, subscription: str | None, seconds: int) -> int:
        """Acknowledge what is older, of one subscription or (None) of all durable ones; returns how many entries."""
        _check_number("seconds", seconds)
        return sum(await self._on_all("expire", topic, subscription=subscription, seconds=seconds))

    async def expire_to(self, topic: str, subscription: str, message_id: str, excluded: bool = False) -> int:
        """Acknowledge everything up to a message, and it too unless ``excluded``; returns how many entries."""
        MessageId.parse(message_id)
        name = await self._one(topic)
        return int(
            await self._at_owner(
                "expire_to", name, subscription=subscription, message_id=message_id, excluded=bool(excluded)
            )
        )

    async def reset(self, topic: str, subscription: str, to: str | int, excluded: bool = False) -> None:
        """Have a subscription go on elsewhere; its consumers are disconnected and come back.

        Args:
            to: a time in ms (everything published at or after it is delivered again, nothing before it), ``earliest``,
                ``latest``, or a message id, whose topic is not partitioned.
            excluded: with an id: behind that message.
        """
        if not isinstance(to, str):
            _check_number("to", to)
            await self._on_all("reset_to_time", topic, subscription=subscription, time_ms=to)
            return
        wanted = MessageId.parse(to)
        arguments = {"subscription": subscription, "message_id": to, "excluded": bool(excluded)}
        if wanted in (MessageId.EARLIEST, MessageId.LATEST):
            await self._on_all("reset_to_id", topic, **arguments)
        else:
            await self._at_owner("reset_to_id", await self._one(topic), **arguments)

    async def properties(self, topic: str, subscription: str) -> dict[str, str]:
        """What its user attached to a subscription; of a partitioned topic, to any partition of it."""
        merged: dict[str, str] = {}
        for found in await self._on_all("subscription_properties", topic, subscription=subscription):
            merged.update(found)
        return merged

    async def set_properties(self, topic: str, subscription: str, properties: Mapping[str, str]) -> None:
        """Replace what is attached to a subscription."""
        if not isinstance(properties, Mapping):
            raise BadRequestError("properties are names and values", field="properties")
        check_properties(properties)
        await self._on_all("set_subscription_properties", topic, subscription=subscription, properties=dict(properties))

    async def peek(self, topic: str, subscription: str, count: int = 1) -> list[Json]:
        """The next messages that are not acknowledged, a batch one by one; nothing is acknowledged or held.

        Returns:
            see ``stored_message.messages_of``; fewer than ``count`` where there are fewer, or they are large.
        """
        _check_number("count", count, PEEK_MAX)
        found: list[Json] = await self._at_owner("peek", await self._one(topic), subscription=subscription, count=count)
        return found

    async def examine(self, topic: str, initial: str = "latest", number: int = 1) -> list[Json]:
        """The messages of the ``number``th entry from the ``earliest`` or the ``latest`` one, counted from 1."""
        if initial not in ("earliest", "latest"):
            raise BadRequestError(f"{initial!r} is no end", field="initialPosition", limit="earliest, latest")
        _check_number("number", number, least=1)
        found: list[Json] = await self._at_owner("examine", await self._one(topic), initial=initial, number=number)
        return found

    async def message(self, topic: str, ledger_id: int, entry_id: int) -> list[Json]:
        """The messages of one entry. Raises NotFoundError."""
        found: list[Json] = await self._at_owner(
            "message", await self._one(topic), ledger_id=ledger_id, entry_id=entry_id
        )
        return found

    async def message_id_at(self, topic: str, time_ms: int) -> str:
        """The first message published at or after a time, or the last one: ``ledger:entry:partition``."""
        _check_number("time_ms", time_ms)
        return str(await self._at_owner("message_id_at", await self._one(topic), time_ms=time_ms))

    async def last_message_id(self, topic: str) -> str:
        """The newest message: ``ledger:entry:partition[:batch_index]``, ``-1:-1:...`` when there is none."""
        return str(await self._at_owner("last_message_id", await self._one(topic)))

    async def _one(self, topic: str) -> TopicName:
        name = TopicName.parse(topic)
        if await self._catalog.partitions(name):
            raise BadRequestError(f"{name} is partitioned: ask for one of its partitions", field="topic")
        return name

    async def _on_all(self, method: str, topic: str, **arguments: Any) -> list[Any]:
        """A method on every partition. A subscription may miss on some partitions, not on all."""
        name = TopicName.parse(topic)
        answers, missing = [], None
        for part in name.partitions(await self._catalog.partitions(name)):
            try:
                answers.append(await self._at_owner(method, part, **arguments))
            except NotFoundError as error:
                missing = error
        if missing is not None and not answers:
            raise missing
        return answers


def _check_number(name: str, value: Any, most: int = (1 << 63) - 1, least: int = 0) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise BadRequestError(f"{name} is {value!r}", field=name, limit=f"{least} to {most}")
