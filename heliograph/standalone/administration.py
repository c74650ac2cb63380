"""The administration of a cluster in one process, for callers in the same process."""

from __future__ import annotations

from typing import Any

from typing_extensions import override

from heliograph.actors.broker.session import BrokerSessions
from heliograph.auth.principal import Credentials
from heliograph.operations.admin import AdminOperations
from heliograph.operations.table import AdminOperation

HERE = "this process"  # as the address of a caller


class BrokerAdministration(AdminOperations):
    """Runs every operation at the broker of the current session.

    Args:
        address: of the caller, for the audit log.

    Every method raises ServiceNotReadyError while the broker has no session, and otherwise what the operation raises.
    """

    def __init__(self, sessions: BrokerSessions, address: str = HERE) -> None:
        self._sessions = sessions
        self._address = address
        self.run_through(self._run)

    @override
    def called_from(self, address: str) -> BrokerAdministration:
        return BrokerAdministration(self._sessions, address)

    async def _run(self, operation: AdminOperation, arguments: dict[str, Any]) -> Any:
        broker = self._sessions.broker
        principal = await broker.authenticator.authenticate(Credentials(), self._address)
        return await broker.admin.run(operation.name, arguments, principal, self._address)
