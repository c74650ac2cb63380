"""Where applications run: processes with an event loop, connections to brokers, and our own client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import TypeVar

from heliograph.client.aio.client import AsyncClient
from heliograph.client.options import ClientOptions
from tests.simulation.clients.checkers import ClientCheckers
from tests.simulation.clients.door import Door
from tests.simulation.clients.wire import Socket
from tests.simulation.topic.broker import TopicBroker
from tests.simulation.topic.loop import SimulatedLoop
from tests.simulation.topic.scene import Client, Link, Scene
from tests.simulation.world import World

ANY = ("any-1", "any-2")  # hosts that lead to some broker
OPTIONS = ClientOptions(
    tuple(f"pulsar://{host}:6650" for host in ANY),
    operation_timeout_ms=3_000,
    connect_timeout_ms=1_000,
    silence_ms=700,
    keep_alive_ms=2_500,
    retry_first_ms=20,
    retry_max_ms=400,
)

P = TypeVar("P", bound=asyncio.Protocol)


class Site:
    """The brokers, as applications reach them. It stands for ``heliograph.base.guard.local_socket``."""

    def __init__(self, scene: Scene, checkers: ClientCheckers) -> None:
        self.scene = scene
        self.checkers = checkers
        self.world: World = scene.cluster.world
        self.loops: dict[SimulatedLoop, Application] = {}
        self._doors: dict[TopicBroker, Door] = {}

    @staticmethod
    def url_of(broker: TopicBroker) -> str:
        """Return the address of a broker."""
        return f"pulsar://{broker.name}:6650"

    async def open_connection(self, factory: Callable[[], P], host: str, port: int, context: None) -> P:
        """Connect the application whose event loop is running to a broker.

        Raises:
            OSError: the broker does not run, or the connection broke.
        """
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimulatedLoop), "applications run on simulated loops"
        application = self.loops[loop]
        broker = self._broker(host, application.random)
        if not broker.is_up:
            await asyncio.sleep(0.001)
            raise ConnectionRefusedError(f"{host} does not run")
        socket = Socket(self.world, self.scene.network, application, loop, broker, application.random)
        accepted: asyncio.Future[P] = loop.create_future()

        def broken() -> None:
            socket.near.lost()
            if not accepted.done():
                with loop.running():
                    accepted.set_exception(ConnectionResetError(f"the connection to {host} broke"))

        def connected() -> None:
            if accepted.done():
                socket.near.close()
                return
            with loop.running():
                protocol = factory()
                socket.near.open(protocol)
                accepted.set_result(protocol)

        def at_broker() -> None:
            socket.far.open(self._door(broker).connection())
            socket.link.tell(connected)

        socket.link.on_broken = broken
        application.sockets = [one for one in application.sockets if one.is_open] + [socket]
        socket.link.ask(at_broker)
        return await accepted

    def _broker(self, host: str, random: Random) -> TopicBroker:
        if host in ANY:
            return self.scene.broker_for(random)
        brokers: list[TopicBroker] = self.scene.nemesis.brokers
        return next(broker for broker in brokers if broker.name == host)

    def _door(self, broker: TopicBroker) -> Door:
        found = self._doors.get(broker)
        if found is None:
            found = self._doors[broker] = Door(broker, self)
        return found


class Sockets(Link):
    """All connections of an application, as faults see them: as one."""

    def __init__(self, sockets: list[Socket]) -> None:
        self.broker = sockets[-1].link.broker
        self._sockets = sockets

    def cut(self) -> None:
        for socket in self._sockets:
            socket.link.cut()


class Application(Client):
    """A process that uses our own client."""

    loop: SimulatedLoop
    client: AsyncClient

    def __init__(self, name: str, site: Site) -> None:
        super().__init__(name)
        self.site = site
        self.scene = site.scene
        self.checkers = site.checkers
        self.world = site.world
        self.random = self.world.stream(name)
        self.sockets: list[Socket] = []
        self.start()

    @property
    def link(self) -> Link | None:  # type: ignore[override]
        """Its connections, None if there is none."""
        open_ones = [socket for socket in self.sockets if socket.is_open]
        return Sockets(open_ones) if open_ones else None

    def start(self) -> None:
        """Begin, or begin again after ``die``."""
        self.restart()
        self.loop = SimulatedLoop(self.world, self)
        self.site.loops[self.loop] = self
        with self.loop.running():
            self.client = AsyncClient(OPTIONS, random=self.random)
            self.begin()

    def die(self) -> None:
        """End as when the process is killed: its connections break, and what it had in memory is gone."""
        self.world.count("application killed")
        for socket in self.sockets:
            socket.link.cut()
        self.sockets = []
        self.crash()
        self.loop.die()
        del self.site.loops[self.loop]

    def begin(self) -> None:
        """Begin the application's work. Its loop is running."""
        raise NotImplementedError
