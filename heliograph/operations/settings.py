"""Operations on settings of brokers that change while they run: ``admin.settings``."""

# mypy: disable-error-code="empty-body"

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from heliograph.operations.table import Answer, OperationGroup, Right, Scope, TextOf, operation


class SettingOperations(OperationGroup, group="settings"):
    """Settings have the names of the section ``[broker]``, such as ``connections_max`` or ``balance.shed_gap``, and
    some of them a name of Pulsar besides, such as ``brokerMaxConnections``, whose value is in Pulsar's unit.

    Values are text. Brokers apply a change within seconds, and keep it over restarts.
    """

    @operation(Scope.CLUSTER, Right.SUPERUSER)
    async def live(self) -> list[Answer]:
        """Return the settings that can change while brokers run, sorted by name.

        Returns:
            of each ``name``, ``value`` (what the broker that answers runs with), ``changed_to`` (the value that was
            set, None where each broker has that of its configuration), ``meaning``, ``limit``, ``pulsar_name`` and
            ``pulsar_value`` (of ``changed_to``; None where there is none).
        """

    @operation(Scope.CLUSTER, Right.SUPERUSER)
    async def set(self, name: str, value: Annotated[str | timedelta, TextOf(unit_of="name")]) -> str:
        """Change a setting of all brokers; return its full name. A time span becomes text in the unit of the setting.

        Raises:
            InvalidConfigError: no such setting can change, or the value is not acceptable.
        """

    @operation(Scope.CLUSTER, Right.SUPERUSER)
    async def unset(self, name: str) -> str:
        """Restore the value of each broker's own configuration; return the setting's full name.

        Raises:
            InvalidConfigError: no such setting can change.
        """
