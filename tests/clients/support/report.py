"""The record of what each client can do, from which ``docs/clients.md`` is generated.

``make test-clients FULL=1 RECORD=1`` writes it to ``tests/clients/matrix.json`` and generates the page.
"""

from __future__ import annotations

import contextlib
import enum
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.clients.support.features import TABLES, title_of
from tests.clients.support.program import ProgramRun

MATRIX = Path(__file__).parents[1] / "matrix.json"
DETAIL_CHARACTERS_MAX = 200


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
    """The notes of one run of the tests. Of several tests of one cell a failed one decides."""

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
        key = (f"{client} {version}", feature)
        earlier = self.notes.get(key)
        if earlier is None or earlier.outcome != Outcome.MISSING.value:
            self.notes[key] = Note(client, version, feature, outcome.value, detail)

    @contextlib.contextmanager
    def noting(self, client: str, version: str, feature: str) -> Iterator[None]:
        """Note that a feature works if the block succeeds, and that it is missing if the block fails."""
        try:
            yield
        except Exception as error:
            self.note(client, version, feature, Outcome.MISSING, _first_line(error))
            raise
        self.note(client, version, feature)

    def check(self, run: ProgramRun, scenario: str, client: str, version: str, feature: str | None = None) -> None:
        """Check that a program's scenario succeeded, and note it; a scenario that failed is noted, too.

        Args:
            feature: if not named like the scenario. None: like the scenario.
        """
        row = feature or scenario
        try:
            found = run.check(scenario)
        except AssertionError as error:
            self.note(client, version, row, Outcome.MISSING, _first_line(error))
            raise
        outcome, detail = (Outcome.REFUSED, found.detail) if found.refused else (Outcome.WORKS, "")
        self.note(client, version, row, outcome, detail)

    def save(self, path: Path = MATRIX, *, is_complete: bool = False) -> None:
        """Write the notes over those of earlier runs. Notes of rows that the page has no more are dropped.

        Args:
            is_complete: the run was of all tests of all clients, so a version of a noted client that it did not note is
                no longer tested, and its notes are dropped. Otherwise every cell that the run did not note stays.
        """
        rows = {feature for table in TABLES for feature in table.features}
        noted = {(note.client, note.version) for note in self.notes.values()}
        replaced = {client for client, _ in noted} if is_complete else set()
        kept = [
            note
            for note in load(path)
            if note.feature in rows and (note.client not in replaced or (note.client, note.version) in noted)
        ]
        merged = {(f"{note.client} {note.version}", note.feature): note for note in kept} | self.notes
        written = [asdict(merged[key]) for key in sorted(merged)]
        path.write_text(json.dumps(written, indent=1, ensure_ascii=False) + "\n")


def load(path: Path = MATRIX) -> list[Note]:
    """Return the recorded notes."""
    return [Note(**row) for row in json.loads(path.read_text())] if path.exists() else []


def _first_line(error: Exception) -> str:
    """Return the beginning of what an error says, for one line of a page."""
    text = (str(error).strip() or type(error).__name__).splitlines()[0]
    return text[:DETAIL_CHARACTERS_MAX]
