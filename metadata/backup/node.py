"""One node of a backup, and its bytes in the file. No I/O."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import msgpack

from heliograph.metadata.errors import MetadataError, RecordError
from heliograph.metadata.paths import CLUSTER, ENDPOINT_ACLS, LEDGER_ID_BASE, ZOOKEEPER, ledger_id_at
from heliograph.metadata.znode import check_path, check_value, is_kind

DIGEST_BYTES = 32
_APART = (CLUSTER, ENDPOINT_ACLS, LEDGER_ID_BASE, ZOOKEEPER)  # each with what is below it


@dataclass(frozen=True, slots=True)
class BackupNode:
    """A node that lives without a session.

    ``kind`` is that of ``Create``, ``creations`` the number of children ever created in it, which is the next sequence
    number, and ``acl`` the value of the record that endpoints keep of its ACL; None: the node is open.
    """

    path: str
    value: bytes | None
    kind: int = 0
    creations: int = 0
    acl: bytes | None = None

    def fields(self) -> list[Any]:
        return [self.path, self.value, self.kind, self.creations, self.acl]

    @classmethod
    def of(cls, fields: Any) -> BackupNode:
        """Decode a node from its list.

        Raises:
            RecordError: the list is no node.
        """
        match fields:
            case [str() as path, bytes() | None as value, int() as kind, int() as creations, bytes() | None as acl]:
                try:
                    check_path(path)
                    check_value(value)
                except MetadataError as error:
                    raise RecordError(f"the backup holds a node that no store takes: {error}") from error
                if is_kind(kind) and creations >= 0:
                    return cls(path, value, kind, creations, acl)
        raise RecordError("the backup holds a node that is malformed")

    def digest(self) -> int:
        """Return a number of the path, the value and the ACL.

        Kinds and counters are left out, because ZooKeeper does not show them.
        """
        content = msgpack.packb([self.path, self.value, self.acl])
        return int.from_bytes(hashlib.sha256(content).digest(), "big")

    def ledger_id(self) -> int:
        """Return the id of the ledger that the node describes, 0 for other nodes."""
        return ledger_id_at(self.path) or 0


class DigestSum:
    """The digest of many nodes, in whatever order they come."""

    def __init__(self) -> None:
        self.nodes = 0
        self._sum = 0

    def add(self, node: BackupNode) -> None:
        self.nodes += 1
        self._sum = (self._sum + node.digest()) % (1 << 8 * DIGEST_BYTES)

    def value(self) -> bytes:
        return self._sum.to_bytes(DIGEST_BYTES, "big")


def is_copied_node(path: str) -> bool:
    """Return whether a node is among those that are copied one by one: it is neither kept apart nor left out."""
    return not any(path == apart or path.startswith(apart + "/") for apart in _APART)
