"""Operations with one result: reads, recoveries, deletions, repairs, checks. Each runs a core to its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from typing_extensions import override

from heliograph.actors.ledger.driver.context import BookieContext
from heliograph.actors.ledger.driver.effect_runner import EffectRunner
from heliograph.actors.ledger.effects import (
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
from heliograph.base.errors import HeliographError


class Operation(EffectRunner):
    """Runs one core until it reports its end."""

    def __init__(self, context: BookieContext, core: Any) -> None:
        super().__init__(context, core)
        self.bookies_lacking: set[str] = set()  # bookies found to lack copies
        self.bookies_damaged: set[str] = set()  # those of them with a copy that cannot be read
        self._end: asyncio.Future[Any] = context.loop.create_future()

    async def result(self) -> Any:
        """Start the core and wait for the effect that ends it.

        Raises:
            HeliographError: the error that the core reported in ``Failed``.
            AlreadyClosedError: the context was closed.
        """
        context = self.context
        context.check_open()
        context.begin_ticking(self)
        try:
            self.run(self.core.start(context.now()))
            return await self._end
        finally:
            context.ticking.pop(self, None)

    @override
    def run(self, effects: Iterable[Effect]) -> None:
        """Run effects in order, unless the operation has ended: without its caller it sends no requests."""
        if not self._end.done():
            super().run(effects)

    def abort(self, error: HeliographError) -> None:
        """End at once with ``error``. Late answers are ignored."""
        if not self._end.done():
            self._end.set_exception(error)

    def _on_end(self, effect: Any) -> None:
        if not self._end.done():
            self._end.set_result(effect)

    def _on_failed(self, effect: Failed) -> None:
        self.abort(effect.error)

    def _on_lacking(self, effect: CopiesMissing | CopyDamaged) -> None:
        self.bookies_lacking.add(effect.bookie_id)
        if isinstance(effect, CopyDamaged) and not effect.is_missing:
            self.bookies_damaged.add(effect.bookie_id)

    handlers: ClassVar[dict[type[Any], Callable[[Any, Any], None]]] = {
        **EffectRunner.handlers,
        Failed: _on_failed,
        CopiesMissing: _on_lacking,
        CopyDamaged: _on_lacking,
        **dict.fromkeys((ReadFinished, LacFound, RecoveryFinished, RepairFinished, CheckFinished, Deleted), _on_end),
    }
