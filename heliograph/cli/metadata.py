"""``helio metadata``: looking into the metadata store with ZooKeeper's own tools."""

from __future__ import annotations

import asyncio
import signal
from typing import Annotated

import typer

from heliograph.cli.options import Json
from heliograph.cli.output import Output

DEFAULT_ZK_PORT = 2181

app = typer.Typer(
    help="The metadata store, for ZooKeeper's tools and clients.", no_args_is_help=True, rich_markup_mode=None
)


@app.callback()
def metadata() -> None:
    """The metadata store, for ZooKeeper's tools and clients."""


@app.command()
def serve(
    url: Annotated[str, typer.Option(help="The store: embedded://host:port, etcd://..., zk://...")],
    zk_port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on, 0: any.")] = DEFAULT_ZK_PORT,
    host: Annotated[str, typer.Option(help="Address to listen on. Everybody who reaches it may use it.")] = "127.0.0.1",
    as_json: Json = False,
) -> None:
    """Speak ZooKeeper's protocol over a metadata store. Until interrupted.

    Stock kazoo, zkCli.sh and Java clients can look inside and coordinate through it. Sessions end with the endpoint.
    """
    asyncio.run(_serve(url, host, zk_port, Output(as_json)))


async def _serve(url: str, host: str, port: int, output: Output) -> None:
    from metadata.connect import connect_store
    from metadata.endpoint.endpoint import ZooKeeperEndpoint

    endpoint = ZooKeeperEndpoint(lambda timeout_ms: connect_store(url, session_timeout_ms=timeout_ms))
    await endpoint.start()
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    try:
        address = await endpoint.listen(host, port)
        store = _without_credentials(url)
        output.result({"address": address, "store": store})
        output.progress(f"ZooKeeper's protocol is spoken at {address}, over {store}. Interrupt to end it.")
        await ended.wait()
    finally:
        await endpoint.stop()


def _without_credentials(url: str) -> str:
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}"
