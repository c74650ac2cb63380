"""The configuration that a broker runs with: its own, and over it the settings that were changed while it runs.

They are one record in metadata, which every broker watches.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping

from heliograph.actors.broker.config import BrokerConfig
from heliograph.actors.broker.dynamic.settings import checked, setting_named, with_values
from heliograph.actors.broker.namespaces.session_guard import needs_session
from heliograph.base.errors import BadRequestError
from heliograph.metadata import codec, paths
from heliograph.metadata.errors import NodeExistsError, NoNodeError
from heliograph.metadata.operator_records import BrokerSettings
from heliograph.metadata.recipes.record_cache import RecordCache
from heliograph.metadata.recipes.update_loop import read, update
from heliograph.metadata.store import MetadataStore

VALUE_CHARACTERS_MAX = 100

log = logging.getLogger(__name__)


class LiveConfig:
    """Follows the record and changes it.

    Args:
        base: the broker's own configuration.

    Attributes:
        current: what holds now.
        on_change: called after ``current`` was replaced.
    """

    def __init__(self, base: BrokerConfig, store: MetadataStore) -> None:
        self.current = base
        self.on_change: Callable[[], None] = lambda: None
        self._base = base
        self._store = store
        self._cache = RecordCache(store, paths.SETTINGS, BrokerSettings, self._apply)

    async def start(self) -> None:
        """Read the record and follow its changes.

        Raises:
            ConnectionLossError, SessionExpiredError.
        """
        await self._cache.start()

    async def stop(self) -> None:
        """Stop following. Idempotent."""
        await self._cache.stop()

    async def values(self) -> Mapping[str, str]:
        """Return the settings that were changed, from metadata, with their values as text."""
        with contextlib.suppress(NoNodeError), needs_session():
            return (await read(self._store, paths.BROKER_SETTINGS, BrokerSettings)).record.values
        return {}

    async def set(self, name: str, text: str) -> str:
        """Store a value, which every broker soon applies; return the setting's full name.

        Args:
            name: of the setting, ours or Pulsar's; the value has the unit of that name.

        Raises:
            InvalidConfigError: no such setting can change, or the value is not acceptable.
        """
        if len(text) > VALUE_CHARACTERS_MAX:
            raise BadRequestError(
                f"a value of {len(text)} characters", field=name, limit=f"{VALUE_CHARACTERS_MAX} characters"
            )
        full, value = checked(name, text, self.current)
        await self._change(full, value)
        log.info("setting %s is changed to %s", full, value)
        return full

    async def unset(self, name: str) -> str:
        """Remove a value, so that each broker uses its own configuration; return the setting's full name.

        Raises:
            InvalidConfigError: no such setting can change.
        """
        full = setting_named(name).name
        await self._change(full, None)
        log.info("setting %s is reset", full)
        return full

    async def _change(self, name: str, value: str | None) -> None:
        def changed(record: BrokerSettings) -> BrokerSettings | None:
            values = {key: text for key, text in record.values.items() if key != name}
            if value is not None:
                values[name] = value
            return None if values == record.values else BrokerSettings(values)

        with contextlib.suppress(NoNodeError), needs_session():
            await update(self._store, paths.BROKER_SETTINGS, BrokerSettings, changed)
            return
        first = changed(BrokerSettings())
        if first is None:
            return
        with contextlib.suppress(NodeExistsError), needs_session():
            await self._store.create(paths.BROKER_SETTINGS, codec.encode(first), parents=True)
            return
        with needs_session():
            await update(self._store, paths.BROKER_SETTINGS, BrokerSettings, changed)

    def _apply(self) -> None:
        record = self._cache.records.get(paths.last_part(paths.BROKER_SETTINGS), BrokerSettings())
        config = self._base
        for name, text in sorted(record.values.items()):
            try:
                config = with_values(config, {name: text})
            except BadRequestError as error:  # of another version, or against this broker's own configuration
                log.warning("the changed setting %s is ignored: %s", name, error)
        if config != self.current:
            self.current = config
            self.on_change()
