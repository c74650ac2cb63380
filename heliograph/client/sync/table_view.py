"""The sync table view; ``make handles`` generates this file from ``heliograph/client/aio/table_view.py``."""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, KeysView, ValuesView

from typing_extensions import override

from heliograph.base.clock import Duration
from heliograph.client.aio.table_view import AsyncTableView
from heliograph.client.sync.handle import TableViewHandle
from heliograph.client.types import Received


class TableView(TableViewHandle[Received]):
    """The latest value of each key of a topic, partitioned or not, as a mapping in memory.

    Threads may share it. In a forked child it opens connections of its own.

    Opening reads the topic to its end, from its compacted form if it has one; then the view follows the topic. Messages
    without a key do not count. An empty payload deletes its key. A value that does not fit the schema is logged, and
    the key keeps the value before. The view holds all keys with their values: more than ``keys_max`` keys end it.

    Opening raises the errors of ``Reader``, and QuotaExceededError for too many keys. Reading a view that was
    not opened, or was closed, raises BadRequestError or AlreadyClosedError; reading one that lost its topic raises why.
    """

    @property
    def topic(self) -> str:
        """Return the full name of the topic."""
        return self.options.topic

    def __getitem__(self, key: str) -> Received:
        """Return the latest value of a key.

        Raises:
            KeyError: There is no such key.
        """
        return self._async().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        """Return whether there is a value of a key."""
        return self._async().__contains__(key)

    def __len__(self) -> int:
        """Return the number of keys."""
        return self._async().__len__()

    def __iter__(self) -> Iterator[str]:
        """Return an iterator of the keys of this moment."""
        return iter(self.snapshot())

    def keys(self) -> KeysView[str]:
        """Return the keys of this moment."""
        return self.snapshot().keys()

    def values(self) -> ValuesView[Received]:
        """Return the values of this moment."""
        return self.snapshot().values()

    def items(self) -> ItemsView[str, Received]:
        """Return the keys and values of this moment."""
        return self.snapshot().items()

    def snapshot(self) -> dict[str, Received]:
        """Return a copy of all keys and values at this moment."""
        return self._async().snapshot()

    def refresh(self, timeout: Duration | None = None) -> None:
        """Wait until the view reflects everything that was published before the call.

        Args:
            timeout: Seconds to wait, or a timedelta; None waits as long as it takes.

        Raises:
            RequestTimeoutError: That took longer.
            QuotaExceededError, HeliographError: Why the view has ended.
            ConnectionLostError: The broker could not be reached in time.
        """
        self._run(self._async().refresh(timeout))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.topic})"

    @override
    def _make(self) -> AsyncTableView[Received]:
        return AsyncTableView(self.client.aio(), self.options)
