"""Options that several commands share, and how they lead to a cluster."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from heliograph import AsyncClient, connect_async, discovery
from heliograph.admin import AdminSync
from heliograph.cluster.home import ClusterHome
from heliograph.config import DEFAULT_NAMESPACE, ClusterConfig
from heliograph.errors import BadRequestError, ConnectionLostError

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Namespace = Annotated[
    str | None, typer.Option("--namespace", help=f"Ray namespace of the cluster. [default: {DEFAULT_NAMESPACE}]")
]
Home = Annotated[
    Path | None,
    typer.Option("--home", help="State of the cluster on this machine. [default: ~/.heliograph/<namespace>]"),
]
Topic = Annotated[str, typer.Argument(help="Name, such as orders or persistent://public/default/orders.")]
EnsembleSize = Annotated[
    int | None, typer.Option(help="Bookies a fragment of a new topic is spread over. [default: the namespace's]")
]
WriteQuorum = Annotated[int | None, typer.Option(help="Copies of each of its messages.")]
AckQuorum = Annotated[int | None, typer.Option(help="Fsynced copies of them before an ack.")]
Address = Annotated[
    str | None,
    typer.Option("--address", help="pulsar://host:port of any broker. [default: found through Ray]"),
]


@dataclass(frozen=True, slots=True)
class Target:
    """The cluster that a command works on."""

    namespace: str
    home: Path
    address: str | None = None

    @classmethod
    def of(cls, namespace: str | None, home: Path | None, address: str | None = None) -> Target:
        """From options, then HELIOGRAPH_NAMESPACE and HELIOGRAPH_HOME, then what ``home`` notes, then the defaults."""
        config = ClusterConfig(**given(namespace=namespace, home=home))
        directory = config.home_directory
        os.environ["HELIOGRAPH_HOME"] = str(directory)  # where a client looks when it has to find its brokers anew
        return cls(discovery.namespace_or_noted(namespace), directory, address)

    def attach(self) -> None:
        """Join the Ray of the cluster.

        Raises:
            ClusterNotFoundError: there is none.
        """
        discovery.attach(self.namespace, home=self.home)

    @contextlib.asynccontextmanager
    async def client(self) -> AsyncIterator[AsyncClient]:
        """A connected client of the cluster.

        Raises:
            ClusterNotFoundError: there is none.
        """
        client = await self._connect()
        try:
            yield client
        finally:
            await client.close()

    async def _connect(self) -> AsyncClient:
        if self.address is not None:
            return await connect_async(self.address)
        state = ClusterHome(self.home).load()
        if state is not None and state.service_url:  # a second sooner than joining Ray, if the brokers are there still
            with contextlib.suppress(ConnectionLostError):
                return await connect_async(state.service_url, discovery_namespace=self.namespace)
        self.attach()
        return await connect_async(namespace=self.namespace)


def admin_of(namespace: str | None, home: Path | None) -> AdminSync:
    """The administration of the cluster that the options name.

    Raises:
        ClusterNotFoundError: there is none.
    """
    target = Target.of(namespace, home)
    target.attach()
    return AdminSync(target.namespace)


def content_of(path: Path) -> bytes:
    """What is in a file that an option names.

    Raises:
        BadRequestError: it cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadRequestError(f"{path} cannot be read ({error.strerror})", field="file") from error


def given(**options: Any) -> dict[str, Any]:
    """The options that were given on the command line."""
    return {name: value for name, value in options.items() if value is not None}
