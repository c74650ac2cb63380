"""Answers that are given again while the metadata store is silent."""

from __future__ import annotations

import pytest

from heliograph.actors.broker.namespaces import ownership
from heliograph.actors.broker.namespaces.ownership import LastKnown


def test_the_latest_answers_are_known_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ownership, "ANSWERS_MAX", 2)  # I15
    known: LastKnown[str, int] = LastKnown()
    assert known.get("a") is None
    assert [known.note(key, number) for number, key in enumerate("ab")] == [0, 1]
    assert known.note("a", 7) == 7
    assert known.get("a") == 7
    known.note("c", 2)
    assert [known.get(key) for key in "abc"] == [7, None, 2]
