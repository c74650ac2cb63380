"""The record of what each client can do, from which ``docs/clients.md`` is generated.

``make test-clients RECORD=1`` writes it to ``tests/clients/matrix.json`` and generates the page.
"""

from __future__ import annotations

import enum
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.clients.support.features import title_of
from tests.clients.support.program import ProgramRun

MATRIX = Path(__file__).parents[1] / "matrix.json"


class Outcome(enum.Enum):
    """What a client gets of a feature."""

    WORKS = "works"
    REFUSED = "refused"  # in words, as documented
    PARTLY = "partly"  # the detail says what is missing
    MISSING = "missing"


@dataclass(frozen=True)
class Note:
    """One cell of the matrix."""

    client: str
    version: str
    feature: str
    outcome: str
    detail: str = ""


class ClientMatrix:
    """The notes of one run of the tests."""

    def __init__(self) -> None:
        self.notes: dict[tuple[str, str], Note] = {}

    def note(self, client: str, version: str, feature: str, outcome: Outcome = Outcome.WORKS, detail: str = "") -> None:
        """Note what a client gets of a feature.

        Args:
            client: the column's title, such as ``Java client``; the same client in two versions has two columns.
            feature: a name of ``tests/clients/support/features.py``.
            detail: a short text for the page; none is needed for what works.
        """
        title_of(feature)
        self.notes[(f"{client} {version}", feature)] = Note(client, version, feature, outcome.value, detail)

    def check(self, run: ProgramRun, scenario: str, client: str, version: str, feature: str | None = None) -> None:
        """Check that a program's scenario succeeded, and note it.

        Args:
            feature: if not named like the scenario. None: like the scenario.
        """
        found = run.check(scenario)
        outcome, detail = (Outcome.REFUSED, found.detail) if found.refused else (Outcome.WORKS, "")
        self.note(client, version, feature or scenario, outcome, detail)

    def save(self, path: Path = MATRIX) -> None:
        """Write the notes over those of earlier runs; those of other versions of a noted client's are dropped.

        Two versions of a client are kept if one run notes both.
        """
        noted = {(note.client, note.version) for note in self.notes.values()}
        clients = {client for client, _ in noted}
        kept = [note for note in load(path) if note.client not in clients or (note.client, note.version) in noted]
        merged = {(f"{note.client} {note.version}", note.feature): note for note in kept} | self.notes
        rows = [asdict(merged[key]) for key in sorted(merged)]
        path.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n")


def load(path: Path = MATRIX) -> list[Note]:
    """Return the recorded notes."""
    return [Note(**row) for row in json.loads(path.read_text())] if path.exists() else []
