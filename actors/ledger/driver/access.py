"""Who may open a ledger: its digest must be one that this version knows, and its password must be given.

A password guards against mistakes of well-meaning clients, such as recovering somebody else's ledger. It is checked by
the client, against the ledger's record. Bookies never see it: they are guarded by the cluster's secret, and whoever
has that, or can read a bookie's disk, can read every entry.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os

from actors.errors import LedgerAccessError
from heliograph.errors import BadRequestError, UnsupportedError
from metadata.model import LedgerMetadata

DIGESTS = frozenset({"crc32c"})
PASSWORD_BYTES_MAX = 1_024
SCHEME = "scrypt-16384-8-1"  # n, r, p: 16 MiB and some 50 ms for each try
SALT_BYTES = 16
HASH_BYTES = 32


async def hash_password(password: bytes) -> str:
    """What the record of a new ledger keeps of a password: ``scheme:salt:hash``, or nothing when there is none.

    Raises:
        BadRequestError: it is longer than PASSWORD_BYTES_MAX.
    """
    if not password:
        return ""
    if len(password) > PASSWORD_BYTES_MAX:
        raise BadRequestError(
            f"a ledger password of {len(password)} bytes is too long",
            field="password",
            limit=f"{PASSWORD_BYTES_MAX} bytes",
        )
    salt = os.urandom(SALT_BYTES)
    return f"{SCHEME}:{salt.hex()}:{(await _scrypt(password, salt)).hex()}"


async def check_access(record: LedgerMetadata, password: bytes, *, is_upkeep: bool = False) -> None:
    """Return if the ledger may be opened.

    Args:
        is_upkeep: for replication workers, who keep ledgers whole without knowing their passwords.

    Raises:
        UnsupportedError: a newer version made the ledger, with a digest or password scheme that this one lacks.
        LedgerAccessError: the password is not the ledger's.
    """
    if record.digest not in DIGESTS:
        raise UnsupportedError(
            f"ledger {record.ledger_id} has digest {record.digest!r}, which this version cannot check: upgrade it",
            field="digest",
            limit=f"one of {', '.join(sorted(DIGESTS))}",
        )
    if is_upkeep or (not password and not record.password_hash):
        return
    if not await _is_right(record, password):
        has = "has another password" if record.password_hash else "has no password"
        raise LedgerAccessError(
            f"ledger {record.ledger_id} {has}: open it with the one that it was created with", field="password"
        )


async def _is_right(record: LedgerMetadata, password: bytes) -> bool:
    if not password or not record.password_hash or len(password) > PASSWORD_BYTES_MAX:
        return False
    scheme, _, rest = record.password_hash.partition(":")
    if scheme != SCHEME:
        raise UnsupportedError(
            f"the password of ledger {record.ledger_id} is kept as {scheme!r}, which this version cannot check: "
            "upgrade it",
            field="password_hash",
        )
    salt, _, expected = rest.partition(":")
    try:
        found = await _scrypt(password, bytes.fromhex(salt))
    except ValueError:
        return False  # the record holds no salt: no password is right
    return hmac.compare_digest(found.hex(), expected)


async def _scrypt(password: bytes, salt: bytes) -> bytes:
    """On a thread: it is slow on purpose."""
    return await asyncio.to_thread(hashlib.scrypt, password, salt=salt, n=16_384, r=8, p=1, dklen=HASH_BYTES)
