"""The endpoint's own session with the store: it decides whether the endpoint may serve, and keeps the ACLs current.

While this session is not connected the ACLs may change without notice, so no client is served.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from heliograph.metadata.endpoint.limits import RETRY_MS, SWEEP_SECONDS
from heliograph.metadata.endpoint.session.acl_directory import AclDirectory
from heliograph.metadata.endpoint.session.sessions import OpenStore
from heliograph.metadata.errors import MetadataError, NodeExistsError
from heliograph.metadata.paths import ZOOKEEPER, ZOOKEEPER_CONFIG, ZOOKEEPER_QUOTA
from heliograph.metadata.recipes.revoked_tokens import RevokedTokens
from heliograph.metadata.store import MetadataStore, SessionState

OWN_TIMEOUT_MS = 10_000

log = logging.getLogger(__name__)


class EndpointStoreSession:
    """A session with the store that is replaced when it is lost, as long as the endpoint runs."""

    def __init__(
        self,
        open_store: OpenStore,
        directory: AclDirectory,
        on_unready: Callable[[], None],
        on_revoked: Callable[[frozenset[str]], None] | None,
    ) -> None:
        """
        Args:
            on_revoked: called with the ids of all revoked tokens; None: authentication is disabled.
        """
        self._on_revoked = on_revoked
        self._tokens: RevokedTokens | None = None
        self._open_store = open_store
        self._directory = directory
        self._on_unready = on_unready
        self._store: MetadataStore | None = None
        self._moved = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.is_ready = False

    async def start(self) -> None:
        """Open the session and load the ACLs.

        Raises:
            MetadataError: the store cannot be used; says why.
        """
        await self._open()
        try:
            await self._load()
        except BaseException:
            await self.stop()
            raise
        self._task = asyncio.get_running_loop().create_task(self._keep())

    @property
    def store(self) -> MetadataStore:
        assert self._store is not None, "opened"
        return self._store

    async def stop(self) -> None:
        self.is_ready = False
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        self._directory.release()
        if self._tokens is not None:
            await self._tokens.stop()
        if self._store is not None:
            await self._store.close()

    async def _open(self) -> None:
        store = self._store = await self._open_store(OWN_TIMEOUT_MS, None)
        store.add_session_listener(lambda state: self._on_state(store, state))

    async def _load(self) -> None:
        assert self._store is not None, "opened"
        self._moved.clear()
        for path in (ZOOKEEPER, ZOOKEEPER_CONFIG, ZOOKEEPER_QUOTA):
            with contextlib.suppress(NodeExistsError):
                await self._store.create(path)
        await self._directory.load(self._store)
        if self._on_revoked is not None:
            if self._tokens is not None:
                await self._tokens.stop()
            self._tokens = RevokedTokens(self._store, self._on_revoked)
            await self._tokens.start()
        is_connected = self._store.state is SessionState.CONNECTED
        self.is_ready = is_connected and not self._moved.is_set()

    def _on_state(self, store: MetadataStore, state: SessionState) -> None:
        if store is not self._store:
            return
        self._moved.set()
        if state is not SessionState.CONNECTED and self.is_ready:
            self.is_ready = False
            log.warning("the metadata store is unreachable: no client is served")
            self._on_unready()

    async def _sweep_until_moved(self) -> None:
        """Sweep the ACLs at intervals, until the session's state changes."""
        try:
            await self._directory.sweep()
            async with asyncio.timeout(SWEEP_SECONDS):
                await self._moved.wait()
        except TimeoutError:
            return
        except MetadataError as error:
            log.warning("the ACLs were not swept: %s", error)
            await asyncio.sleep(RETRY_MS / 1000)

    async def _keep(self) -> None:
        assert self._store is not None, "opened"
        while True:
            if self.is_ready:
                await self._sweep_until_moved()
                continue
            try:
                if self._store.state is SessionState.LOST:
                    await self._open()
                if self._store.state is SessionState.CONNECTED:
                    await self._load()
            except MetadataError as error:
                log.warning("the metadata store is still unreachable: %s", error)
            if not self.is_ready:
                await asyncio.sleep(RETRY_MS / 1000)
