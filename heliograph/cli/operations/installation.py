"""``helio version``, ``helio dashboard``."""

from __future__ import annotations

import platform
import webbrowser
from typing import Annotated

import typer

from heliograph.base.errors import ClusterNotFoundError
from heliograph.base.home import ClusterHome
from heliograph.base.version import heliograph_version
from heliograph.cli.context import CommandContext, single_command
from heliograph.cli.options import Json
from heliograph.cli.output import Output

PACKAGES = (
    "ray",
    "etcd3",
    "kazoo",
    "rocksdict",
    "fastapi",
    "pulsar-client",
    "pyspark",
    "raydp",
)  # that users ask about


def version(as_json: Json = False) -> None:
    """Show the installed versions and extras."""
    found = {"heliograph": heliograph_version(), "python": platform.python_version()}
    found |= {name: shown for name in PACKAGES if (shown := _installed(name))}
    output = Output(as_json)
    output.result(found)
    output.facts("", list(found.items()))


def _installed(name: str) -> str:
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as version_of

    try:
        return version_of(name)
    except PackageNotFoundError:
        return ""


@single_command
def dashboard(
    context: CommandContext,
    opened: Annotated[bool, typer.Option("--open", help="Open it in this machine's browser.")] = False,
) -> None:
    """Show the address of Ray's dashboard and its token."""
    from heliograph.client.discovery import ray_token

    state = ClusterHome(context.home).load()
    if state is None or not state.dashboard_url:
        raise ClusterNotFoundError(
            f"no dashboard is noted in {context.home}: it belongs to the machine and the cluster of `helio up`"
        )
    token = ray_token() if state.ray_auth_mode == "token" else ""
    output = context.output
    output.result({"url": state.dashboard_url, "token": token})
    output.progress(state.dashboard_url)
    if token:
        output.progress(f"token: {token}")
    if opened and not webbrowser.open(state.dashboard_url):
        output.progress("no browser can be opened here")
