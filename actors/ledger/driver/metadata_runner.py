"""Runs the effects of cores that read and change the records of their ledgers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from heliograph.actors.ledger.driver.context import DriverContext
from heliograph.actors.ledger.driver.effect_runner import EffectRunner
from heliograph.actors.ledger.driver.operation import Operation
from heliograph.actors.ledger.effects import DeleteMetadata, ReadMetadata, WriteMetadata
from heliograph.base.errors import HeliographError
from heliograph.metadata.codec import encode
from heliograph.metadata.errors import BadVersionError, MetadataError, NoNodeError, RecordError, ValueTooLargeError
from heliograph.metadata.model import LedgerMetadata
from heliograph.metadata.paths import ledger as ledger_path
from heliograph.metadata.recipes.update_loop import read

_FINAL = (RecordError, ValueTooLargeError)  # errors of the store that a retry meets again


class MetadataRunner(EffectRunner):
    """An effect runner with a metadata session."""

    context: DriverContext

    def _write_metadata(self, effect: WriteMetadata) -> None:
        self.context.spawn(self._write(effect))

    async def _write(self, effect: WriteMetadata) -> None:
        core, context = self.core, self.context
        try:
            path = ledger_path(effect.record.ledger_id)
            stat = await context.store.set(path, encode(effect.record), effect.version)  # I9
        except BadVersionError:
            self.run(core.on_metadata_conflict(effect.request, context.now()))
        except NoNodeError:
            self.run(core.on_metadata_missing(effect.request, context.now()))
        except HeliographError as error:
            self._failed(effect.request, error)
        else:
            self.run(core.on_metadata_written(effect.request, stat.version, context.now()))

    def _read_metadata(self, effect: ReadMetadata) -> None:
        self.context.spawn(self._read(effect))

    async def _read(self, effect: ReadMetadata) -> None:
        core, context = self.core, self.context
        try:
            versioned = await read(context.store, ledger_path(effect.ledger_id), LedgerMetadata)
        except NoNodeError:
            self.run(core.on_metadata_missing(effect.request, context.now()))
        except HeliographError as error:
            self._failed(effect.request, error)
        else:
            self.run(core.on_metadata_read(effect.request, versioned, context.now()))

    def _delete_metadata(self, effect: DeleteMetadata) -> None:
        self.context.spawn(self._delete(effect))

    async def _delete(self, effect: DeleteMetadata) -> None:
        core, context = self.core, self.context
        try:
            await context.store.delete(ledger_path(effect.ledger_id))
        except NoNodeError:
            pass
        except HeliographError as error:
            self._failed(effect.request, error)
            return
        self.run(core.on_metadata_deleted(effect.request, context.now()))

    def _failed(self, request: int, error: HeliographError) -> None:
        """Tell the core that the outcome is unknown, or that the store refused the request for good."""
        is_final = isinstance(error, _FINAL) or not isinstance(error, MetadataError)  # the latter: it is not permitted
        now = self.context.now()
        if is_final:
            self.run(self.core.on_metadata_refused(request, error, now))
        else:
            self.run(self.core.on_metadata_unknown(request, now))

    handlers: ClassVar[dict[type[Any], Callable[[Any, Any], None]]] = {
        **EffectRunner.handlers,
        WriteMetadata: _write_metadata,
        ReadMetadata: _read_metadata,
        DeleteMetadata: _delete_metadata,
    }


class MetadataOperation(Operation, MetadataRunner):
    """An operation that may read and change metadata: recovery, deletion, repair."""

    handlers: ClassVar[dict[type[Any], Callable[[Any, Any], None]]] = {
        **MetadataRunner.handlers,
        **Operation.handlers,
    }
