"""``helio backup``: copies of the metadata in files. The entries of ledgers are on bookies, and in no backup."""

from __future__ import annotations

from collections.abc import Coroutine
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from heliograph.cli.context import CommandContext, command, group
from heliograph.cli.operations.metadata_access import named_store, opened, store_of

if TYPE_CHECKING:
    from heliograph.metadata.backup.file import BackupSummary

T = TypeVar("T")

app = group("Back the metadata up, and restore it.")
LEDGERS_NAMED_MAX = 20  # in lines for people

File = Annotated[Path, typer.Argument(help="The file of the backup.")]
Store = Annotated[
    str | None,
    typer.Option(
        "--store", help="URL of the store, or directory of a stopped embedded one. [default: of the running cluster]"
    ),
]


@command(app)
def create(context: CommandContext, file: File, store: Store = None) -> None:
    """Write the metadata to a file, as it is at one moment.

    The cluster may run.
    """
    from heliograph.metadata.backup.snapshot import snapshot

    async def run() -> BackupSummary:
        async with opened(store or store_of(context.home), context.home) as session:
            return (await snapshot(session, file))[0]

    with context.output.timed():
        summary = _run(run())
    context.report({"file": str(file), **_fields(summary)}, f"{file}: {_line(summary)}")


@command(app)
def verify(context: CommandContext, file: File, store: Store = None) -> None:
    """Check every byte of a backup.

    With --store, also tell which of its ledgers that store of the same cluster does not name any more.
    """
    from heliograph.metadata.backup.file import read_summary
    from heliograph.metadata.backup.restore import missing_ledgers

    with context.output.timed():
        summary = read_summary(file)
    result: dict[str, Any] = {"file": str(file), **_fields(summary)}
    lines = [f"{file} is whole: {_line(summary)}"]
    if store is not None:
        named = store

        async def run() -> list[int]:
            async with opened(named, context.home) as session:
                return await missing_ledgers(file, session, summary.instance_id)

        missing = result["missing_ledgers"] = _run(run())
        lines.append(f"{len(missing)} of its {summary.ledgers} ledgers are not in the store any more")
        lines += [f"  ledger {ledger_id}" for ledger_id in missing[:LEDGERS_NAMED_MAX]]
    context.report(result, *lines)


@command(app)
def restore(
    context: CommandContext,
    file: File,
    to: Annotated[
        str, typer.Option("--to", help="Empty store: a URL, a directory for an embedded one, or etcd, to run.")
    ],
) -> None:
    """Fill an empty store from a backup.

    Bookies delete nothing until `helio backup accept`.
    """
    from heliograph.metadata.backup.restore import restore as fill

    async def run() -> tuple[BackupSummary, list[str]]:
        async with opened(empty, context.home) as session:
            return await fill(file, session)

    with context.output.timed() as timer, named_store(to, context.location, timer.progress) as empty:
        summary, behind = _run(run())
    context.report(
        {"file": str(file), **_fields(summary), "behind": behind},
        f"restored: {_line(summary)}",
        "Bookies keep every ledger until you run: helio backup accept",
        *(f"{path}: its counter is behind, sequence numbers will be given again" for path in behind),
    )


@command(app)
def accept(context: CommandContext, store: Store = None) -> None:
    """Let bookies delete ledgers that restored metadata lacks.

    This cannot be undone.
    """
    from heliograph.metadata.recipes.restored_mark import accept as remove

    async def run() -> bool:
        async with opened(store or store_of(context.home), context.home) as session:
            return await remove(session)

    was_restored = _run(run())
    context.report(
        {"accepted": was_restored},
        "accepted: bookies delete all other ledgers" if was_restored else "nothing is to be accepted",
    )


def _fields(summary: BackupSummary) -> dict[str, Any]:
    return {
        "instance_id": summary.instance_id,
        "created_ms": summary.created_ms,
        "nodes": summary.nodes,
        "ledgers": summary.ledgers,
        "last_ledger_id": summary.last_ledger_id,
        "digest": summary.digest.hex(),
    }


def _line(summary: BackupSummary) -> str:
    made = datetime.fromtimestamp(summary.created_ms / 1000, UTC).isoformat(" ", "seconds")
    return f"cluster {summary.instance_id or '(none)'}, {summary.nodes} nodes, {summary.ledgers} ledgers, of {made}"


def _run(work: Coroutine[Any, Any, T]) -> T:
    import asyncio  # a name of a command is completed without it

    return asyncio.run(work)
