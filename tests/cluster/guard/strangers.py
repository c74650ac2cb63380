"""Clients that begin frames and do not end them, on many connections at once, from one thread."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from types import TracebackType
from typing import Self

CONNECT_SECONDS = 30.0


class Strangers:
    """Connections that send the begin of a frame, as fast as the server reads it or a byte at a time.

    Args:
        greeting: what makes the server take frames of the full size; its answer is awaited.
        content: what each sends then; it lacks a byte to a frame.
        pause_seconds: between two bytes of a connection; 0: everything at once.
    """

    def __init__(self, address: str, count: int, greeting: bytes, content: bytes, pause_seconds: float = 0.0) -> None:
        host, _, port = address.rpartition(":")
        self._address = (host, int(port))
        self._count = count
        self._greeting = greeting
        self._content = memoryview(content)
        self._pause_seconds = pause_seconds
        self._sent: dict[socket.socket, int] = {}
        self._is_stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="strangers", daemon=True)

    @property
    def open(self) -> int:
        """The connections that the server has not closed."""
        return len(self._sent)

    def __enter__(self) -> Self:
        for _ in range(self._count):
            peer = socket.create_connection(self._address, CONNECT_SECONDS)
            peer.sendall(self._greeting)
            assert peer.recv(1 << 16), "the greeting is answered"
            peer.setblocking(False)
            self._sent[peer] = 0
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_stopped.set()
        self._thread.join()
        for peer in self._sent:
            peer.close()

    def _run(self) -> None:
        step = 1 if self._pause_seconds else 1 << 18
        with selectors.DefaultSelector() as selector:
            for peer in self._sent:
                selector.register(peer, selectors.EVENT_READ | selectors.EVENT_WRITE, peer)
            while not self._is_stopped.is_set() and self._sent:
                for key, events in selector.select(0.1):
                    peer = key.data
                    if not self._go_on(peer, events, step):
                        selector.unregister(peer)
                        peer.close()
                        del self._sent[peer]
                    elif self._sent[peer] == len(self._content):
                        selector.modify(peer, selectors.EVENT_READ, peer)
                time.sleep(self._pause_seconds)

    def _go_on(self, peer: socket.socket, events: int, step: int) -> bool:
        """Send more, and read what the server says. Return False when it has closed the connection."""
        try:
            if events & selectors.EVENT_READ and not peer.recv(1 << 16):
                return False
            if events & selectors.EVENT_WRITE:
                with contextlib.suppress(BlockingIOError):
                    at = self._sent[peer]
                    self._sent[peer] += peer.send(self._content[at : at + step])
        except OSError:
            return False
        return True
