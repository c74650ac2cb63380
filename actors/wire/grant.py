"""Grants: the right to read some ledgers from bookies for some time, given by a broker to a program that has no secret.

A grant is a text with two parts: claims, which anyone may see, and a key, which only its holder and the bookies know:

    base64url(claims) "." base64url(key)        key = HMAC-SHA256(secret, "heliograph read grant" 0 claims)

The claims are a msgpack array: version, name of the secret, end of the grant in Unix milliseconds, then the ledger ids
in ascending order, each but the first as its distance from the one before. The holder sends the claims in its HELLO.
The bookie computes the key from them, and both ends prove that they know it, by the handshake of a connection. The key
is not sent then, so a listener learns nothing to use. Claims that were changed have another key.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import msgpack

from heliograph.actors.wire.messages import BookieOp, BookieRequest, Flag
from heliograph.base.errors import AuthenticationError

LEDGERS_MAX = 128  # of one grant; a reader of more has several (I15)
CLAIMS_BYTES_MAX = 2 << 10  # 128 ids of 9 bytes each, and the rest
VERSION = 1
SECRET_NAME_BYTES = 8
_KEY_BYTES = 32
_FIELDS_BEFORE_LEDGERS = 3
_LABEL = b"heliograph read grant\0"
_NAME_LABEL = b"heliograph name of a secret"
_ALLOWED = frozenset({BookieOp.READ, BookieOp.READ_BATCH, BookieOp.READ_LAC, BookieOp.LIST_ENTRIES})
_CHANGES = Flag.FENCE | Flag.RECOVERY


@dataclass(frozen=True, slots=True)
class ReadGrant:
    """A grant as its holder and a bookie know it.

    Attributes:
        claims: the packed claims.
        key: what both ends prove in the place of the cluster's secret.
        expires_ms: Unix time in milliseconds at which the grant ends.
        ledger_ids: what may be read.
    """

    claims: bytes
    key: str = field(repr=False)
    expires_ms: int = 0
    ledger_ids: frozenset[int] = frozenset()

    @property
    def text(self) -> str:
        """Return the grant as ``grant_from_text`` reads it. The text is the right: keep it secret."""
        return f"{_encoded(self.claims)}.{_encoded(bytes.fromhex(self.key))}"

    def fault(self, request: BookieRequest, now_ms: int) -> str:
        """Return why a request is refused, "" if the grant allows it."""
        if request.op not in _ALLOWED or request.flags & _CHANGES:
            return f"{request.op.name} is not allowed: the grant is for reading"
        if request.ledger_id not in self.ledger_ids:
            return f"ledger {request.ledger_id} is not named by the grant"
        return "the grant has expired" if self.is_expired(now_ms) else ""

    def is_expired(self, now_ms: int) -> bool:
        return now_ms >= self.expires_ms


def make_grants(secret: str, ledger_ids: Iterable[int], expires_ms: int) -> list[ReadGrant]:
    """Return grants for all the ledgers, each for at most ``LEDGERS_MAX`` of them."""
    ordered = sorted(set(ledger_ids))
    return [
        _grant(secret, ordered[start : start + LEDGERS_MAX], expires_ms)
        for start in range(0, len(ordered), LEDGERS_MAX)
    ]


def grant_from_text(text: str) -> ReadGrant:
    """Return the grant that its holder was given.

    Raises:
        AuthenticationError: it is none.
    """
    claims_text, _, key_text = text.partition(".")
    try:
        claims, key = _decoded(claims_text), _decoded(key_text)
    except (binascii.Error, ValueError):
        raise AuthenticationError("this is no grant: it is not base64") from None
    if len(key) != _KEY_BYTES:
        raise AuthenticationError(f"this is no grant: its key has {len(key)} bytes")
    _, expires_ms, ledger_ids = _unpack(claims)
    return ReadGrant(claims, key.hex(), expires_ms, ledger_ids)


def verified_grant(claims: bytes, secrets: Sequence[str], now_ms: int) -> ReadGrant:
    """Return the grant whose claims a client sent. That the client has its key is not shown yet.

    Raises:
        AuthenticationError: the claims are malformed, name no secret of ours, or the grant has expired.
    """
    name, expires_ms, ledger_ids = _unpack(claims)
    for secret in secrets:
        if hmac.compare_digest(name, _name_of(secret)):
            grant = ReadGrant(claims, _key(secret, claims), expires_ms, ledger_ids)
            if grant.is_expired(now_ms):
                raise AuthenticationError("the grant has expired")
            return grant
    raise AuthenticationError("the grant was made with another secret")


def _grant(secret: str, ordered: Sequence[int], expires_ms: int) -> ReadGrant:
    assert 0 < len(ordered) <= LEDGERS_MAX, "the caller cuts the ledgers into chunks"
    distances = [after - before for before, after in pairwise(ordered)]
    claims: bytes = msgpack.packb([VERSION, _name_of(secret), expires_ms, ordered[0], *distances])
    assert len(claims) <= CLAIMS_BYTES_MAX, "a bookie would refuse them"  # I15
    return ReadGrant(claims, _key(secret, claims), expires_ms, frozenset(ordered))


def _unpack(claims: bytes) -> tuple[bytes, int, frozenset[int]]:
    """Return the name of the secret, the end in Unix milliseconds, and the ledger ids."""
    if len(claims) > CLAIMS_BYTES_MAX:
        raise AuthenticationError(f"the claims of a grant have {len(claims)} bytes", limit=f"{CLAIMS_BYTES_MAX} bytes")
    try:
        items = msgpack.unpackb(claims)
    except (ValueError, msgpack.UnpackException):
        raise AuthenticationError("the claims of a grant are no msgpack") from None
    if not isinstance(items, list) or not 0 < len(items) - _FIELDS_BEFORE_LEDGERS <= LEDGERS_MAX:
        raise AuthenticationError("the claims of a grant have too few or too many fields")
    version, name, *numbers = items
    if type(version) is not int or version != VERSION:
        raise AuthenticationError(f"the grant has version {version!r:.20}", limit=str(VERSION))
    if type(name) is not bytes or len(name) != SECRET_NAME_BYTES or not all(map(_is_natural, numbers)):
        raise AuthenticationError("the claims of a grant have a field of a wrong type")
    expires_ms, ledger_id, *distances = numbers
    ledger_ids = [ledger_id]
    for distance in distances:
        ledger_ids.append(ledger_ids[-1] + distance)
    return name, expires_ms, frozenset(ledger_ids)


def _is_natural(value: object) -> bool:
    return type(value) is int and value >= 0


def _key(secret: str, claims: bytes) -> str:
    return hmac.digest(secret.encode(), _LABEL + claims, "sha256").hex()


def _name_of(secret: str) -> bytes:
    """Return a short name of a secret, which tells nothing of it."""
    return hmac.digest(secret.encode(), _NAME_LABEL, "sha256")[:SECRET_NAME_BYTES]


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode()


def _decoded(text: str) -> bytes:
    return base64.b64decode(text.encode("ascii"), altchars=b"-_", validate=True)
