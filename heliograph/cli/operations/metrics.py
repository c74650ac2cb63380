"""``helio metrics``: what watches a cluster from outside, as files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from heliograph.base.errors import BadRequestError, ClusterNotFoundError
from heliograph.base.home import ClusterHome, ClusterState
from heliograph.cli.context import CommandContext, command, group

app = group("Boards, alert rules and the configuration of Prometheus.")

TokenFile = Annotated[
    str, typer.Option("--scrape-token-file", help="File with the token that Prometheus sends, on its machine.")
]
CaFile = Annotated[
    str | None, typer.Option(help="File on the Prometheus machine with the gateway's CA. [default: the cluster's CA]")
]
Gateway = Annotated[
    str | None,
    typer.Option(help="URL of a gateway, which serves all parts. [default: the parts of the cluster noted here]"),
]
PulsarNames = Annotated[
    bool, typer.Option("--pulsar-names", help="Scrape the names of Pulsar and BookKeeper, too, for their boards.")
]


@command(app)
def prometheus(
    context: CommandContext,
    gateway: Gateway = None,
    token_file: TokenFile = "",
    ca_file: CaFile = None,
    pulsar_names: PulsarNames = False,
) -> None:
    """Print a whole configuration of Prometheus."""
    text = _configuration(context, gateway, token_file, ca_file, with_pulsar_names=pulsar_names)
    context.output.result({"configuration": text})
    for line in text.splitlines():
        context.output.progress(line)


@command(app)
def install(
    context: CommandContext,
    directory: Annotated[Path, typer.Argument(help="Directory for the configuration, the rules and the boards.")],
    gateway: Gateway = None,
    token_file: TokenFile = "",
    ca_file: CaFile = None,
    pulsar_names: PulsarNames = False,
    runbooks: Annotated[str | None, typer.Option(help="URL of the page of runbooks, for the alerts.")] = None,
) -> None:
    """Write the configuration of Prometheus, rules and boards.

    The boards are written beside those of Ray, too, if Ray has some on this machine: `helio up` does so, and the
    operator does it again when Ray has begun a session with its own alone.
    """
    from heliograph.cluster.head.boards import give_boards_to_ray, write_boards
    from heliograph.monitoring.prometheus import RULES_FILE, RUNBOOKS, rules

    configuration, rule_file = directory / "prometheus.yml", directory / RULES_FILE
    boards = directory / "boards"
    text = _configuration(context, gateway, token_file, ca_file, with_pulsar_names=pulsar_names)
    try:
        boards.mkdir(parents=True, exist_ok=True)
        configuration.write_text(text, encoding="utf-8")
        rule_file.write_text(rules(runbooks or RUNBOOKS), encoding="utf-8")
        files = [configuration, rule_file, *write_boards(boards)]
    except OSError as error:
        raise BadRequestError(f"{error.filename} cannot be written: {error.strerror}", field="directory") from error
    state = _state(context)
    files += give_boards_to_ray(state.ray_temporary_directory if state else "")
    context.report({"files": list(map(str, files))}, f"wrote {len(files)} files:", *(f"  {file}" for file in files))


def _state(context: CommandContext) -> ClusterState | None:
    return ClusterHome(context.home).load()


def _configuration(
    context: CommandContext, gateway: str | None, token_file: str, ca_file: str | None, *, with_pulsar_names: bool
) -> str:
    from heliograph.cluster.head.boards import rays_directory
    from heliograph.cluster.head.watch_files import TARGETS_FILE
    from heliograph.monitoring.prometheus import RAY_LIST, configuration

    state = _state(context)
    url = gateway or (state.gateway_url if state else "")
    if not url:
        raise ClusterNotFoundError("no gateway is noted here: name it by --gateway http://host:8080")
    if not url.startswith(("http://", "https://")):
        raise BadRequestError(f"--gateway is {url}", field="gateway", limit="http://host:8080 or https://host:8080")
    authority = ca_file if ca_file is not None else state.tls_ca_file if state and url.startswith("https") else ""
    has_ray = state is not None and not state.own_pid
    ray_list = str(rays_directory(state.ray_temporary_directory) / RAY_LIST) if state and has_ray else ""
    targets = context.home / TARGETS_FILE
    targets_file = "" if gateway or not targets.exists() else str(targets.absolute())
    return configuration(url, token_file, authority, ray_list, targets_file, with_pulsar_names=with_pulsar_names)
