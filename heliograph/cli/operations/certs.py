"""``helio certs``: the certificates that `helio up --tls auto` makes."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from heliograph.cli.context import CommandContext, command, group

if TYPE_CHECKING:
    from heliograph.base.tls.authority import CertificateAuthority

app = group("The certificates that `helio up --tls auto` makes.")


@command(app)
def show(context: CommandContext) -> None:
    """Show the authority and its certificates. Each with its file, the addresses that it names, and its end."""
    _show(context, _authority(context))


@command(app)
def renew(
    context: CommandContext,
    hosts: Annotated[list[str] | None, typer.Option("--host", help="Further name or address of a part.")] = None,
) -> None:
    """Make the certificates again. Running parts use them for new connections; the authority stays the same."""
    authority = _authority(context)
    authority.ensure(hosts or (), renew=True)
    _show(context, authority)


def _authority(context: CommandContext) -> CertificateAuthority:
    from heliograph.base.tls.authority import DIRECTORY, CertificateAuthority

    return CertificateAuthority(context.home / DIRECTORY)


def _show(context: CommandContext, authority: CertificateAuthority) -> None:
    found = authority.facts()
    context.show(
        {"certificates": [{**asdict(facts), "ends": facts.ends.isoformat()} for facts in found]},
        ("file", "subject", "names", "ends"),
        [(facts.file, facts.subject, " ".join(facts.names), f"{facts.ends:%Y-%m-%d}") for facts in found],
        f"certificates in {authority.directory}",
    )
