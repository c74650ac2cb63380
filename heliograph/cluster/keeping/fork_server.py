"""The program that the processes of a node's parts are forked from: modules are loaded once, and shared.

It has one thread and has not joined Ray, so a fork of it is a whole program. It knows which files it has loaded: when
one of them has changed, as by an upgrade, it ends, and the next server loads what is there then. It ends with the
raylet of its node, too, and when it has had no children for a minute.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.util
import json
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Sequence
from typing import NoReturn

from heliograph.base.system.processes import descriptor_of, process_state, show_as, take_score_of, thread_count

REQUEST_BYTES_MAX = 64 << 10  # I15
CONNECTIONS_WAITING = 64  # I15
REQUEST_SECONDS = 2.0  # for a request, after its connection
IDLE_SECONDS = 60.0
POLL_SECONDS = 5.0  # between two looks at the children
USED_BY_RAY = ("numpy",)  # by each program that joins Ray, if it is installed; pyarrow, too, but it starts a thread
DESCRIPTORS = 3  # of a request: the socket that the plan comes from, standard output, standard error


def main() -> None:
    """Run the server in the background; return as soon as there is one of its name.

    The command line has the name of its socket in hexadecimal, the pid of the raylet, and room for a title.
    """
    name, raylet_pid = bytes.fromhex(sys.argv[1]), int(sys.argv[2])
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        listener.bind(name)
    except OSError:
        return  # there is one
    listener.listen(CONNECTIONS_WAITING)
    if os.fork():  # Ray ends the children of its workers: this one is nobody's
        os._exit(0)
    os.setpgid(0, 0)
    show_as("heliograph-fork-server")
    with contextlib.suppress(ProcessLookupError):  # there is no raylet any more
        ForkServer(listener, raylet_pid).run()


class ForkServer:
    """Forks a process for each request."""

    def __init__(self, listener: socket.socket, raylet_pid: int) -> None:
        self._listener = listener
        self._raylet_pid = raylet_pid
        self._files: dict[str, tuple[int, int] | None] = {}  # when each loaded file was changed, and its size

    def run(self) -> None:
        """Answer until the raylet has ended, a loaded file has changed, or nothing needs this server."""
        os.environ["OPENBLAS_NUM_THREADS"] = "1"  # numpy would start threads
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children that end leave nothing
        take_score_of(self._raylet_pid)
        self._load([module for module in USED_BY_RAY if importlib.util.find_spec(module) is not None])
        raylet = descriptor_of(self._raylet_pid)
        waiting = select.poll()
        if raylet >= 0:
            waiting.register(raylet, select.POLLIN)
        waiting.register(self._listener, select.POLLIN)
        used = time.monotonic()
        while time.monotonic() - used < IDLE_SECONDS:
            events = {descriptor for descriptor, _ in waiting.poll(POLL_SECONDS * 1000)}
            has_ended = raylet in events or (raylet < 0 and process_state(self._raylet_pid) is None)
            if has_ended or any(_state(file) != state for file, state in self._files.items()):
                return
            if self._listener.fileno() in events:
                self._answer()
            if events or _has_children():
                used = time.monotonic()

    def _answer(self) -> None:
        from heliograph.cluster.keeping.channel import is_own_user

        connection, _ = self._listener.accept()
        with connection:
            connection.settimeout(REQUEST_SECONDS)
            if not is_own_user(connection):
                return
            try:
                request, descriptors, _, _ = socket.recv_fds(connection, REQUEST_BYTES_MAX, DESCRIPTORS)
            except OSError:
                return  # the caller has gone, and asks again
            if len(descriptors) == DESCRIPTORS:
                asked = json.loads(request)
                try:
                    self._load(asked["modules"])
                except Exception:
                    os.write(descriptors[-1], traceback.format_exc().encode())  # to the caller, who logs it
                    raise
                if os.fork() == 0:
                    self._listener.close()
                    connection.close()
                    _become(asked["title"], asked["niceness"], descriptors)
            for descriptor in descriptors:
                os.close(descriptor)

    def _load(self, modules: Sequence[str]) -> None:
        for module in modules:
            importlib.import_module(module)
        for loaded in list(sys.modules.values()):
            if (file := getattr(loaded, "__file__", None)) is not None and file not in self._files:
                self._files[file] = _state(file)
        assert thread_count() == 1, "a fork has only the thread that forks"
        gc.collect()
        gc.freeze()  # a collection of a child writes to none of the shared pages


def _become(title: Sequence[str], niceness: int, descriptors: Sequence[int]) -> NoReturn:
    """Go on as the process of a part."""
    try:
        os.setpriority(os.PRIO_PROCESS, 0, niceness)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setpgid(0, 0)
        show_as(*title)
        told, output, errors = descriptors
        os.dup2(output, 1)
        os.dup2(errors, 2)
        os.close(output)
        os.close(errors)
        from heliograph.cluster.keeping.host import run

        run(socket.socket(fileno=told))
    except BaseException:
        traceback.print_exc()
    os._exit(1)


def _state(file: str) -> tuple[int, int] | None:
    """Return when a file was changed, in ns, and its size in bytes; None if it is not there."""
    with contextlib.suppress(OSError):
        found = os.stat(file)
        return found.st_mtime_ns, found.st_size
    return None


def _has_children() -> bool:
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return False
    return True
