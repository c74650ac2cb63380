"""The producers that a client keeps open for requests and replies."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from heliograph.client.aio.producer.producer import AsyncProducer
from heliograph.client.aio.session import HandleOwner
from heliograph.client.options import ProducerOptions

PRODUCERS_MAX = 256  # I15


class KeptProducers:
    """Producers by purpose; the least recently used one is closed to make room.

    Args:
        client: Whose they are.
    """

    def __init__(self, client: HandleOwner) -> None:
        self._client = client
        self._kept: OrderedDict[object, AsyncProducer[Any]] = OrderedDict()

    def get(self, key: object, options: Callable[[], ProducerOptions]) -> AsyncProducer[Any]:
        """Return a producer, which opens at its first use.

        The caller sends by it before it awaits anything else, so that none is closed between the two. Closing waits
        for what is being sent.
        """
        found = self._kept.get(key)
        if found is None:
            found = self._kept[key] = AsyncProducer(self._client, options())
        self._kept.move_to_end(key)
        return found

    async def make_room(self) -> None:
        """Close those above the bound. Raise nothing that a caller of another producer could act on."""
        while len(self._kept) > PRODUCERS_MAX:
            _, oldest = self._kept.popitem(last=False)
            await oldest.close()

    async def forget(self, key: object) -> None:
        """Close one now, after it failed for good."""
        if (found := self._kept.pop(key, None)) is not None:
            await found.close()

    async def close(self) -> None:
        """Close all."""
        for key in list(self._kept):
            await self.forget(key)
