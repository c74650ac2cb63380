"""Access control lists: the permissions of clients on a node. No I/O.

There are two schemes. ``world:anyone`` matches every client; ``digest:user:hash`` matches a client that has sent
``user:password`` on its connection, where hash is the base64 of the SHA-1 of that text. In a request, ``auth`` stands
for all identities of the client. Any other scheme is refused.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from heliograph.metadata.endpoint.wire.codes import ErrorCode, Permission, WireError


@dataclass(frozen=True, slots=True)
class AclEntry:
    """One line of an ACL; ``permissions`` are bits of Permission."""

    permissions: int
    scheme: str
    identity: str


Acl = tuple[AclEntry, ...]
OPEN_ACL: Acl = (AclEntry(int(Permission.ALL), "world", "anyone"),)
READ_ACL: Acl = (AclEntry(int(Permission.READ), "world", "anyone"),)


def digest_identity(credential: bytes) -> str:
    """Return the ``user:hash`` of the credential ``user:password``; as in ZooKeeper, it need not have a colon."""
    text = credential.decode(errors="replace")
    return f"{text.partition(':')[0]}:{base64.b64encode(hashlib.sha1(text.encode()).digest()).decode()}"


def resolved(asked: Sequence[AclEntry], identities: Collection[str]) -> Acl:
    """Return the ACL to store for one that a client requested.

    Args:
        identities: the identities of the client, each a ``user:hash``.

    Raises:
        WireError: INVALID_ACL, it is empty, names another scheme, or ``auth`` from a client without an identity.
    """
    entries: dict[AclEntry, None] = {}
    for entry in asked:
        if (entry.scheme == "world" and entry.identity == "anyone") or (
            entry.scheme == "digest" and entry.identity.count(":") == 1
        ):
            entries[entry] = None
        elif entry.scheme == "auth" and identities:
            entries.update(dict.fromkeys(AclEntry(entry.permissions, "digest", name) for name in sorted(identities)))
        else:
            raise WireError(f"an ACL cannot name {entry.scheme}:{entry.identity}", ErrorCode.INVALID_ACL)
    if not entries:
        raise WireError("an ACL needs an entry", ErrorCode.INVALID_ACL)
    return tuple(entries)


def allows(acl: Sequence[AclEntry], wanted: Permission, identities: Collection[str]) -> bool:
    """Return whether the ACL gives any permission of ``wanted`` to a client with these identities."""
    return any(
        entry.permissions & wanted and (entry.scheme == "world" or entry.identity in identities) for entry in acl
    )


def masked(acl: Sequence[AclEntry]) -> Acl:
    """Return the ACL without the hashes, for clients that may not administer the node."""
    return tuple(
        AclEntry(entry.permissions, entry.scheme, entry.identity.partition(":")[0] + ":x")
        if entry.scheme == "digest"
        else entry
        for entry in acl
    )
