"""Running the effects of cores that read and change the records of their ledgers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from actors.ledger.driver.operation import Operation
from actors.ledger.driver.shell import Shell
from actors.ledger.driver.world import World
from actors.ledger.effects import DeleteMetadata, ReadMetadata, WriteMetadata
from heliograph.errors import HeliographError
from metadata.codec import encode
from metadata.errors import BadVersionError, MetadataError, NoNodeError, RecordError, ValueTooLargeError
from metadata.model import LedgerMetadata
from metadata.paths import ledger as ledger_path
from metadata.update_loop import read

_FINAL = (RecordError, ValueTooLargeError)  # errors of the store that come again however often it is asked


class MetadataShell(Shell):
    """A shell with a metadata session."""

    world: World

    def _write_metadata(self, effect: WriteMetadata) -> None:
        self.world.spawn(self._write(effect))

    async def _write(self, effect: WriteMetadata) -> None:
        core, world = self.core, self.world
        try:
            path = ledger_path(effect.record.ledger_id)
            stat = await world.store.set(path, encode(effect.record), effect.version)  # I9
        except BadVersionError:
            self.run(core.on_metadata_conflict(effect.request, world.now()))
        except NoNodeError:
            self.run(core.on_metadata_missing(effect.request, world.now()))
        except HeliographError as error:
            self._failed(effect.request, error)
        else:
            self.run(core.on_metadata_written(effect.request, stat.version, world.now()))

    def _read_metadata(self, effect: ReadMetadata) -> None:
        self.world.spawn(self._read(effect))

    async def _read(self, effect: ReadMetadata) -> None:
        core, world = self.core, self.world
        try:
            versioned = await read(world.store, ledger_path(effect.ledger_id), LedgerMetadata)
        except NoNodeError:
            self.run(core.on_metadata_missing(effect.request, world.now()))
        except HeliographError as error:
            self._failed(effect.request, error)
        else:
            self.run(core.on_metadata_read(effect.request, versioned, world.now()))

    def _delete_metadata(self, effect: DeleteMetadata) -> None:
        self.world.spawn(self._delete(effect))

    async def _delete(self, effect: DeleteMetadata) -> None:
        core, world = self.core, self.world
        try:
            await world.store.delete(ledger_path(effect.ledger_id))
        except NoNodeError:
            pass
        except HeliographError as error:
            self._failed(effect.request, error)
            return
        self.run(core.on_metadata_deleted(effect.request, world.now()))

    def _failed(self, request: int, error: HeliographError) -> None:
        """Whether it happened is not known, unless the store said that it will not: then asking again is no use."""
        is_final = isinstance(error, _FINAL) or not isinstance(error, MetadataError)  # the latter: not permitted
        now = self.world.now()
        if is_final:
            self.run(self.core.on_metadata_refused(request, error, now))
        else:
            self.run(self.core.on_metadata_unknown(request, now))

    handlers: ClassVar[dict[type[Any], Callable[[Any, Any], None]]] = {
        **Shell.handlers,
        WriteMetadata: _write_metadata,
        ReadMetadata: _read_metadata,
        DeleteMetadata: _delete_metadata,
    }


class MetadataOperation(Operation, MetadataShell):
    """An operation that may read and change metadata: recovery, deletion, repair."""

    handlers: ClassVar[dict[type[Any], Callable[[Any, Any], None]]] = {
        **MetadataShell.handlers,
        **Operation.handlers,
    }
