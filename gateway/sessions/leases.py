"""Handles that stay open between requests, bounded in number: for all, for one address and for one role (I15)."""

from __future__ import annotations

import asyncio
import contextlib
import time
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from heliograph.gateway.config import GatewayConfig
from heliograph.gateway.errors import TooManySessionsError
from heliograph.gateway.http.caller import Caller
from heliograph.gateway.http.limits import Shares

Key = TypeVar("Key", bound=tuple[object, ...])
Handle = TypeVar("Handle")


@dataclass
class LeasedSlot(Generic[Handle]):
    """One handle, possibly still being opened. ``users`` requests hold it now; ``owner`` counts for it."""

    owner: Caller
    last_used: float
    opening: asyncio.Lock = field(default_factory=asyncio.Lock)
    handle: Handle | None = None
    users: int = 0


class Leases(ABC, Generic[Key, Handle]):
    """Open handles by their keys. For a new handle, the least recently used idle handle is closed.

    A subclass defines the handles.

    Attributes:
        what: Of several of them, for errors.
        unit: The same in one word.
        advice: A way out for callers where all are in use.
        setting, idle_setting: Of how many there may be, and of the milliseconds that one stays open unused. The limit
            of one caller is the setting with ``per_caller_max``.
    """

    what: str
    unit: str
    advice: str
    setting: str
    idle_setting: str

    def __init__(self, config: GatewayConfig, clock: Callable[[], float] = time.monotonic) -> None:
        per_caller = self.setting.replace("_max", "_per_caller_max")
        self._shares = Shares(self.what, getattr(config, per_caller), per_caller)
        self._max: int = getattr(config, self.setting)
        self._idle_seconds: float = getattr(config, self.idle_setting) / 1000
        self._clock = clock
        self._slots: OrderedDict[Key, LeasedSlot[Handle]] = OrderedDict()

    @abstractmethod
    async def _open(self, caller: Caller, key: Key) -> Handle:
        """Return a new handle."""

    @abstractmethod
    async def _close_handle(self, handle: Handle) -> None:
        """Close a handle."""

    def _has_ended(self, handle: Handle) -> bool:
        """Return whether a handle has ended by itself, so that another takes its place."""
        return False

    @contextlib.asynccontextmanager
    async def _leased(self, caller: Caller, key: Key) -> AsyncIterator[Handle]:
        """Return a handle, held open until the block ends.

        Raises:
            TooManySessionsError: every handle is in use, or the caller uses as many as it may.
            HeliographError: it cannot be opened.
        """
        slot = await self._slot(key, caller)
        slot.users += 1
        try:
            async with slot.opening:
                if slot.handle is not None and self._has_ended(slot.handle):
                    ended, slot.handle = slot.handle, None
                    await self._close_handle(ended)
                if slot.handle is None:
                    slot.handle = await self._open(caller, key)
            yield slot.handle
        finally:
            slot.users -= 1
            slot.last_used = self._clock()
            if slot.users == 0 and slot.handle is None:
                self._forget(key, slot)
            elif slot.users == 0 and slot.handle is not None and self._slots.get(key) is not slot:
                await self._close_handle(slot.handle)  # dropped while it was held

    async def expire(self, now: float) -> None:
        """Close the handles that no request used for the configured time."""
        await self._close_where(lambda _, slot: slot.users == 0 and now - slot.last_used >= self._idle_seconds)

    async def close(self) -> None:
        await self._close_where(lambda *_: True)

    def __len__(self) -> int:
        return len(self._slots)

    async def _slot(self, key: Key, caller: Caller) -> LeasedSlot[Handle]:
        if key not in self._slots and self._shares.is_full(caller):
            await self._close_idle(lambda slot: slot.owner == caller)
        while key not in self._slots and len(self._slots) >= self._max:  # others may take the room that is made
            if not await self._close_idle(lambda _: True):
                raise TooManySessionsError(
                    f"all {self._max} {self.what} are in use: {self.advice}, or raise {self.setting}",
                    field=self.setting,
                    limit=f"{self._max} {self.unit}",
                )
        slot = self._slots.get(key)
        if slot is None:
            self._shares.take(caller)
            slot = self._slots[key] = LeasedSlot(caller, self._clock())
        self._slots.move_to_end(key)
        return slot

    async def _close_idle(self, fits: Callable[[LeasedSlot[Handle]], bool]) -> bool:
        """Close the least recently used idle handle that fits; return whether there is one."""
        found = next((slot for slot in self._slots.values() if slot.users == 0 and fits(slot)), None)
        await self._close_where(lambda _, slot: slot is found)
        return found is not None

    async def _close_where(self, fits: Callable[[Key, LeasedSlot[Handle]], bool]) -> None:
        """Close handles, those in use once no request holds them."""
        found = [(key, slot) for key, slot in self._slots.items() if fits(key, slot)]
        for key, slot in found:
            self._forget(key, slot)
        for _, slot in found:
            if slot.users == 0 and slot.handle is not None:
                await self._close_handle(slot.handle)

    def _forget(self, key: Key, slot: LeasedSlot[Handle]) -> None:
        if self._slots.get(key) is slot:
            del self._slots[key]
            self._shares.give_back(slot.owner)
