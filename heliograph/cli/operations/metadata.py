"""``helio metadata``: serve the metadata store to ZooKeeper's own tools, move it, and look after its etcd members."""

from __future__ import annotations

from dataclasses import asdict
from dataclasses import replace as changed
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from heliograph.base.errors import BadRequestError, InvalidConfigError
from heliograph.base.home import LOGS, ClusterHome
from heliograph.cli.context import CommandContext, command, group
from heliograph.cli.operations.metadata_access import is_same, named_store, opened, store_of
from heliograph.cli.options import given
from heliograph.cli.output import EXIT_FAILED, Output
from heliograph.metadata.operator_records import WishKind, WishState

if TYPE_CHECKING:
    from heliograph.auth.audit import AuditLog
    from heliograph.auth.config import AuthConfig
    from heliograph.base.tls.contexts import TlsFiles
    from heliograph.metadata.backup.file import BackupSummary
    from heliograph.metadata.endpoint.limits import EndpointLimits

DEFAULT_ZK_PORT = 2181

app = group("The metadata store: serve, move, mend it.")


@command(app)
def serve(
    context: CommandContext,
    url: Annotated[str, typer.Option(help="URL of the store: embedded://host:port, etcd://... or zk://...")],
    zk_port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on; 0: any free one.")
    ] = DEFAULT_ZK_PORT,
    host: Annotated[
        str, typer.Option(help="Address to listen on. Without auth.enabled, anyone who reaches it may use the store.")
    ] = "127.0.0.1",
    config: Annotated[
        Path | None,
        typer.Option("--config", help="TOML file with the sections auth and endpoint. [default: <home>/cluster.toml]"),
    ] = None,
    container_check_seconds: Annotated[
        float,
        typer.Option(min=0.1, help="Interval between searches for empty containers and expired nodes."),
    ] = 60,
    tls: Annotated[
        bool | None,
        typer.Option("--tls/--no-tls", help="Speak TLS by the cluster's certificates. [default: with tls_only]"),
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Allow unauthenticated access from other machines.")
    ] = False,
) -> None:
    """Serve a store in ZooKeeper's protocol until interrupted.

    Stock kazoo, zkCli.sh and Java clients can read the store and coordinate through it. Their sessions
    outlive this command until their timeout: a client may go on at another endpoint of the same store.
    With the cluster's setting auth.enabled, clients have to show a token: addauth token <token>.
    """
    import asyncio

    from heliograph.auth.audit import AuditLog
    from heliograph.auth.config import AuditConfig
    from heliograph.auth.issuing import own_credentials
    from heliograph.base.guard.handshake import secrets_in
    from heliograph.base.peer import is_loopback
    from heliograph.cluster.config import ClusterConfig
    from heliograph.metadata.credentials import with_secrets

    kept, output = ClusterHome(context.home), context.output
    cluster = ClusterConfig(**given(home=kept.directory, config_file=config))
    limits = cluster.endpoint_limits(container_check_ms=round(container_check_seconds * 1000))
    auth = cluster.auth_config()
    auth = changed(auth, **own_credentials(auth, kept.directory, output.progress, with_gateway=False))
    url = with_secrets(url, secrets_in() or kept.secret())
    if not (is_loopback(host) or auth.is_enabled or insecure):
        raise InvalidConfigError(
            f"other machines reach {host}, and could read and change the store: set auth.enabled, or give --insecure",
            field="host",
            limit="a loopback address, unless auth.enabled or --insecure is set",
        )
    files = cluster.outer_tls if (cluster.tls_only if tls is None else tls) else None
    if tls and files is None:
        raise InvalidConfigError(
            "--tls needs the cluster's tls_certificate_file and tls_key_file", field="tls_certificate_file"
        )
    part = f"endpoint-{zk_port}"
    audit = AuditConfig(file=str(kept.directory / LOGS / f"audit-{part}.json")) if auth.is_enabled else AuditConfig()
    asyncio.run(_serve(url, host, zk_port, limits, auth, AuditLog(audit, part), files, output))


@command(app)
def migrate(
    context: CommandContext,
    source: Annotated[
        str,
        typer.Option("--from", help="The cluster's store: a URL, the directory of a stopped embedded one, or etcd."),
    ],
    target: Annotated[
        str,
        typer.Option(
            "--to", help="An empty store: a URL, a directory for an embedded store, or etcd, which helio then runs."
        ),
    ],
) -> None:
    """Copy a stopped cluster's metadata into an empty store.

    Every persistent node is copied, with ACLs of endpoints and kinds, and compared; sessions and ephemerals are
    not. Then start the cluster with the new store. The old one is not changed: do not start the cluster with it again.
    The word etcd stands for the members that the cluster runs itself; they, and Ray, run for the length of the command.
    """
    import asyncio
    import tempfile

    from heliograph.metadata.backup.migration import migrate as copy

    async def run() -> tuple[BackupSummary, list[str]]:
        with tempfile.TemporaryDirectory(prefix="heliograph-migration-") as scratch:
            async with opened(found, context.home) as old, opened(empty, context.home) as new:
                return await copy(old, new, Path(scratch) / "copy")

    if is_same(source, target):
        raise BadRequestError("--from and --to name the same store", field="to")
    with (
        context.output.timed() as timer,
        named_store(source, context.location, timer.progress) as found,
        named_store(target, context.location, timer.progress) as empty,
    ):
        summary, behind = asyncio.run(run())
    context.report(
        {"instance_id": summary.instance_id, "nodes": summary.nodes, "ledgers": summary.ledgers, "behind": behind},
        f"{summary.nodes} nodes of cluster {summary.instance_id or '(none)'} were copied; both stores hold the same.",
        *(f"{path}: its counter is behind, sequence numbers will be given again" for path in behind),
    )


@command(app)
def status(context: CommandContext) -> None:
    """Show the members of the running cluster's etcd.

    That is each one's role, version, size of its database, lag and alarms.
    Exit code 0 if all members serve without an alarm. Of another store, only whether it answers is shown.
    """
    import asyncio

    url = store_of(context.home)
    if not _is_etcd(url):
        _show_one_store(context, url)
        return
    from heliograph.cluster.etcd_members.record import membership_of
    from heliograph.metadata.backends.etcd.wire.address import EtcdAddress
    from heliograph.metadata.etcd_member.survey import survey  # it loads grpc

    found = asyncio.run(survey(EtcdAddress.parse(url)))
    recorded = membership_of(ClusterHome(context.home))
    names = {each.endpoint: each.name for each in recorded.members} if recorded is not None else {}
    rows = [
        (
            member.name or names.get(member.endpoint, ""),
            member.endpoint,
            "leader" if member.is_leader else "follower" if member.is_serving else "",
            member.version,
            f"{member.db_bytes / 2**20:.1f} MiB" if not member.why else "",
            member.lag if not member.why else "",
            ", ".join([*member.alarms, *([member.why] if member.why else [])]),
        )
        for member in found.members
    ]
    members = [
        {**asdict(member), "is_serving": member.is_serving, "is_leader": member.is_leader} for member in found.members
    ]
    columns = ("member", "address", "role", "version", "database", "lag", "note")
    context.show({"has_quorum": found.has_quorum, "members": members}, columns, rows)
    if found.trouble:
        context.output.progress(found.trouble)
    if not all(member.is_serving and not member.alarms for member in found.members):
        raise typer.Exit(EXIT_FAILED)


def _show_one_store(context: CommandContext, url: str) -> None:
    import asyncio

    async def ask() -> None:
        async with opened(url, context.home) as store:
            await store.sync()

    asyncio.run(ask())
    shown = _without_credentials(url)
    context.report({"store": shown, "members": []}, f"{shown} answers; it is no etcd, so it has no members to show")


@command(app)
def replace(
    context: CommandContext,
    member: Annotated[str, typer.Argument(help="The etcd member, such as metadata-2.")],
    empty_disk: Annotated[bool, typer.Option("--empty-disk", help="Confirm that its disk's data is lost.")] = False,
    wait: Annotated[float, typer.Option(help="Seconds to wait for it to serve.", min=0)] = 120.0,
) -> None:
    """Start an etcd member after its disk died.

    The other members take it off their list and on again as a new one, and it gets their data. The command is refused
    while the member serves, and where too few others do. Exits with 1 if the time was too short: the operator goes on,
    and the same command waits again.
    """
    if not empty_disk:
        raise BadRequestError(
            f"this gives up what the disk of {member} held: confirm with --empty-disk", field="empty_disk"
        )
    found = context.target.wished(WishKind.REPLACE, member, {}, wait, context.output)
    is_serving = found.state is WishState.DONE
    context.report(
        {"member": member, "is_serving": is_serving},
        f"{member} serves" if is_serving else f"{member} does not serve yet: {found.note}; the operator goes on",
    )
    if not is_serving:
        raise typer.Exit(EXIT_FAILED)


@command(app)
def members(
    context: CommandContext,
    count: Annotated[int, typer.Argument(help="New number of members: 1, 3 or 5.")],
    wait: Annotated[float, typer.Option(help="Seconds to wait until all of them serve.", min=0)] = 900.0,
) -> None:
    """Have more etcd members, or fewer, while the cluster runs.

    One joins or leaves at a time, and all serve before the next. A new one has no vote until it has the data, and needs
    a node labelled heliograph.io/metadata=true of its own; one that leaves loses its data. Refused where a majority
    would be lost or no node is there. The number is stored in the cluster's metadata: the operator goes on whether the
    command waits or not, and a later number takes the place of an earlier one. Exits with 1 if the time was too short.
    """
    from heliograph.client.discovery import METADATA

    target = context.target
    found = target.wished_number(WishKind.MEMBERS, METADATA, "metadata_members", count, wait, context.output)
    done, home = found.state is WishState.DONE, ClusterHome(target.home)
    context.output.result({**found.outcome, "done": done})
    if not done:
        context.output.warn(f"not done yet ({found.note or 'no operator has begun'}); the operator goes on")
        raise typer.Exit(EXIT_FAILED)
    if (state := home.load()) is not None and not state.node_address:
        from heliograph.cluster.lifecycle import up
        from heliograph.cluster.setting_report import of_last_start

        up(of_last_start(target.namespace, home))  # an operator, and a card for machines that join, with all members
    names = found.outcome["members"]
    hint = "; parts that run know of the new ones after helio restart --rolling" if found.outcome["joined"] else ""
    context.output.done(f"the cluster has {len(names)} members, {', '.join(names)}{hint}")


@command(app)
def defragment(context: CommandContext) -> None:
    """Give space that the members' databases do not use back.

    One member after the other, the leader last: each serves nothing meanwhile. The alarm NOSPACE is ended then.
    """
    import asyncio

    from heliograph.metadata.backends.etcd.wire.address import EtcdAddress
    from heliograph.metadata.etcd_member import changes
    from heliograph.metadata.etcd_member.survey import MemberState

    freed: dict[str, int] = {}

    def note(member: MemberState, db_bytes: int) -> None:
        freed[member.endpoint] = member.db_bytes - db_bytes
        before, after = member.db_bytes / 2**20, db_bytes / 2**20
        context.output.progress(f"{member.name or member.endpoint}: {before:.1f} MiB before, {after:.1f} MiB now")

    url = store_of(context.home)
    if not _is_etcd(url):
        raise BadRequestError(f"{_without_credentials(url)} is no etcd", field="home")
    asyncio.run(changes.defragment(EtcdAddress.parse(url), note))
    context.report({"freed_bytes": freed}, "no member has the alarm NOSPACE now")


def _is_etcd(url: str) -> bool:
    from heliograph.metadata.backends.etcd.wire.address import SCHEMES

    return url.partition("://")[0] in SCHEMES


async def _serve(
    url: str,
    host: str,
    port: int,
    limits: EndpointLimits,
    auth: AuthConfig,
    audit: AuditLog,
    tls: TlsFiles | None,
    output: Output,
) -> None:
    import asyncio
    import signal

    from heliograph.base.guard.watchdog import watch_running_loop, watchdog_of_environment
    from heliograph.base.tls.contexts import ServerTls
    from heliograph.metadata.connect import connect_store
    from heliograph.metadata.endpoint.endpoint import ZooKeeperEndpoint

    endpoint = ZooKeeperEndpoint(
        lambda timeout_ms, token: connect_store(url, session_timeout_ms=timeout_ms, token=token),
        limits=limits,
        auth=auth,
        audit=audit,
    )
    await endpoint.start()
    watch_running_loop()
    if (watchdog := watchdog_of_environment()) is not None:
        watchdog.start()
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    try:
        address = await endpoint.listen(host, port, tls=None if tls is None else ServerTls(tls))
        store = _without_credentials(url)
        output.result({"address": address, "store": store})
        output.progress(f"Serving {store} in ZooKeeper's protocol at {address}. Interrupt to end.")
        await ended.wait()
    finally:
        await endpoint.stop()


def _without_credentials(url: str) -> str:
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}"
