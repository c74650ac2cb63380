"""The actor of a part: it finds the process of the part, or starts it, and passes calls on.

When the process ends, the actor starts it again at once and ends, too: Ray counts that and starts the actor again,
which finds the process. When only the actor ends, because memory ran short and Ray ended it, the next one finds it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import inspect
import json
import os
import pickle
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import ray
import ray.cloudpickle

from heliograph.base.backoff import Backoff
from heliograph.base.completion import shielded
from heliograph.base.settings import portable
from heliograph.cluster.keeping.channel import (
    HELLO,
    VERSION,
    WELCOME,
    PartCalls,
    PartChannel,
    connected,
    fork_server_name,
    socket_name,
)

AGAIN_MS, AGAIN_MS_MAX = 100, 10_000  # pauses between two tries to start the process  # I15
END_SECONDS = 5.0  # for the process to end on request
START_SECONDS = 120.0  # for a new process to join Ray; it ends after that
LISTENS = b"L"  # what a new process writes when it can be connected to
# Variables by which Ray describes a worker, which a driver would take for its own; and a shell's directory.
_OF_THE_WORKER = ("RAY_JOB_ID", "RAY_RAYLET_PID", "RAY_ADDRESS", "RAY_worker_niceness", "PWD", "OLDPWD")
_PROGRAM = "from heliograph.cluster.keeping.fork_server import main; main()"
_ROOM = "-" * 200  # in the command line of the fork server, for the titles of its children


@dataclass(frozen=True, slots=True)
class ProcessPlan:
    """Arguments of a part's process.

    Attributes:
        part: name of the actor.
        actor_id: of Ray; a part that is removed and made again has another one.
        node_id: of the Ray node.
        raylet_pid: of that node; the process ends with it.
        ray_address: of the GCS.
        node_address: of the node in Ray.
        runtime_env: of the actor, for the actors and tasks that the part makes in Ray.
        modules: of our code that the part needs.
        made_of: the pickled class of the part and its arguments.
    """

    part: str
    namespace: str
    actor_id: str
    node_id: str
    raylet_pid: int
    ray_address: str
    node_address: str
    runtime_env: dict[str, Any]
    modules: tuple[str, ...]
    made_of: bytes

    @property
    def socket_name(self) -> bytes:
        return socket_name(self.namespace, self.node_id, self.part)

    @property
    def proof(self) -> str:
        """The words by which the process knows the actor of its part."""
        return hashlib.sha256(f"{self.actor_id}/".encode() + self.made_of).hexdigest()


def kept(actor_class: type[Any], part: str, namespace: str, modules: Iterable[str] = (), shown: str = "") -> type[Any]:
    """Return a class for ``ray.remote`` with the methods of another class, which run in the part's own process.

    Its constructor takes the pickled class and arguments. ``end_process`` ends the process before the actor is removed;
    ``keeper_node`` returns the id of the node that the actor is on.

    Args:
        actor_class: its public methods are all coroutines.
        part: name of the actor.
        namespace: of the cluster.
        modules: modules that the part loads besides its class's; all processes of a node share their memory.
        shown: what Ray's pages say of the actor beside its name and node. Ray asks for that once, so it is something
            that never changes.
    """
    of_class = {each.__module__ for each in actor_class.__mro__ if each.__module__.startswith("heliograph.")}
    loaded = tuple(sorted(of_class | set(modules)))

    # A process of the previous release loads this class from its pickle when it gets the handle of the actor, so it
    # refers to nothing of this one.
    class Kept:
        def __init__(self, made_of: bytes) -> None:
            from heliograph.cluster.keeping.keeper import Keeper

            self._keeper = Keeper(part, namespace, loaded, made_of)

        def __repr__(self) -> str:
            return f"{part}({', '.join(filter(None, (self._keeper.plan.node_address, shown)))})"

        async def end_process(self) -> None:
            await self._keeper.end()

        async def keeper_node(self) -> str:
            return str(self._keeper.plan.node_id)

    for name, method in inspect.getmembers(actor_class, inspect.iscoroutinefunction):
        if not name.startswith("_"):
            setattr(Kept, name, _passed_on(name, inspect.signature(method)))
    Kept.__name__ = Kept.__qualname__ = actor_class.__name__
    return Kept


def made_of(actor_class: type[Any], arguments: Sequence[Any]) -> bytes:
    """Return the pickle of the class and arguments from which a process makes its part."""
    pickled: bytes = ray.cloudpickle.dumps((actor_class, tuple(map(portable, arguments))))  # type: ignore[no-untyped-call]
    return pickled


def _passed_on(name: str, signature: inspect.Signature) -> Callable[..., Awaitable[Any]]:
    async def passed_on(self: Any, *arguments: Any, **options: Any) -> Any:
        return await self._keeper.call(name, arguments, options)

    passed_on.__name__ = passed_on.__qualname__ = name
    plain = [each.replace(annotation=inspect.Parameter.empty) for each in signature.parameters.values()]
    passed_on.__signature__ = inspect.Signature(plain)  # type: ignore[attr-defined]  # callers' arguments are checked
    return passed_on


class Keeper:
    """The actor of a part, which keeps its process."""

    def __init__(self, part: str, namespace: str, modules: tuple[str, ...], made_of: bytes) -> None:
        context = ray.get_runtime_context()
        self.plan = ProcessPlan(
            part,
            namespace,
            str(context.get_actor_id()),
            context.get_node_id(),
            os.getppid(),
            context.gcs_address,
            str(ray.util.get_node_ip_address()),  # type: ignore[no-untyped-call]
            dict(context.runtime_env),
            modules,
            made_of,
        )
        self._is_ending = False
        self._caller = asyncio.get_running_loop().create_task(self._begin())

    async def call(self, method: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        return await (await shielded(self._caller)).call(method, arguments, options)

    async def end(self) -> None:
        """End the process; it is not started again by this actor."""
        self._is_ending = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_SECONDS):
                await (await shielded(self._caller)).end()

    async def _begin(self) -> PartCalls:
        pauses = Backoff(AGAIN_MS, AGAIN_MS_MAX)
        while True:
            if (channel := await self._found()) is not None:
                return PartCalls(channel, self._ended)
            if not await asyncio.to_thread(start_process, self.plan):
                await asyncio.sleep(pauses.pause())

    async def _found(self) -> PartChannel | None:
        """Return a connection to the process of this part; None if there is none that knows this actor."""
        unix = connected(self.plan.socket_name)
        if unix is None:
            return None
        channel = await PartChannel.over(unix)
        await channel.send(HELLO, VERSION, self.plan.proof)
        if await channel.receive() == (WELCOME, VERSION):
            return channel
        channel.close()
        return None

    async def _ended(self) -> None:
        if not self._is_ending:
            await asyncio.to_thread(start_process, self.plan)  # at once: the part need not wait for the next actor
            os._exit(1)


def start_process(plan: ProcessPlan) -> bool:
    """Start the process of a part. Return whether it can be connected to; False: it ended, or there is one already."""
    niceness = os.getpriority(os.PRIO_PROCESS, 0)
    asked = {"title": [f"part::{plan.part}", plan.namespace], "niceness": niceness, "modules": plan.modules}
    ours, theirs = socket.socketpair()
    with ours:
        with theirs, contextlib.suppress(OSError), _fork_server(plan, niceness) as server:
            socket.send_fds(server, [json.dumps(asked).encode()], [theirs.fileno(), 1, 2])
        with contextlib.suppress(OSError):
            ours.settimeout(START_SECONDS)
            ours.sendall(pickle.dumps((os.environ.get("PYTHONPATH"), plan)))
            ours.shutdown(socket.SHUT_WR)
            return ours.recv(1) == LISTENS
    return False


def _fork_server(plan: ProcessPlan, niceness: int) -> socket.socket:
    """Return a socket to the server that forks processes of this environment here; it is started if there is none.

    Raises:
        ConnectionError: it ended at once.
    """
    environment = {name: value for name, value in os.environ.items() if name not in _OF_THE_WORKER}
    environment["PYTHONPATH"] = os.pathsep.join(path or os.getcwd() for path in sys.path)  # as Ray set it up
    same = (sys.executable, os.getcwd(), sorted(environment.items()))
    for each in sorted({0, niceness}):  # a child may be nicer than the server
        name = fork_server_name(plan.node_id, repr((each, *same)))
        if (found := connected(name, socket.SOCK_SEQPACKET)) is not None:
            return found
    command = [sys.executable, "-c", _PROGRAM, name.hex(), str(plan.raylet_pid), _ROOM]
    subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, check=False)
    if (found := connected(name, socket.SOCK_SEQPACKET)) is None:
        raise ConnectionError("the fork server ended at once")
    return found
