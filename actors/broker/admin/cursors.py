"""The operations on cursors: what needs the topic's owner is forwarded to it."""

from __future__ import annotations

from collections.abc import Mapping

from typing_extensions import override

from heliograph.actors.broker.admin.forwarding import OwnerCalls
from heliograph.actors.broker.admin.owned_cursors import check_properties
from heliograph.base.errors import BadRequestError
from heliograph.operations.cursors import CursorOperations
from heliograph.operations.table import INTEGER_MAX, IntegerRange
from heliograph.protocol.message_id import MessageId


class CursorAdminService(CursorOperations):
    """Operations that are not overridden here run at the owner by the method of ``OwnedCursors`` of the same name."""

    def __init__(self, owners: OwnerCalls) -> None:
        self._owners = owners
        self.call = owners.call

    @override
    async def skip_all(self, topic: str, subscription: str) -> None:
        await self._owners.at_each_that_has_it("skip", topic, subscription=subscription, count=None)

    @override
    async def expire(self, topic: str, subscription: str | None, seconds: int) -> int:
        found = await self._owners.at_each_that_has_it("expire", topic, subscription=subscription, seconds=seconds)
        return sum(found)

    @override
    async def reset(self, topic: str, subscription: str, to: str | int, excluded: bool = False) -> None:
        if not isinstance(to, str):
            IntegerRange(0, INTEGER_MAX).check("to", to)
            await self._owners.at_each_that_has_it("reset_to_time", topic, subscription=subscription, time_ms=to)
            return
        is_end = MessageId.parse(to) in (MessageId.EARLIEST, MessageId.LATEST)
        run = self._owners.at_each_that_has_it if is_end else self._owners.at_one
        await run("reset_to_id", topic, subscription=subscription, message_id=to, excluded=bool(excluded))

    @override
    async def properties(self, topic: str, subscription: str) -> dict[str, str]:
        merged: dict[str, str] = {}
        for found in await self._owners.at_each_that_has_it(
            "subscription_properties", topic, subscription=subscription
        ):
            merged.update(found)
        return merged

    @override
    async def set_properties(self, topic: str, subscription: str, properties: Mapping[str, str]) -> None:
        if not isinstance(properties, Mapping):
            raise BadRequestError("properties are names and values", field="properties")
        check_properties(properties)
        await self._owners.at_each_that_has_it(
            "set_subscription_properties", topic, subscription=subscription, properties=dict(properties)
        )
