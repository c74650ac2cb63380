"""The programs of Ray's head and of its nodes: ``ray start --block``, with less of it and in another order."""

from __future__ import annotations

import os
import runpy
import sys
import time
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

from heliograph.base.guard import children, first_caller

_HEAD = "from heliograph.cluster.head import program; program.run_head(is_lean={})"
HEAD_PROGRAM = ("-c", _HEAD.format(False))
LEAN_PROGRAM = ("-c", _HEAD.format(True))


# Methods of Ray's node that start what no part waits for, in the order in which they are called in the end. Those after
# the first two have a lower priority; what the server of Ray Client starts for its users would inherit it.
_POSTPONED = ("start_ray_client_server", "start_log_monitor", "start_monitor", "start_api_server")
_OF_FULL_PRIORITY = 2
_LATER_NICENESS = 10
PARTS_STARTED = "parts-started"  # file in the temporary directory of a head; what is postponed waits for it
PARTS_WAIT_SECONDS = 60.0
_PARTS_POLL_SECONDS = 0.1
_Later = dict[str, Callable[[], Any]]
_PROGRAM_WORDS_MAX = 8  # of a command, up to the path of the program
_CLIENT_SERVER = "ray.util.client.server"
# Programs of Ray that are run by a function of ours, by the ends of their paths.
_OWN = "from heliograph.cluster.head import program; program.{}()"
_REPLACED = {"dashboard/dashboard.py": "run_dashboard", "_private/log_monitor.py": "run_log_monitor"}


def run_head(*, is_lean: bool) -> None:
    """Run the arguments of this process as those of ``ray start --block``; leave only a small process once Ray runs.

    Ray's own program keeps 120 MB of modules loaded while it does nothing but look for processes that ended. It waits
    for the dashboard before it starts what runs workers; here dashboard and monitors of a head start when
    ``PARTS_STARTED`` is there, a minute after the node is ready at the latest. One that does not start is noted in the
    log.

    Args:
        is_lean: without the server of Ray Client and the server of the dashboard. Ray has an option for each of the
            other processes that a lean head lacks; of the dashboard's, it starts the server nevertheless.
    """
    from ray.scripts import scripts

    changed: dict[str, Any] = vars(scripts)
    if is_lean:
        from ray._private import services

        changed["get_ray_client_dependency_error"] = lambda: ImportError("a lean head has no Ray Client server")
        vars(services)["start_api_server"] = lambda *_, **__: (None, None)
    later: _Later = {}
    if "--head" in sys.argv and not is_lean:
        _postpone(later)
    _replace_programs()
    changed["time"] = SimpleNamespace(**vars(time) | {"sleep": lambda _: _leave_small(later)})
    scripts.main()  # type: ignore[no-untyped-call]


def _postpone(later: _Later) -> None:
    """Have the methods of Ray's node that are ``_POSTPONED`` do nothing but note in ``later`` what they are to do."""
    from ray._private.node import Node

    def postponed(name: str, start: Callable[..., Any]) -> Callable[..., None]:
        return lambda node, *arguments, **options: later.update({name: partial(start, node, *arguments, **options)})

    for name in _POSTPONED:
        setattr(Node, name, postponed(name, getattr(Node, name)))


def _replace_programs() -> None:
    """Have Ray start some of its programs in another way: see ``_in_our_way``."""
    from ray._private import services

    start = services.start_ray_process
    vars(services)["start_ray_process"] = lambda command, *arguments, **options: start(
        _in_our_way(command), *arguments, **options
    )


def _in_our_way(command: list[str]) -> list[str]:
    """Return the command by which a program of Ray is started.

    Dashboard and log monitor are run by a function of this module, which gets the path as first argument. The server of
    Ray Client starts with the first connection to its port; Ray's clients try for half a minute.
    """
    for number, word in enumerate(command[:_PROGRAM_WORDS_MAX]):
        for end, function in _REPLACED.items():
            if word.endswith(end):
                return [*command[:number], "-c", _OWN.format(function), *command[number:]]
    given = dict(word.split("=", 1) for word in command if word.startswith("--") and "=" in word)
    if _CLIENT_SERVER in command and given.get("--mode") == "proxy" and "--host" in given and "--port" in given:
        return [sys.executable, "-I", "-S", first_caller.__file__, given["--host"], given["--port"], *command]
    return command


def run_dashboard() -> None:
    """Run Ray's dashboard, of the path that is the first argument; its modules rest where this release lets them."""
    try:
        from heliograph.cluster.head.dashboard import let_modules_rest

        let_modules_rest()
    except (ImportError, AttributeError) as error:
        print(f"modules of the dashboard do not rest: {error}", file=sys.stderr)
    _run_path()


def run_log_monitor() -> None:
    """Run Ray's log monitor, of the path that is the first argument; it waits for changes where it can."""
    from heliograph.cluster.head.log_monitor import look_when_told

    option = "--logs-dir="
    try:
        [directory] = [word.removeprefix(option) for word in sys.argv if word.startswith(option)]
        look_when_told(directory)
    except (AttributeError, OSError, ValueError) as error:
        print(f"log files are looked at ten times a second: {error}", file=sys.stderr)
    _run_path()


def _run_path() -> None:
    """Run the program of the first argument as Python does."""
    del sys.argv[0]
    sys.path[0] = os.path.dirname(sys.argv[0])
    runpy.run_path(sys.argv[0], run_name="__main__")


def _wait_for_parts() -> None:
    option = "--temp-dir="
    [directory] = [word.removeprefix(option) for word in sys.argv if word.startswith(option)]
    deadline = time.monotonic() + PARTS_WAIT_SECONDS
    while time.monotonic() < deadline and not os.path.exists(os.path.join(directory, PARTS_STARTED)):
        time.sleep(_PARTS_POLL_SECONDS)


def _leave_small(later: _Later) -> None:
    """Replace this program: what ``ray start --block`` sleeps for is the next look at the processes that it started."""
    if later:
        _wait_for_parts()
    for number, name in enumerate(_POSTPONED):
        if number == _OF_FULL_PRIORITY and later:
            os.nice(_LATER_NICENESS)
        try:
            later.get(name, lambda: None)()
        except Exception as error:  # Ray raises many classes here; what runs already goes on
            print(f"{name}: {error}", file=sys.stderr, flush=True)
    os.execv(sys.executable, [sys.executable, "-I", "-S", children.__file__])
