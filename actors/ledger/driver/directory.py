"""The bookies that are registered now, kept current by watches on the metadata store."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from heliograph.metadata.model import BookieRegistration
from heliograph.metadata.operator_records import BookieRack
from heliograph.metadata.paths import BOOKIES_AVAILABLE, BOOKIES_RACKS, BOOKIES_READONLY
from heliograph.metadata.recipes.record_cache import RecordCache
from heliograph.metadata.store import MetadataStore


class BookieDirectory:
    """Registrations of writable and of read-only bookies, and the last known address of every bookie seen.

    The rack of a registration is overridden by the rack that an operator set for the bookie.
    """

    def __init__(self, store: MetadataStore) -> None:
        self._writable = RecordCache(store, BOOKIES_AVAILABLE, BookieRegistration, self._on_change)
        self._readonly = RecordCache(store, BOOKIES_READONLY, BookieRegistration, self._on_change)
        self._racks = RecordCache(store, BOOKIES_RACKS, BookieRack, self._on_change)
        self._in_racks: dict[str, BookieRegistration] = {}  # the writable ones, with the racks that hold
        self._registered: dict[str, BookieRegistration] = {}  # those and the read-only ones, with the racks that hold
        self._addresses: dict[str, str] = {}
        self._listeners: list[Callable[[], None]] = []

    @property
    def writable(self) -> Mapping[str, BookieRegistration]:
        return self._in_racks

    @property
    def readonly(self) -> Mapping[str, BookieRegistration]:
        """Return the registrations of read-only bookies, by bookie id."""
        return self._readonly.records

    @property
    def registered(self) -> Mapping[str, BookieRegistration]:
        """Return the registrations of all bookies, writable and read-only, by bookie id."""
        return self._registered

    async def start(self) -> None:
        """Read the registrations and watch them.

        Raises:
            ConnectionLossError, SessionExpiredError: the store could not be reached.
        """
        await self._racks.start()
        await self._writable.start()
        await self._readonly.start()

    def address_of(self, bookie_id: str) -> str | None:
        """Return the ``host:port`` that was registered last, None for a bookie never seen."""
        return self._addresses.get(bookie_id)

    def is_registered(self, bookie_id: str) -> bool:
        """Whether the bookie is registered now, writable or read-only."""
        return bookie_id in self.writable or bookie_id in self.readonly

    def add_listener(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` after every change."""
        self._listeners.append(listener)

    async def close(self) -> None:
        await self._writable.stop()
        await self._readonly.stop()
        await self._racks.stop()

    def _on_change(self) -> None:
        racks = self._racks.records
        self._registered = {
            name: replace(found, rack=racks[name].rack) if name in racks else found
            for name, found in {**self._readonly.records, **self._writable.records}.items()
        }
        self._in_racks = {name: self._registered[name] for name in self._writable.records}
        for registration in self._registered.values():
            self._addresses[registration.bookie_id] = registration.address
        for listener in self._listeners:
            listener()
