"""Options that several commands share, and the cluster that they name."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from heliograph.base.errors import (
    BadRequestError,
    ClusterNotFoundError,
    ConflictError,
    ConnectionLostError,
    HeliographError,
    NotFoundError,
)
from heliograph.base.home import (
    ADMIN_TOKEN_FILE,
    ADMIN_TOKEN_RENEWED_SECONDS,
    DEFAULT_NAMESPACE,
    ClusterHome,
    home_directory,
)
from heliograph.client import discovery
from heliograph.client.identity import TOKEN_FILE_VARIABLE, TOKEN_VARIABLE, USER_VARIABLE

if TYPE_CHECKING:
    from heliograph.cli.output import Output
    from heliograph.client.admin.admin import AdminSync
    from heliograph.client.admin.over_http import GatewayCalls
    from heliograph.client.admin.part_access import PartAccess
    from heliograph.client.aio.client import AsyncClient
    from heliograph.metadata.operator_records import Wish, WishKind

T = TypeVar("T")

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Raw = Annotated[
    bool, typer.Option("--raw", help="Write message bytes to a terminal unchanged, control sequences included.")
]
Namespace = Annotated[
    str | None, typer.Option("--namespace", help=f"Ray namespace of the cluster. [default: {DEFAULT_NAMESPACE}]")
]
Home = Annotated[
    Path | None,
    typer.Option(
        "--home", help="Directory with the cluster's state on this machine. [default: ~/.heliograph/<namespace>]"
    ),
]
Topic = Annotated[str, typer.Argument(help="Name, such as orders or persistent://public/default/orders.")]
EnsembleSize = Annotated[
    int | None, typer.Option(help="Bookies in the ensemble of a new topic's ledgers. [default: the namespace's]")
]
WriteQuorum = Annotated[int | None, typer.Option(help="Bookies that store each of its messages.")]
AckQuorum = Annotated[int | None, typer.Option(help="Bookies that have a message on disk before it is acknowledged.")]
Address = Annotated[
    str | None,
    typer.Option("--address", help="pulsar://host:port of any broker. [default: found through Ray]"),
]


@dataclass(frozen=True, slots=True)
class Target:
    """The cluster on which a command works."""

    namespace: str
    home: Path
    address: str | None = None

    @classmethod
    def of(cls, namespace: str | None, home: Path | None, address: str | None = None) -> Target:
        """Return the cluster that the options name.

        Missing options come from HELIOGRAPH_NAMESPACE and HELIOGRAPH_HOME, then from the record of `helio up` in
        ``home``, then from the defaults.
        """
        directory = home_directory(namespace, home)
        os.environ["HELIOGRAPH_HOME"] = str(directory)  # where a client looks when it has to find its brokers again
        use_token(directory / ADMIN_TOKEN_FILE)
        return cls(discovery.namespace_or_noted(namespace), directory, address)

    def gateway(self) -> GatewayCalls | None:
        """Return the cluster's gateway, by which a command need not join Ray; None if it is not noted."""
        from heliograph.client.admin.over_http import noted_gateway
        from heliograph.client.discovery import tls_options
        from heliograph.cluster.joining.noted import noted_state

        noted_state(ClusterHome(self.home))  # which reads addresses that a machine that joined lacks, and notes them
        return noted_gateway(self.namespace, self.home, tls_options(self.namespace))

    def parts(self) -> PartAccess:
        """Return the parts of the cluster, which its gateway asks; without a gateway, Ray is joined."""
        from heliograph.client.admin.part_access import PartAccess

        return PartAccess(self.namespace, self.gateway(), self.attach)

    def wished(
        self, kind: WishKind, subject: str, arguments: dict[str, str], wait_seconds: float, output: Output
    ) -> Wish:
        """Have the operator change the cluster, and tell how far it is, as ``wishing.wished`` does."""
        from heliograph.cluster.wishing import wished

        place = ClusterHome(self.home)
        with output.timed() as watch:
            return wished(
                kind, subject, arguments, place, self.namespace, wait_seconds=wait_seconds, progress=watch.progress
            )

    def wished_number(
        self, kind: WishKind, subject: str, setting: str, count: int, wait_seconds: float, output: Output
    ) -> Wish:
        """Have the operator make another number of parts, which the cluster's file has then unless it is refused."""
        from heliograph.cluster.settings.file import SettingsFile
        from heliograph.cluster.settings.location import FILE_NAME

        file = SettingsFile(self.home / FILE_NAME)
        before = file.values()
        if before:  # the next start is with as many; the wait may be cut short
            file.replace(file.text_with(setting, count))
        try:
            return self.wished(kind, subject, {"count": str(count)}, wait_seconds, output)
        except (BadRequestError, ConflictError, NotFoundError):
            if file.values().get(setting) == count:
                is_set = setting in before
                file.replace(file.text_with(setting, before[setting]) if is_set else file.text_without(setting))
            raise

    def way_to_admin(self) -> GatewayCalls | None:
        """Return the gateway for an administration of the cluster, or None after joining Ray.

        Ray is not joined for a cluster in one process, which is found without.

        Raises:
            ClusterNotFoundError: there is no cluster.
        """
        gateway = self.gateway()
        if gateway is None and discovery.own_process_state(self.namespace, self.home) is None:
            self.attach()
        return gateway

    def attach(self) -> None:
        """Join the Ray cluster that Heliograph runs in.

        Raises:
            ClusterNotFoundError: There is no such Ray cluster.
        """
        try:
            discovery.attach(self.namespace, home=self.home)
        except ClusterNotFoundError as error:
            if os.environ.get("RAY_ADDRESS") or ClusterHome(self.home).load() is not None:
                raise
            raise ClusterNotFoundError(
                f"no cluster runs from {self.home}: start one with helio dev or helio up, join one with helio join, "
                "name another home with --home, or set RAY_ADDRESS to the Ray that it runs in"
            ) from error

    @contextlib.asynccontextmanager
    async def client(self) -> AsyncIterator[AsyncClient]:
        """Open a client of the cluster for the length of the block.

        Raises:
            ClusterNotFoundError: there is none.
        """
        client = await self._connect()
        try:
            yield client
        finally:
            await client.close()

    async def _connect(self) -> AsyncClient:
        from heliograph.client.access import connect_async
        from heliograph.client.discovery import tls_options
        from heliograph.client.options import ENCRYPTED

        if self.address is not None:
            return await connect_async(self.address)
        state = ClusterHome(self.home).load()
        if state is not None and state.service_url:  # a second faster than joining Ray, if these brokers still run
            files = tls_options(self.namespace) if state.service_url.startswith(ENCRYPTED) else {}
            try:
                return await connect_async(state.service_url, discovery_namespace=self.namespace, **files)
            except ConnectionLostError:
                if state.own_process is not None:  # there is no Ray to ask
                    raise
        self.attach()
        return await connect_async(namespace=self.namespace)


def use_token(own: Path) -> None:
    """Use the token of the cluster's own administrator unless the user names another."""
    is_named = any(os.environ.get(name) for name in (TOKEN_VARIABLE, TOKEN_FILE_VARIABLE, USER_VARIABLE))
    if not is_named and os.access(own, os.R_OK):
        if time.time() - own.stat().st_mtime > ADMIN_TOKEN_RENEWED_SECONDS:
            _renew(own.parent)
        os.environ[TOKEN_FILE_VARIABLE] = str(own)


def _renew(home: Path) -> None:
    """Sign the administrator's token again. If that fails, the token stays, and brokers refuse it when it expires."""
    from dataclasses import replace

    from heliograph.auth.issuing import SECRET_KEY_FILE, own_credentials
    from heliograph.cluster.config import ClusterConfig

    with contextlib.suppress(HeliographError, OSError):
        auth = ClusterConfig(home=home).auth_config()
        if auth.token_secret_key or (home / SECRET_KEY_FILE).exists():  # no other key than the cluster's is good
            own_credentials(replace(auth, enabled=True), home, lambda _: None, with_gateway=False)


def admin_of(namespace: str | None, home: Path | None) -> AdminSync:
    """Return the administration of the cluster that the options name.

    Raises:
        ClusterNotFoundError: there is none.
    """
    from heliograph.client.admin.admin import AdminSync

    target = Target.of(namespace, home)
    return AdminSync(target.namespace, gateway=target.way_to_admin())


def content_of(path: Path) -> bytes:
    """Return the content of a file that an option names.

    Raises:
        BadRequestError: it cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadRequestError(f"{path} cannot be read ({error.strerror})", field="file") from error


def given(**options: Any) -> dict[str, Any]:
    """Return the options that were given on the command line."""
    return {name: value for name, value in options.items() if value is not None}


def pairs_of(texts: Sequence[str] | None, option: str) -> dict[str, str]:
    """Return the properties that an option gives as ``name=value``.

    Raises:
        BadRequestError: one has no name or no ``=``.
    """
    pairs = [text.partition("=") for text in texts or ()]
    for name, separator, _ in pairs:
        if not separator or not name:
            raise BadRequestError(f"--{option} {name!r} is not of the form name=value", field=option)
    return {name: value for name, _, value in pairs}
