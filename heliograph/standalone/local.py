"""``heliograph.local``: a cluster in this process, on a thread with its own event loop."""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from heliograph.base.clock import as_numbers
from heliograph.base.errors import AlreadyClosedError
from heliograph.base.home import DEFAULT_NAMESPACE
from heliograph.base.loop_thread import LoopThread
from heliograph.standalone.config import StandaloneConfig
from heliograph.standalone.directory import StandaloneDirectory
from heliograph.standalone.parts import StandaloneParts

if TYPE_CHECKING:
    from heliograph.client.sync.client import Client

log = logging.getLogger(__name__)


def local(directory: str | os.PathLike[str] | None = None, bookies: int = 1, **settings: Any) -> LocalCluster:
    """Start a cluster in this process, and return it when it serves.

    It has the parts of a cluster on several machines, with real files and real fsync, and needs no Ray. Stock Pulsar
    clients, HTTP and WebSocket connect to it. ``stop``, the end of a ``with`` block and the end of the process end it;
    what was confirmed outlives also a crash of the process, unless the directory is temporary.

    Args:
        directory: where everything is stored, made if it is missing; the next cluster on it finds it all again. None
            takes a temporary one, which is deleted at the end.
        bookies: storage nodes, 1 to 99. Each message has as many copies, but at most 3. A directory that has data of
            more bookies gets all of them.
        settings: further fields of ``StandaloneConfig``, such as ``port`` and ``http_port`` (0, the default: a free
            one), ``broker={...}`` with settings of the broker (a timedelta where they are seconds or ms), and
            ``secure=True``: callers need tokens, and broker and gateway speak TLS only.

    Raises:
        ConflictError: another process, or another cluster of this one, has the directory; names it.
        ResourceError: the directory or a port cannot be used; names it.
        InvalidConfigError: a setting is unknown or out of range; names it.
    """
    config = StandaloneConfig(bookies=bookies, **as_numbers(settings))
    return LocalCluster(config, None if directory is None else Path(directory))


class LocalCluster:
    """A running cluster in this process. Safe to share between threads; not usable in a forked child.

    Attributes:
        failure: why it stopped serving by itself (a disk failed); None while it serves.
    """

    def __init__(
        self,
        config: StandaloneConfig,
        directory: Path | None,
        namespace: str = DEFAULT_NAMESPACE,
        *,
        on_directory: Callable[[Path], object] = lambda _: None,
    ) -> None:
        """Start it; the errors are those of ``local``.

        Args:
            on_directory: called with the directory once this cluster has it, before anything starts.
        """
        self.failure: BaseException | None = None
        self.ended = threading.Event()  # set by a failure and by ``stop``
        self._stopping = threading.Lock()
        self._pid = os.getpid()
        self._directory = StandaloneDirectory(directory, namespace)
        self._thread: LoopThread | None = None
        try:
            on_directory(self._directory.path)
            self._thread = LoopThread("heliograph-local")
            self._parts = StandaloneParts(config, self._directory, self._failed)
            self._thread.run(self._parts.start())
        except BaseException:
            self._end()
            raise
        atexit.register(self._leave)

    @property
    def service_url(self) -> str:
        """``pulsar://host:port``, for Pulsar clients; ``pulsar+ssl://host:port`` if it is secured."""
        return self._parts.service_url

    @property
    def http_url(self) -> str:
        """``http://host:port`` of the gateway, for HTTP, WebSocket and Pulsar's admin tools."""
        return self._parts.http_url

    @property
    def directory(self) -> Path:
        """Where everything is stored."""
        return self._directory.path

    def connect(self, **options: Any) -> Client:
        """Return a client of this cluster; ``options`` are those of ``heliograph.connect``.

        Where the cluster is secured, the client trusts its authority, and is the administrator unless options name
        another identity.

        Raises:
            AlreadyClosedError: the cluster was stopped.
        """
        if self._thread is None:
            raise AlreadyClosedError("this cluster was stopped")
        from heliograph.client.access import connect

        if (security := self._parts.security) is not None:
            is_named = any(name in options for name in ("token", "token_file", "user"))
            own = {} if is_named else {"token_file": security.admin_token_file}
            options = {"tls_ca_file": security.tls.client_ca, **own, **options}
        return connect(self.service_url, **options)

    def stop(self) -> None:
        """Stop it in good order. Idempotent."""
        with self._stopping:
            thread = self._thread
            if thread is None or self._pid != os.getpid():
                return
            atexit.unregister(self._leave)
            try:
                thread.run(self._parts.stop())
            finally:
                self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        state = "stopped" if self._thread is None else self.service_url
        return f"LocalCluster({str(self.directory)!r}, {state})"

    def _end(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.close()
        self._directory.release()
        self.ended.set()

    def _leave(self) -> None:
        """Leave the parts as a crash would, at the end of the interpreter, which runs no more work on threads.

        Confirmed messages are durable, and the next start reads them.
        """
        if self._thread is not None and self._pid == os.getpid():
            self._thread.stop()
            self._thread = None
            self._directory.release()

    def _failed(self, error: BaseException) -> None:
        log.critical("the cluster in %s serves no more: %s", self.directory, error)
        if self.failure is None:
            self.failure = error
        self.ended.set()
