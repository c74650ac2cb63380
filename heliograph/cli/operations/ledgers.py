"""``helio ledgers``: which ledgers lack copies, what one ledger is made of, and the progress and pause of repair."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from heliograph.base.clock import iso_time
from heliograph.base.errors import BadRequestError
from heliograph.cli.context import CommandContext, command, group
from heliograph.client.discovery import AUDITOR

MIB = 1 << 20

app = group("Show ledgers and copies; pause and resume repair.")
LedgerId = Annotated[int, typer.Argument(help="Ledger id, as topics stats and logs name it.", min=0)]
OfRepair = Annotated[bool, typer.Option("--repair", help="Audits, and the copying they start.")]
OfScrubs = Annotated[bool, typer.Option("--scrubs", help="The search of bookies for damaged entries.")]


@command(app, "under-replicated")
def under_replicated(context: CommandContext) -> None:
    """List ledgers that lack good copies.

    Each with the bookies that should have them; at most 1000.
    """
    found = context.target.parts().ask_one(AUDITOR, "repair_tasks")
    context.output.result(found)
    rows = []
    for task in found["tasks"]:
        bookies = [f"{name} (damaged)" * (name in task["damaged_bookies"]) or name for name in task["missing_bookies"]]
        state = "in repair" if task["in_repair"] else "waits"
        rows.append((task["ledger_id"], ", ".join(bookies), iso_time(task["marked_ms"]), task["lost_entries"], state))
    context.output.table("", ("ledger", "lacks copies on", "since", "entries lost", "state"), rows)
    if found["total"] > len(rows):
        context.output.progress(f"{found['total'] - len(rows)} more are not shown")


@command(app)
def describe(context: CommandContext, ledger: LedgerId) -> None:
    """Show a ledger's state, size, segments and copies.

    Every bookie that it names is asked what it holds. The last segment of a ledger that is still written is not
    compared.
    """
    found = context.target.parts().ask_one(AUDITOR, "describe_ledger", ledger)
    context.output.result(found)
    record, task = found["ledger"], found["task"]
    quorums = (record["ensemble_size"], record["write_quorum"], record["ack_quorum"])
    is_closed = record["state"] == "closed"
    context.output.facts(
        "",
        [
            ("ledger", record["ledger_id"]),
            ("state", record["state"]),
            ("entries", record["last_entry_id"] + 1 if is_closed else "still written"),
            ("size", f"{record['length'] / MIB:.2f} MiB" if is_closed else "still written"),
            ("ensemble, write quorum, ack quorum", ", ".join(map(str, quorums))),
            ("created", iso_time(record["created_ms"]) if record["created_ms"] else "unknown"),
            *((name, value) for name, value in sorted(record["properties"].items())),
            ("repair", _task_line(task)),
        ],
    )
    rows = [
        (
            f"{segment['first_entry_id']} to {'...' if segment['last_entry_id'] is None else segment['last_entry_id']}",
            ", ".join(segment["bookies"]),
            segment["copies_least"],
        )
        for segment in found["segments"]
    ]
    context.output.table("segments", ("entries", "bookies", "good copies at least"), rows)
    held = [
        (name, "serves" if bookie["is_alive"] else "away", _missing(bookie["entries_missing"]))
        for name, bookie in found["bookies"].items()
    ]
    context.output.table("bookies", ("bookie", "state", "entries missing"), held)


@command(app, "repair-status")
def repair_status(context: CommandContext) -> None:
    """Show the progress of repair and of scrubs.

    Ledgers, bytes, rate and time left; sums are since the auditor's session began. Scrubs: as `helio bookies scrubs`.
    """
    from heliograph.cli.operations import scrubs

    found, of_bookies = context.target.parts().ask_one(AUDITOR, "repair_status"), scrubs.scrubs_of(context.target)
    context.output.result({**found, "scrubs": [asdict(one) for one in of_bookies]})
    left = found["seconds_left"]
    context.output.facts(
        "",
        [
            ("repair", "paused" if found["is_paused"] else "on"),
            ("scrubs", "paused" if found["are_scrubs_paused"] else "on"),
            ("ledgers left", found["ledgers_left"]),
            ("ledgers in repair", found["ledgers_in_repair"]),
            ("ledgers with lost entries", found["ledgers_damaged"]),
            ("ledgers that wait for a bookie to take copies", found.get("ledgers_without_place", "unknown")),
            ("ledgers repaired", found["ledgers_repaired"]),
            ("copied", f"{found['entries_repaired']} entries, {found['bytes_repaired'] / MIB:.2f} MiB"),
            ("rate", f"{found['bytes_per_second'] / MIB:.2f} MiB/s"),
            ("time left", "unknown" if left is None else f"about {left:.0f} s"),
            ("latest failure", found["last_failure"] or "none"),
        ],
    )
    context.output.table("scrubs", scrubs.COLUMNS, [one.row for one in of_bookies])


@command(app)
def pause(context: CommandContext, repair: OfRepair = False, scrubs: OfScrubs = False) -> None:
    """Pause repair, the scrubs of bookies, or both.

    They stay paused until they are resumed. The ledger in repair is finished first.
    """
    _pause(context, True, repair, scrubs)


@command(app)
def resume(context: CommandContext, repair: OfRepair = False, scrubs: OfScrubs = False) -> None:
    """Resume the repair or the scrubs."""
    _pause(context, False, repair, scrubs)


def _pause(context: CommandContext, is_paused: bool, repair: bool, scrubs: bool) -> None:
    if not repair and not scrubs:
        raise BadRequestError("give --repair, --scrubs, or both", field="repair,scrubs")
    context.target.parts().ask_one(AUDITOR, "pause", is_paused if repair else None, is_paused if scrubs else None)
    names = [name for name, is_meant in (("repair", repair), ("scrubs", scrubs)) if is_meant]
    context.output.result({"paused" if is_paused else "resumed": names})
    context.output.progress(f"{' and '.join(names)}: {'paused' if is_paused else 'on'}")


def _task_line(task: dict[str, Any] | None) -> str:
    if task is None:
        return "nothing is known to be missing"
    lost = f"; {task['lost_entries']} entries have no good copy" if task["lost_entries"] else ""
    return f"marked, lacks copies on {', '.join(task['missing_bookies'])}{lost}"


def _missing(number: int | None) -> str:
    return "no answer" if number is None else str(number)
