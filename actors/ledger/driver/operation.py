"""Operations with one result: reads, recoveries, deletions, repairs. Each is a core run to its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from actors.ledger.driver.shell import Shell
from actors.ledger.driver.world import BookieWorld
from actors.ledger.effects import (
    CheckFinished,
    CopiesMissing,
    CopyDamaged,
    Deleted,
    Effect,
    Failed,
    LacFound,
    ReadFinished,
    RecoveryFinished,
    RepairFinished,
)
from heliograph.errors import HeliographError


class Operation(Shell):
    """Runs one core until it reports an end."""

    def __init__(self, world: BookieWorld, core: Any) -> None:
        super().__init__(world, core)
        self.bookies_lacking: set[str] = set()  # bookies that were found to lack copies
        self._end: asyncio.Future[Any] = world.loop.create_future()

    async def result(self) -> Any:
        """Start the core and wait for the effect that ends it.

        Raises:
            the error in ``Failed``.
            AlreadyClosedError: the world ended.
        """
        world = self.world
        world.check_open()
        world.ticking[self] = None
        try:
            self.run(self.core.start(world.now()))
            return await self._end
        finally:
            world.ticking.pop(self, None)

    def run(self, effects: Iterable[Effect]) -> None:
        """Run effects in order, unless it ended: an operation whose caller left asks nothing more of anybody."""
        if not self._end.done():
            super().run(effects)

    def abort(self, error: HeliographError) -> None:
        """End at once with ``error``; late answers are dropped by nobody waiting for them."""
        if not self._end.done():
            self._end.set_exception(error)

    def _on_end(self, effect: Any) -> None:
        if not self._end.done():
            self._end.set_result(effect)

    def _on_failed(self, effect: Failed) -> None:
        self.abort(effect.error)

    def _on_lacking(self, effect: CopiesMissing | CopyDamaged) -> None:
        self.bookies_lacking.add(effect.bookie_id)

    handlers: ClassVar[dict[type[Any], Callable[[Any, Any], None]]] = {
        **Shell.handlers,
        Failed: _on_failed,
        CopiesMissing: _on_lacking,
        CopyDamaged: _on_lacking,
        **dict.fromkeys((ReadFinished, LacFound, RecoveryFinished, RepairFinished, CheckFinished, Deleted), _on_end),
    }
