"""``helio certs``: the certificates that `helio up --tls auto` makes."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from heliograph.cli.options import Home, Json, Namespace, Target
from heliograph.cli.output import Output

if TYPE_CHECKING:
    from heliograph.base.tls.authority import CertificateAuthority

app = typer.Typer(
    help="The certificates that `helio up --tls auto` makes.", no_args_is_help=True, rich_markup_mode=None
)


@app.callback()
def certs() -> None:
    """The certificates that `helio up --tls auto` makes."""


@app.command()
def show(home: Home = None, namespace: Namespace = None, as_json: Json = False) -> None:
    """Show the authority and its certificates. Each with its file, the addresses that it names, and its end."""
    output = Output(as_json)
    _show(output, _authority(namespace, home))


@app.command()
def renew(
    home: Home = None,
    namespace: Namespace = None,
    hosts: Annotated[list[str] | None, typer.Option("--host", help="Further name or address of a part.")] = None,
    as_json: Json = False,
) -> None:
    """Make the certificates again. Running parts use them for new connections; the authority stays the same."""
    output = Output(as_json)
    authority = _authority(namespace, home)
    authority.ensure(hosts or (), renew=True)
    _show(output, authority)


def _authority(namespace: str | None, home: Path | None) -> CertificateAuthority:
    from heliograph.base.tls.authority import DIRECTORY, CertificateAuthority

    return CertificateAuthority(Target.of(namespace, home).home / DIRECTORY)


def _show(output: Output, authority: CertificateAuthority) -> None:
    found = authority.facts()
    output.result({"certificates": [{**asdict(facts), "ends": facts.ends.isoformat()} for facts in found]})
    output.table(
        f"certificates in {authority.directory}",
        ("file", "subject", "names", "ends"),
        [(facts.file, facts.subject, " ".join(facts.names), f"{facts.ends:%Y-%m-%d}") for facts in found],
    )
