"""The whole administration of a cluster: the operations of all groups."""

from __future__ import annotations

from typing import Self

from heliograph.operations.bookies import BookieOperations
from heliograph.operations.brokers import BrokerOperations
from heliograph.operations.cursors import CursorOperations
from heliograph.operations.namespaces import NamespaceOperations
from heliograph.operations.permissions import PermissionOperations
from heliograph.operations.schemas import SchemaOperations
from heliograph.operations.settings import SettingOperations
from heliograph.operations.table import Call, OperationGroup
from heliograph.operations.topics import TopicOperations

GROUPS: dict[str, type[OperationGroup]] = {
    "schemas": SchemaOperations,
    "cursors": CursorOperations,
    "namespaces": NamespaceOperations,
    "brokers": BrokerOperations,
    "settings": SettingOperations,
    "bookies": BookieOperations,
    "permissions": PermissionOperations,
}


class AdminOperations(TopicOperations):
    """Topics, and the other groups as attributes."""

    schemas: SchemaOperations
    cursors: CursorOperations
    namespaces: NamespaceOperations
    brokers: BrokerOperations
    settings: SettingOperations
    bookies: BookieOperations
    permissions: PermissionOperations

    def run_through(self, call: Call) -> None:
        """Run every operation of every group by ``call``."""
        self.call = call
        for name, group in GROUPS.items():
            made = group()
            made.call = call
            setattr(self, name, made)

    def called_from(self, address: str) -> Self:
        """Return this administration for a caller at an address, for the audit log. The default does not pass it on."""
        return self
