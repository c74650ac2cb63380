"""Access control lists: who may do what to a node. No I/O.

Two schemes count: ``world:anyone`` is everybody; ``digest:user:hash`` is whoever has shown ``user:password`` on its
connection, where hash is the base64 of the SHA-1 of that text. In a request, ``auth`` stands for all identities that
the client has shown. Any other scheme is refused.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from metadata.endpoint.codes import ErrorCode, Permission, WireError


@dataclass(frozen=True, slots=True)
class AclEntry:
    """One line of an ACL; ``permissions`` are bits of Permission."""

    permissions: int
    scheme: str
    identity: str


Acl = tuple[AclEntry, ...]
OPEN_ACL: Acl = (AclEntry(int(Permission.ALL), "world", "anyone"),)


def digest_identity(credential: bytes) -> str:
    """The ``user:hash`` of somebody who shows ``user:password``.

    Raises:
        WireError: AUTH_FAILED, it is not of that form.
    """
    user, colon, _ = credential.partition(b":")
    try:
        name = user.decode()
    except UnicodeDecodeError:
        colon = b""
    if not colon:
        raise WireError("a digest credential looks like 'user:password'", ErrorCode.AUTH_FAILED)
    return f"{name}:{base64.b64encode(hashlib.sha1(credential).digest()).decode()}"


def settled(asked: Sequence[AclEntry], identities: Collection[str]) -> Acl:
    """The ACL to keep for one that a client asked for.

    Args:
        identities: of the client, each a ``user:hash``.

    Raises:
        WireError: INVALID_ACL, it is empty, names another scheme, or ``auth`` by somebody without an identity.
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
            raise WireError(f"no ACL is kept for {entry.scheme}:{entry.identity}", ErrorCode.INVALID_ACL)
    if not entries:
        raise WireError("an ACL needs an entry", ErrorCode.INVALID_ACL)
    return tuple(entries)


def allows(acl: Sequence[AclEntry], wanted: Permission, identities: Collection[str]) -> bool:
    """Does the ACL give any permission of ``wanted`` to a client with these identities?"""
    return any(
        entry.permissions & wanted and (entry.scheme == "world" or entry.identity in identities) for entry in acl
    )


def masked(acl: Sequence[AclEntry]) -> Acl:
    """The ACL without the hashes, for readers that may not administer the node."""
    return tuple(
        AclEntry(entry.permissions, entry.scheme, entry.identity.partition(":")[0] + ":x")
        if entry.scheme == "digest"
        else entry
        for entry in acl
    )
