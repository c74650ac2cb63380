"""How processes of Ray are started, and how a process joins one. Ray is imported when a function needs it."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

PROGRAM = ("-m", "ray.scripts.scripts")  # arguments of Python for the command ``ray``, which the PATH may not have
ADDRESS_FILE = "ray_current_cluster"  # in the directory of a node's files, once the node can be joined
LOOPBACK_VARIABLE = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"  # of Ray: 0 keeps its nodes on 127.0.0.1


def join_ray(address: str, node_address: str, **options: Any) -> None:
    """Join a Ray as a driver, without the output of its workers.

    Args:
        address: of its GCS.
        node_address: of the node that this process is on; empty: Ray finds it. Where several nodes keep their files on
            one disk, Ray could take the process for one of another node.
        options: more of ``ray.init``.
    """
    import ray

    if node_address:
        options["_node_ip_address"] = node_address
    with own_sigterm(is_held=address != "local"):
        ray.init(address=address, log_to_driver=False, configure_logging=False, **options)


@contextlib.contextmanager
def own_sigterm(*, is_held: bool = True) -> Iterator[None]:
    """Keep the handler that the program has for SIGTERM, for which Ray puts its own when it is joined and left.

    Ray's handler prints stacks, and has the process aborted three seconds later, whatever it does then. A program
    without a handler gets Ray's, as anywhere.

    Args:
        is_held: a signal waits for the end of the block; threads and processes that are started in it inherit that.
    """
    before = signal.getsignal(signal.SIGTERM)
    if threading.current_thread() is not threading.main_thread() or before in (None, signal.SIG_DFL):
        yield
        return
    held = (signal.SIGTERM,) if is_held else ()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, held)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def read_token_variables() -> None:
    """Have Ray read the variables of its token now; it read them when it was imported."""
    from ray._raylet import Config  # type: ignore[attr-defined]  # compiled

    Config.initialize("")


def stay_on_loopback() -> None:
    """Make Ray use 127.0.0.1 as this machine's address. Otherwise it uses the address that other machines see."""
    os.environ[LOOPBACK_VARIABLE] = "0"
    from ray._private import ray_constants

    ray_constants.ENABLE_RAY_CLUSTER = False  # Ray read its environment when it was imported


def dashboard_address() -> str:
    """Return host and port of the joined Ray's dashboard; empty if it has none.

    Raises:
        AttributeError, ray.exceptions.RaySystemError: this process is a Ray Client.
    """
    import ray

    return ray._private.worker.get_dashboard_url() or ""  # type: ignore[no-untyped-call]


def logs_directory() -> str:
    """Return the directory of the logs of the Ray node that this process has joined, which Ray's pages list."""
    import ray._private.worker

    node = ray._private.worker._global_node
    return "" if node is None else str(node.get_logs_dir_path())
