"""Access control lists: the permissions of clients on a node. No I/O.

``world:anyone`` matches every client; ``digest:user:hash`` matches a client that has sent ``user:password`` on its
connection, where hash is the base64 of the SHA-1 of that text; ``token:role`` matches a client that has shown a token
of that role. In a request, ``auth`` stands for all identities of the client. Any other scheme is refused.
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


WORLD, DIGEST, TOKEN, AUTH = "world", "digest", "token", "auth"
Identity = tuple[str, str]  # scheme and id, as an entry of an ACL names them
Acl = tuple[AclEntry, ...]
OPEN_ACL: Acl = (AclEntry(int(Permission.ALL), WORLD, "anyone"),)
READ_ACL: Acl = (AclEntry(int(Permission.READ), WORLD, "anyone"),)


def digest_identity(credential: bytes) -> str:
    """Return the ``user:hash`` of the credential ``user:password``; as in ZooKeeper, it need not have a colon."""
    text = credential.decode(errors="replace")
    return f"{text.partition(':')[0]}:{base64.b64encode(hashlib.sha1(text.encode()).digest()).decode()}"


def resolved(asked: Sequence[AclEntry], identities: Collection[Identity]) -> Acl:
    """Return the ACL to store for one that a client requested.

    Args:
        identities: the identities of the client.

    Raises:
        WireError: INVALID_ACL, it is empty, names another scheme, or ``auth`` from a client without an identity.
    """
    entries: dict[AclEntry, None] = {}
    for entry in asked:
        if _is_valid(entry):
            entries[entry] = None
        elif entry.scheme == AUTH and identities:
            entries.update(dict.fromkeys(AclEntry(entry.permissions, *identity) for identity in sorted(identities)))
        else:
            raise WireError(f"an ACL cannot name {entry.scheme}:{entry.identity}", ErrorCode.INVALID_ACL)
    if not entries:
        raise WireError("an ACL needs an entry", ErrorCode.INVALID_ACL)
    return tuple(entries)


def allows(acl: Sequence[AclEntry], wanted: Permission, identities: Collection[Identity]) -> bool:
    """Return whether the ACL gives any permission of ``wanted`` to a client with these identities."""
    return any(
        entry.permissions & wanted and (entry.scheme == WORLD or (entry.scheme, entry.identity) in identities)
        for entry in acl
    )


def masked(acl: Sequence[AclEntry]) -> Acl:
    """Return the ACL without the hashes, for clients that may not administer the node."""
    return tuple(
        AclEntry(entry.permissions, entry.scheme, entry.identity.partition(":")[0] + ":x")
        if entry.scheme == DIGEST
        else entry
        for entry in acl
    )


def _is_valid(entry: AclEntry) -> bool:
    if entry.scheme == WORLD:
        return entry.identity == "anyone"
    if entry.scheme == DIGEST:
        return entry.identity.count(":") == 1
    return entry.scheme == TOKEN and bool(entry.identity.strip())
