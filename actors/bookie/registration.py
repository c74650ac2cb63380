"""The ephemeral that says "this bookie serves, here", kept alive over lost sessions and moved when it is read-only.

A bookie that turns read-only is registered as such first and taken off the writable list second, and the other way
round on the way back, so that it is never invisible.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace

from metadata import codec, paths
from metadata.claim import claim
from metadata.errors import MetadataError, NodeExistsError, NoNodeError, RecordError
from metadata.model import BookieRegistration
from metadata.store import MetadataStore, SessionState

_log = logging.getLogger(__name__)
_RETRY_SECONDS_MIN = 0.1
_RETRY_SECONDS_MAX = 5.0

Reopen = Callable[[], Awaitable[MetadataStore]]
Recognise = Callable[[MetadataStore], Awaitable[None]]


async def _any(store: MetadataStore) -> None:
    """Every store will do."""


class Registrar:
    """Registers one bookie. All calls on one event loop."""

    def __init__(
        self,
        store: MetadataStore,
        record: BookieRegistration,
        reopen: Reopen | None,
        on_listed: Callable[[bool], None] = lambda is_listed: None,
        recognise: Recognise = _any,
        on_failure: Callable[[BaseException], None] = lambda error: None,
    ) -> None:
        """
        Args:
            reopen: opens a new session after the old one was lost; None leaves the bookie unregistered then.
            on_listed: called with False the moment the session is lost, which is before the ephemeral can go, and with
                True just before there is one again.
            recognise: raises an error of another kind than MetadataError for a store that is not this bookie's cluster.
            on_failure: told of such an error: a store that was reopened has lost what it held.
        """
        self.store = store
        self._record = record
        self._reopen = reopen
        self._on_listed = on_listed
        self._recognise = recognise
        self._on_failure = on_failure
        self._is_read_only = False
        self._listed_as: bool | None = None
        self._lock = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._is_stopped = False
        self.registrations = 0

    @property
    def is_registered(self) -> bool:
        """Whether the session that the bookie is registered under may still stand."""
        return self.registrations > 0 and self.store.state is not SessionState.LOST

    async def register(self, *, is_read_only: bool) -> None:
        """Make the ephemeral, ending the session of this bookie's last life if its ephemeral is still there.

        The disk's lock is held, so whoever made that ephemeral is dead.

        Raises:
            MetadataError: the store failed; call again.
        """
        async with self._lock:
            self._is_read_only = is_read_only
            store = self.store
            store.remove_session_listener(self._on_session_state)  # of an attempt that failed
            store.add_session_listener(self._on_session_state)
            for path in (self._path(False), self._path(True)):
                await _end_predecessor(store, path)
            if store.state is not SessionState.LOST:
                self._on_listed(True)
            await self._create(store, self._path(is_read_only))
            self._listed_as = is_read_only
            self.registrations += 1

    async def move(self, *, is_read_only: bool) -> None:
        """Change lists, unless that is done: into the new one first, out of the old one second.

        Raises:
            MetadataError: the store failed; call again.
        """
        async with self._lock:
            if self._listed_as is is_read_only:
                return
            self._is_read_only, self._listed_as = is_read_only, None  # on both lists, until all is done
            await self._create(self.store, self._path(is_read_only))
            with contextlib.suppress(NoNodeError):
                await self.store.delete(self._path(not is_read_only))
            self._listed_as = is_read_only

    async def report_space(self, free_bytes: int, total_bytes: int) -> None:
        """Renew what the registration says about space.

        Raises:
            MetadataError: the store failed; call again.
        """
        async with self._lock:
            self._record = replace(self._record, free_bytes=free_bytes, total_bytes=total_bytes)
            value = codec.encode(replace(self._record, session_token=self.store.session_token))
            with contextlib.suppress(NoNodeError):  # the session was lost: the next registration says it
                await self.store.set(self._path(self._is_read_only), value)

    async def stop(self) -> None:
        """Take the bookie off the lists, as well as that goes."""
        self._is_stopped = True
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        for is_read_only in (False, True):
            with contextlib.suppress(MetadataError):
                await self.store.delete(self._path(is_read_only))

    def _path(self, is_read_only: bool) -> str:
        kind = paths.bookie_readonly if is_read_only else paths.bookie_available
        return kind(self._record.bookie_id)

    async def _create(self, store: MetadataStore, path: str) -> None:
        value = codec.encode(replace(self._record, session_token=store.session_token))
        if not await claim(store, path, value, parents=True):
            raise NodeExistsError(f"{path} is another session's")

    def _on_session_state(self, state: SessionState) -> None:
        if state is SessionState.LOST:
            self._on_listed(False)  # I13
        if state is SessionState.LOST and not self._is_stopped and self._reopen is not None and self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._register_again(), name="registration")

    async def _register_again(self) -> None:
        assert self._reopen is not None, "only asked for with a way to reopen"
        pause = _RETRY_SECONDS_MIN
        store = self.store
        while True:
            try:
                if store.state is SessionState.LOST:
                    store = await self._reopen()
                await self._recognise(store)  # I14: before anything is concluded from what it does not hold
                self.store = store
                await self.register(is_read_only=self._is_read_only)
            except MetadataError as error:
                _log.warning("bookie %s cannot register again yet: %s", self._record.bookie_id, error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, _RETRY_SECONDS_MAX)
                continue
            except Exception as error:  # another cluster's store, or a promise of our own: nobody awaits this task
                self._on_failure(error)
                return
            self._task = None
            _log.info("bookie %s registered again", self._record.bookie_id)
            return


async def _end_predecessor(store: MetadataStore, path: str) -> None:
    try:
        value, stat = await store.get(path)
    except NoNodeError:
        return
    if stat.ephemeral_owner == store.session_id:
        return
    with contextlib.suppress(RecordError):
        token = codec.decode(BookieRegistration, value).session_token
        if token:
            await store.end_session(token)
    with contextlib.suppress(NoNodeError):
        await store.delete(path, stat.version)
