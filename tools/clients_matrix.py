"""The page of what foreign clients can do, from the record of the tests in ``tests/clients``.

``python -m tools.clients_matrix`` writes ``docs/clients.md``.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.clients.support.features import TABLES, FeatureTable
from tests.clients.support.report import Note, load

PAGE = Path("docs/clients.md")
_HEAD = """# Foreign clients and tools

`python -m tools.clients_matrix` generates this page from `tests/clients/matrix.json`, which
`make test-clients FULL=1 RECORD=1` records: each client runs unchanged, in its own language and at the version that the
column names, against two brokers, three bookies and a gateway.

- **yes**: a test of that client uses the feature and passes.
- **refused**: the client gets an error that gives the reason; it is below the table.
- **partly**, **no**: below the table is what is missing.
- empty: no test of that client uses the feature, or the client does not have it.
"""
_NOT_OFFERED = {  # of Pulsar, and what a client gets
    "transactions": "an error that says so: `PulsarClient.build()` with `enableTransaction(true)` fails. Deduplication "
    "by sequence ids gives exactly-once publishing to one topic",
    "replication between clusters": "registering another cluster is refused (501), so are policies that name one (412)",
    "replicated subscriptions": "a consumer that asks for `replicateSubscriptionState` is refused with the reason",
    "functions, connectors, packages": "501 with the reason: run a program with a consumer and a producer",
    "offloading to object storage": "501: all ledgers of a topic stay on bookies",
    "scalable topics": "the broker does not announce them; a topic grows by partitions",
}
_WORDS = {"works": "yes", "refused": "refused", "partly": "partly", "missing": "no"}


def clients_page() -> str:
    notes = load()
    text = [_HEAD, "## Not offered", "", "| of Pulsar | what a client gets |", "|---|---|"]
    text += [f"| {what} | {answer} |" for what, answer in _NOT_OFFERED.items()]
    text.append("")
    for table in TABLES:
        text += _table(table, [note for note in notes if note.feature in table.features])
    return "\n".join(text)


def main(page: Path = PAGE) -> None:
    """Write the page."""
    page.write_text(clients_page())


def _table(table: FeatureTable, notes: list[Note]) -> list[str]:
    if not notes:
        return []
    columns = sorted({(note.client, note.version) for note in notes})
    cells = {(note.client, note.version, note.feature): note for note in notes}
    text = [f"## {table.title}", ""]
    text += [
        "| feature | " + " | ".join(" ".join(column) for column in columns) + " |",
        "|---" * (len(columns) + 1) + "|",
    ]
    remarks = []
    for feature, title in table.features.items():
        found = [cells.get((*column, feature)) for column in columns]
        if any(found):
            text.append(f"| {title} | " + " | ".join(_WORDS[note.outcome] if note else "" for note in found) + " |")
        remarks += [
            f"- {title}, {note.client} {note.version}: {note.detail}"
            for note in found
            if note is not None and note.detail
        ]
    return [*text, "", *remarks, *([""] if remarks else [])]


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:2]))
