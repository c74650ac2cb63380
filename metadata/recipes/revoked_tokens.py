"""The list of revoked tokens, which every door follows.

A node has the name of its token's ``revocation_id``, by which doors refuse it: a token whose record is damaged stays
revoked.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable

from heliograph.auth.principal import revocation_id
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


log = logging.getLogger(__name__)


class RevokedTokens:
    """The list, kept current by a watch. All calls on one event loop.

    Args:
        on_change: called with the ``revocation_id`` of every token after each change.
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
        damaged = self._cache.damaged
        if damaged:
            log.error(
                "%d records on the list of revoked tokens are damaged, such as %s: their tokens stay revoked. "
                "Revoke them again (helio tokens revoked)",
                len(damaged),
                min(damaged),
            )
        self._on_change(damaged.union(self._cache.records))


@contextlib.asynccontextmanager
async def following_revocations(
    connect: Callable[[], Awaitable[MetadataStore]], on_change: Callable[[frozenset[str]], None]
) -> AsyncIterator[None]:
    """Follow the list within the block, in a separate session.

    Args:
        connect: opens the session; it should renew itself, so that the list is still followed after a loss.
        on_change: as of ``RevokedTokens``.

    Raises:
        ConnectionLossError: the store cannot be reached, so that nothing is known of tokens.
    """
    store = await connect()
    try:
        tokens = RevokedTokens(store, on_change)
        await tokens.start()
        try:
            yield
        finally:
            await tokens.stop()
    finally:
        await store.close()


async def revoke(store: MetadataStore, token_id: str, expires_ms: int | None) -> None:
    """Add a token to the list, and remove tokens that have expired. Repeating it changes nothing, except that it
    rewrites a damaged record.

    Args:
        token_id: the token's claim ``jti``.
        expires_ms: when the token expires, in milliseconds since the epoch; None: never, or it is not known.

    Raises:
        ResourceError: the list is full of tokens that have not expired.
        MetadataError: the store did not answer; the token may be revoked.
    """
    now = wall_ms()
    known_ones, damaged = await revoked(store)
    kept = len(damaged)
    for known in known_ones:
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
    value = codec.encode(RevokedToken(token_id, now, expires_ms))
    try:
        await store.create(_path(token_id), value, parents=True)
    except NodeExistsError:
        if revocation_id(token_id) in damaged:
            await store.set(_path(token_id), value)


async def revoked(store: MetadataStore) -> tuple[list[RevokedToken], list[str]]:
    """Return the list, the oldest first, and the ``revocation_id`` of each token on it whose record is damaged.

    Raises:
        MetadataError: the store did not answer.
    """
    found: list[RevokedToken] = []
    damaged: list[str] = []
    names: list[str] = []
    with contextlib.suppress(NoNodeError):
        names = await store.children(REVOKED_TOKENS)
    for name in names:
        try:
            found.append(codec.decode(RevokedToken, (await store.get(f"{REVOKED_TOKENS}/{name}"))[0]))
        except NoNodeError:
            continue
        except RecordError:
            damaged.append(name)
    return sorted(found, key=lambda record: record.revoked_ms), sorted(damaged)


def _path(token_id: str) -> str:
    return f"{REVOKED_TOKENS}/{revocation_id(token_id)}"
