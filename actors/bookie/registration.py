"""The registration of a bookie: an ephemeral node with its address, made again in each session of the store.

The bookie serves whether it is registered or not: the lock of its disk and fences keep its entries right, and clients
know the address that was registered last.

A bookie that becomes read-only is added to the read-only list first and removed from the writable list second, and the
reverse when it becomes writable, so it is always on one of the lists.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace

from heliograph.actors.wire.messages import TLS_SCHEME
from heliograph.base.backoff import Backoff
from heliograph.base.completion import end_task
from heliograph.metadata import codec, paths
from heliograph.metadata.errors import MetadataError, NodeExistsError, NoNodeError, RecordError
from heliograph.metadata.model import BookieRegistration
from heliograph.metadata.recipes.lock import claim
from heliograph.metadata.store import MetadataStore, SessionState

log = logging.getLogger(__name__)
_RETRY_MS = 100  # first pause between attempts
_RETRY_MS_MAX = 5_000
_CONNECT_SECONDS = 2.0  # to learn whether a process listens

Recognise = Callable[[MetadataStore], Awaitable[None]]


async def _any(store: MetadataStore) -> None:
    """Accept every store."""


class Registrar:
    """Registers one bookie. Used on one event loop."""

    def __init__(
        self,
        store: MetadataStore,
        record: BookieRegistration,
        recognise: Recognise = _any,
        on_failure: Callable[[BaseException], None] = lambda error: None,
    ) -> None:
        """
        Args:
            store: a bookie whose store does not renew its sessions stays unregistered after the end of one.
            recognise: raises an error other than MetadataError if the store is of another cluster.
            on_failure: called with such an error: the store lost its data.
        """
        self.store = store
        self._record = record
        self._recognise = recognise
        self._on_failure = on_failure
        self._is_read_only = False
        self._listed_as: bool | None = None
        self._lock = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._is_stopped = False
        self._session_id = 0  # in which the ephemeral was made, 0 before
        self.registrations = 0

    @property
    def is_registered(self) -> bool:
        """Whether the ephemeral stands as far as this bookie knows."""
        return self.store.state is not SessionState.LOST and self.store.session_id == self._session_id

    async def register(self, *, is_read_only: bool) -> None:
        """Make the ephemeral. End the session of this bookie's predecessor if its ephemeral still exists.

        The caller holds the lock of the disk, so the predecessor is dead.

        Raises:
            MetadataError: the store failed. Call again.
        """
        async with self._lock:
            self._is_read_only = is_read_only
            store = self.store
            store.remove_session_listener(self._on_session_state)  # left by a failed attempt
            store.add_session_listener(self._on_session_state)
            for path in (self._path(False), self._path(True)):
                await _end_predecessor(store, path)
            session_id = store.session_id
            await self._create(store, self._path(is_read_only))
            self._listed_as, self._session_id = is_read_only, session_id
            self.registrations += 1

    async def move(self, *, is_read_only: bool) -> None:
        """Move to the other list if needed: add to the new list first, remove from the old one second.

        Raises:
            MetadataError: the store failed. Call again.
        """
        async with self._lock:
            if self._listed_as is is_read_only:
                return
            self._is_read_only, self._listed_as = is_read_only, None  # on both lists until this is done
            await self._create(self.store, self._path(is_read_only))
            with contextlib.suppress(NoNodeError):
                await self.store.delete(self._path(not is_read_only))
            self._listed_as = is_read_only

    def note_space(self, *, used_share: float, is_full: bool, is_nearly_full: bool) -> bool:
        """Note the state of the disks for the next change of the registration. Return whether a flag changed."""
        before = self._record
        self._record = replace(before, used_share=used_share, is_full=is_full, is_nearly_full=is_nearly_full)
        return (before.is_full, before.is_nearly_full) != (is_full, is_nearly_full)

    async def report_space(self, free_bytes: int, total_bytes: int) -> None:
        """Update the disk space in the registration.

        Raises:
            MetadataError: the store failed. Call again.
        """
        async with self._lock:
            self._record = replace(self._record, free_bytes=free_bytes, total_bytes=total_bytes)
            value = codec.encode(replace(self._record, session_token=self.store.session_token))
            with contextlib.suppress(NoNodeError):  # the session was lost; the next registration includes it
                await self.store.set(self._path(self._is_read_only), value)

    async def stop(self) -> None:
        """Remove the bookie from the lists. Errors of the store are ignored."""
        self._is_stopped = True
        await end_task(self._task)
        for is_read_only in (False, True):
            with contextlib.suppress(MetadataError):
                await self.store.delete(self._path(is_read_only))

    def _path(self, is_read_only: bool) -> str:
        kind = paths.bookie_readonly if is_read_only else paths.bookie_available
        return kind(self._record.bookie_id)

    async def _create(self, store: MetadataStore, path: str) -> None:
        value = codec.encode(replace(self._record, session_token=store.session_token))
        if not await claim(store, path, value, parents=True):
            raise NodeExistsError(f"{path} belongs to another session")

    def _on_session_state(self, state: SessionState) -> None:
        is_new = state is SessionState.CONNECTED and self.store.session_id != self._session_id
        if is_new and not self._is_stopped and self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._register_again(), name="registration")

    async def _register_again(self) -> None:
        pauses = Backoff(_RETRY_MS, _RETRY_MS_MAX)
        while self.store.session_id != self._session_id:
            try:
                await self._recognise(self.store)  # I14: before a missing node is believed
                await self.register(is_read_only=self._is_read_only)
            except MetadataError as error:
                log.warning("bookie %s cannot register again yet: %s", self._record.bookie_id, error)
                await asyncio.sleep(pauses.pause())
                continue
            except Exception as error:  # the store of another cluster, or a bug of ours: no one awaits this task
                self._on_failure(error)
                return
            log.info("bookie %s registered again", self._record.bookie_id)
        self._task = None


async def forget_if_dead(store: MetadataStore, bookie_id: str) -> None:
    """End the session that a bookie is registered in, if nothing listens at its address: its process has ended.

    A bookie that refuses to start would else be listed as one that serves until that session expires, and commands on
    its disk would be refused for so long.

    Raises:
        MetadataError: the store failed; the session may have ended.
    """
    for path in (paths.bookie_available(bookie_id), paths.bookie_readonly(bookie_id)):
        with contextlib.suppress(NoNodeError, RecordError):
            value, _ = await store.get(path)
            if not await _listens(codec.decode(BookieRegistration, value).address):
                await _end_predecessor(store, path, value)


async def _listens(address: str) -> bool:
    """Return False if a connection is refused. Where nothing answers in time, a process may be there."""
    host, _, port = address.removeprefix(TLS_SCHEME).rpartition(":")
    try:
        async with asyncio.timeout(_CONNECT_SECONDS):
            _, writer = await asyncio.open_connection(host, int(port))
    except ConnectionRefusedError:
        return False
    except (OSError, OverflowError, TimeoutError, ValueError):
        return True
    writer.close()
    return True


async def _end_predecessor(store: MetadataStore, path: str, only: bytes | None = None) -> None:
    """End the session of the registration at a path: of any but our own, or of ``only``."""
    try:
        value, stat = await store.get(path)
    except NoNodeError:
        return
    if stat.ephemeral_owner == store.session_id or (only is not None and value != only):
        return
    with contextlib.suppress(RecordError):
        token = codec.decode(BookieRegistration, value).session_token
        if token:
            await store.end_session(token)
    with contextlib.suppress(NoNodeError):
        await store.delete(path, stat.version)
