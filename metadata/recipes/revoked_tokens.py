"""The list of tokens that were revoked, which every door follows. The nodes are named by a hash of the token's id."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable

from heliograph.base.clock import wall_ms
from heliograph.base.errors import ResourceError
from heliograph.metadata import codec
from heliograph.metadata.errors import NodeExistsError, NoNodeError, RecordError
from heliograph.metadata.operator_records import RevokedToken
from heliograph.metadata.paths import REVOKED_TOKENS
from heliograph.metadata.recipes.record_cache import RecordCache
from heliograph.metadata.store import MetadataStore

REVOKED_MAX = 10_000  # tokens that have not ended # I15
KEPT_MS = 2 * 3_600_000  # after its end, for doors with auth.token_clock_skew_seconds or a clock that is late


class RevokedTokens:
    """The ids of revoked tokens, kept current by a watch. All calls on one event loop.

    Args:
        on_change: called with the ids after each change.
    """

    def __init__(self, store: MetadataStore, on_change: Callable[[frozenset[str]], None]) -> None:
        self._on_change = on_change
        self._cache = RecordCache(store, REVOKED_TOKENS, RevokedToken, self._changed)

    async def start(self) -> None:
        """Read the list and follow it.

        Raises:
            ConnectionLossError, SessionExpiredError: the list was not read.
        """
        await self._cache.start()

    async def stop(self) -> None:
        """Stop following. Idempotent."""
        await self._cache.stop()

    def _changed(self) -> None:
        self._on_change(frozenset(record.token_id for record in self._cache.records.values()))


async def revoke(store: MetadataStore, token_id: str, expires_ms: int | None) -> None:
    """Put a token on the list, and take those off it that have ended by themselves. Repeating it changes nothing.

    Args:
        expires_ms: when the token ends by itself, in milliseconds since the epoch; None: never, or it is not known.

    Raises:
        ResourceError: the list is full of tokens that have not ended.
        MetadataError: the store did not answer; the token may be revoked.
    """
    now = wall_ms()
    kept = 0
    for known in await revoked(store):
        if known.expires_ms is not None and known.expires_ms + KEPT_MS < now:
            with contextlib.suppress(NoNodeError):
                await store.delete(_path(known.token_id))
        else:
            kept += 1
    if kept >= REVOKED_MAX:
        raise ResourceError(
            f"{kept} tokens are revoked and have not ended: change the key that signs tokens (helio tokens rotate)",
            field="token_id",
            limit=f"{REVOKED_MAX} tokens",
        )
    with contextlib.suppress(NodeExistsError):
        await store.create(_path(token_id), codec.encode(RevokedToken(token_id, now, expires_ms)), parents=True)


async def revoked(store: MetadataStore) -> list[RevokedToken]:
    """Return the list, the oldest first, without damaged records.

    Raises:
        MetadataError: the store did not answer.
    """
    found = []
    names: list[str] = []
    with contextlib.suppress(NoNodeError):
        names = await store.children(REVOKED_TOKENS)
    for name in names:
        with contextlib.suppress(NoNodeError, RecordError):
            found.append(codec.decode(RevokedToken, (await store.get(f"{REVOKED_TOKENS}/{name}"))[0]))
    return sorted(found, key=lambda record: record.revoked_ms)


def _path(token_id: str) -> str:
    return f"{REVOKED_TOKENS}/{hashlib.sha256(token_id.encode()).hexdigest()}"
