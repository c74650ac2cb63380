"""``helio bookies``: inspect the directories of a bookie that is down, without changing them; move or retire a bookie.

The commands import the bookie's modules when they run, because every ``helio`` command imports this file.
"""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Iterator
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from heliograph.cli.context import CommandContext, command, group
from heliograph.cli.operations import cluster
from heliograph.cli.operations.disks import decommission, hold, move, place, recover, replace
from heliograph.cli.options import Json
from heliograph.cli.output import EXIT_FAILED, Output
from heliograph.cli.relays import relays

if TYPE_CHECKING:
    from heliograph.actors.bookie.tools.offline import Folders
    from heliograph.actors.wire.entry import Entry

SHOWN_BYTES = 60  # of each payload in a table
MIB = 1 << 20

app = group("Inspect, move, repair or retire a bookie.")
racks = relays("bookies racks", "Show and change the racks of bookies.")
app.add_typer(racks, name="racks")
for run in (decommission, replace, recover, move, hold, place):
    command(app)(run)

Directories = Annotated[
    list[Path],
    typer.Argument(help="The bookie's directory, or each of its journal and data directories.", metavar="DIRECTORY..."),
]


@command(app, "list")
def list_(context: CommandContext) -> None:
    """List the bookies and their states.

    Each is writable, read-only, draining or away. Nothing can be written to or read from a bookie that is away, because
    it is not registered.
    """
    with context.output.timed():
        rows = cluster.bookie_rows(cluster.report_of(context.target))
    cells = [
        (row["name"], row["state"], cluster.time_text(row["since_ms"]), row["address"], row["rack"], row["note"])
        for row in rows
    ]
    context.show({"bookies": rows}, ("bookie", "state", "since", "address", "rack", "note"), cells)


@command(app, "scrubs")
def scrubs_(context: CommandContext) -> None:
    """Show how far the search for damaged entries is.

    Of each bookie: its last full pass, its place in the running pass, and the damage found and mended since.
    """
    from heliograph.cli.operations import scrubs as work

    found = work.scrubs_of(context.target)
    context.show({"scrubs": [asdict(one) for one in found]}, work.COLUMNS, [one.row for one in found])


@app.command("inspect")
def inspect_(directories: Directories, as_json: Json = False) -> None:
    """Show cookie, mark, journals, entry logs and their damage."""
    output = Output(as_json)
    with _opened(directories) as folders:
        found = _inspected(folders)
    output.result(found)
    identity = found["cookie"] or {}
    output.facts(
        "",
        [
            ("bookie", identity.get("bookie_id", "unknown")),
            ("cluster instance", identity.get("instance_id", "unknown")),
            ("journal directories", ", ".join(found["journal_directories"])),
            ("data directories", ", ".join(found["data_directories"])),
            ("checkpoint", (found["mark"] or {}).get("checkpoint", "none")),
            ("ledgers", found["ledgers"]),
        ],
    )
    columns = ("journal", "needed", "batches", "entries", "fences", "end", "damage")
    rows = [
        (j["path"], j["is_needed"], j["batches"], j["entries"], j["fences"], j["end"], j["damage"])
        for j in found["journals"]
    ]
    output.table("journals", columns, rows)
    logs = [(log["path"], log["ledgers"], f"{log['bytes'] / MIB:.2f}") for log in found["entry_logs"]]
    output.table("entry logs", ("log", "ledgers", "MiB"), logs)
    for line in found["damage"]:
        output.progress(f"damaged: {line}")


@app.command()
def verify(directories: Directories, as_json: Json = False) -> None:
    """Check every entry, index row and journal record. Exits with 1 if something is damaged."""
    from heliograph.actors.bookie.tools import inspect

    output = Output(as_json)
    with _opened(directories) as folders:
        report = inspect.verify(folders.data, folders.journals)
    damaged = [*folders.damage, *report.damaged]
    output.result(
        {
            "is_sound": not damaged,
            "entries_checked": report.entries_checked,
            "bytes_checked": report.bytes_checked,
            "journals_checked": sum(journal.is_needed for journal in report.journals),
            "damage": damaged,
        }
    )
    output.progress(
        f"{report.entries_checked} entries and {len(report.journals)} journal files checked, "
        f"{report.bytes_checked / MIB:.2f} MiB of entries: {len(damaged) or 'nothing'} damaged"
    )
    for line in damaged:
        output.progress(f"damaged: {line}")
    if damaged:
        raise typer.Exit(EXIT_FAILED)


@app.command("list-ledgers")
def list_ledgers(directories: Directories, as_json: Json = False) -> None:
    """List the ledgers in the index. Entries that are only in the journals are not counted."""
    from heliograph.actors.bookie.tools import inspect

    output = Output(as_json)
    with _opened(directories) as folders:
        views = inspect.list_ledgers(folders.data)
    output.result({"ledgers": [asdict(view) for view in views]})
    rows = []
    for view in views:
        flags = [name for name in ("fenced", "limbo", "deleted") if getattr(view, f"is_{name}")]
        spans = ", ".join(f"{first}-{last}" for first, last in view.spans)
        rows.append((view.ledger_id, " ".join(flags), view.last_add_confirmed, spans, view.bytes_stored))
    output.table("", ("ledger", "flags", "LAC", "entries", "bytes"), rows)


@app.command()
def read(
    directories: Directories,
    ledger: Annotated[int, typer.Option(help="Ledger id.", min=0)],
    first: Annotated[int, typer.Option(help="First entry.", min=0)] = 0,
    last: Annotated[int, typer.Option(help="Last entry; -1: the end of the ledger.", min=-1)] = -1,
    limit: Annotated[int, typer.Option(help="Print at most this many entries.", min=1, max=100_000)] = 100,
    as_json: Json = False,
) -> None:
    """Print entries of a ledger. It includes those in the journals; --json has payloads in base64."""
    from heliograph.actors.bookie.tools import inspect

    output = Output(as_json)
    end = last if last >= 0 else (1 << 63) - 1
    with _opened(directories) as folders:
        mark = inspect.read_mark(folders.data)
        newer = inspect.unflushed_entries(folders.journals, mark, ledger)
        entries = {entry.entry_id: entry for entry in newer if first <= entry.entry_id <= end}
        # `limit` flushed entries are enough: entries of the journals can only come before or among them.
        for entry in islice(inspect.read_entries(folders.data, ledger, first, end), limit):
            entries.setdefault(entry.entry_id, entry)
    found = [entries[entry_id] for entry_id in sorted(entries)[:limit]]
    output.result({"ledger_id": ledger, "entries": [_as_json(entry) for entry in found]})
    rows = [(e.entry_id, e.last_add_confirmed, len(e.payload), repr(bytes(e.payload[:SHOWN_BYTES]))) for e in found]
    output.table("", ("entry", "LAC", "bytes", "payload"), rows)


@contextlib.contextmanager
def _opened(directories: list[Path]) -> Iterator[Folders]:
    from heliograph.actors.bookie.tools.offline import find_folders, held

    folders = find_folders(directories)
    with held(folders):
        yield folders


def _inspected(folders: Folders) -> dict[str, Any]:
    from heliograph.actors.bookie.store.entry_log import log_path
    from heliograph.actors.bookie.tools import inspect
    from heliograph.actors.errors import BookieStorageError, JournalCorruptError

    damage = list(folders.damage)
    mark, ledgers = None, 0
    try:
        mark = inspect.read_mark(folders.data)
    except BookieStorageError as error:
        damage.append(str(error))
    try:
        ledgers = len(inspect.list_ledgers(folders.data))
    except BookieStorageError as error:
        damage.append(str(error))
    journals = inspect.list_journals(folders.journals, mark)
    damage += [journal.damage for journal in journals if journal.damage and journal.is_needed]
    logs: list[dict[str, Any]] = []
    for directory in folders.data:
        try:
            for log_id, usage in inspect.list_logs(directory).items():
                path = str(log_path(directory, log_id))
                logs.append({"path": path, "ledgers": len(usage), "bytes": sum(usage.values())})
        except (BookieStorageError, JournalCorruptError) as error:
            damage.append(str(error))
    return {
        "cookie": asdict(folders.cookie) if folders.cookie else None,
        "journal_directories": [str(path) for path in folders.journals],
        "data_directories": [str(path) for path in folders.data],
        "mark": {"checkpoint": mark.checkpoint, "positions": mark.positions} if mark else None,
        "ledgers": ledgers,
        "journals": [asdict(journal) for journal in journals],
        "entry_logs": logs,
        "damage": damage,
    }


def _as_json(entry: Entry) -> dict[str, Any]:
    return {
        "entry_id": entry.entry_id,
        "last_add_confirmed": entry.last_add_confirmed,
        "length": entry.length,
        "payload": base64.b64encode(entry.payload).decode(),
    }
