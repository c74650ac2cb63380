"""The operations on settings that change while brokers run, the same on every broker."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from typing_extensions import override

from heliograph.actors.broker.dynamic.live_config import LiveConfig
from heliograph.actors.broker.dynamic.settings import LIVE_SETTINGS, pulsar_form, value_in
from heliograph.base.errors import BadRequestError
from heliograph.operations.settings import SettingOperations

Json = dict[str, Any]


class SettingAdminService(SettingOperations):
    """Reads and changes the record that every broker follows."""

    def __init__(self, live: LiveConfig) -> None:
        self._live = live

    @override
    async def live(self) -> list[Json]:
        changed = await self._live.values()
        rows: list[Json] = []
        for name, declared in LIVE_SETTINGS.items():
            value = value_in(self._live.current, name)
            form = pulsar_form(name, changed.get(name, value))
            rows.append(
                {
                    "name": name,
                    "value": value,
                    "changed_to": changed.get(name),
                    "meaning": declared.setting.meaning,
                    "limit": declared.limit,
                    "pulsar_name": None if form is None else form[0],
                    "pulsar_value": None if form is None or name not in changed else form[1],
                }
            )
        return rows

    @override
    async def set(self, name: str, value: str | timedelta) -> str:
        if not isinstance(value, str):
            raise BadRequestError(f"{value!r} is no text", field="value")
        return await self._live.set(name, value)

    @override
    async def unset(self, name: str) -> str:
        return await self._live.unset(name)
