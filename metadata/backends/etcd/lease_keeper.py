"""Renewal of a session's lease, on a thread and a connection of its own: a busy event loop costs no session.

A dead event loop must not keep its ephemerals for ever: the thread stops renewing if the loop has shown no sign of life
for LOOP_STALL_SECONDS_MAX.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from heliograph.metadata.backends.etcd.wire.address import EtcdAddress
from heliograph.metadata.backends.etcd.wire.connection import EtcdConnection
from heliograph.metadata.backends.etcd.wire.limits import LOOP_STALL_SECONDS_MAX
from heliograph.metadata.errors import ConnectionLossError
from heliograph.metadata.session.clock import now
from heliograph.metadata.session.limits import ATTEMPT_SECONDS_MIN, PINGS_PER_TIMEOUT, RECONNECT_PAUSE_MS, SILENCE_SHARE


class LeaseKeeper:
    """The renewing thread of one session."""

    def __init__(
        self,
        address: EtcdAddress,
        first_endpoint: int,
        lease_id: int,
        timeout: float,
        on_renewed: Callable[[float], None],
        on_over: Callable[[], None],
    ) -> None:
        """
        Args:
            timeout: seconds of the lease.
            on_renewed: called on the thread after each renewal, with the time at which it was asked for.
            on_over: called on the thread when etcd says that the lease is over.
        """
        assert lease_id, "the lease is granted"
        assert timeout > 0, "a lease has a time"
        self._address = address
        self._endpoint = first_endpoint
        self._lease_id = lease_id
        self._timeout = timeout
        self._on_renewed = on_renewed
        self._on_over = on_over
        self._stopped = threading.Event()
        self._connection: EtcdConnection | None = None
        self._lock = threading.Lock()
        self.loop_alive_at = now()
        self._thread = threading.Thread(target=self._run, name=f"etcd-lease-{lease_id:x}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop renewing, without waiting for the thread."""
        self._stopped.set()
        self._drop()

    def _run(self) -> None:
        try:
            self._renew_until_stopped()
        finally:
            self._drop()

    def _renew_until_stopped(self) -> None:
        interval = self._timeout / PINGS_PER_TIMEOUT
        pause = interval
        while not self._stopped.wait(pause):
            began = now()
            if began - self.loop_alive_at > LOOP_STALL_SECONDS_MAX:
                continue
            try:
                remaining = self._renew()
            except ConnectionLossError:
                self._drop()
                self._endpoint += 1
                pause = RECONNECT_PAUSE_MS / 1000 * (1 + self._endpoint % len(self._address.endpoints))
                continue
            if remaining == 0:
                self._on_over()
                return
            self._on_renewed(began)
            pause = max(0.0, interval - (now() - began))

    def _renew(self) -> int:
        seconds = max(self._timeout * SILENCE_SHARE / 2, ATTEMPT_SECONDS_MIN / 2)
        with self._lock:
            connection = self._connection
            if connection is None:
                endpoints = self._address.endpoints
                connection = self._connection = EtcdConnection(
                    self._address, endpoints[self._endpoint % len(endpoints)]
                )
        return connection.renew_blocking(self._lease_id, seconds)

    def _drop(self) -> None:
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
