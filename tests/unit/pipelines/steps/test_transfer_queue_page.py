"""docs/transfer-queue.md: its examples run as they stand, and its table has every call."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from heliograph.transfer_queue import StepStore
from tests.rules.source import ROOT

PAGE = ROOT / "docs" / "transfer-queue.md"


def test_the_examples_run_as_they_stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HELIOGRAPH_STATE_ROOT", str(tmp_path))
    names: dict[str, Any] = {"__name__": "page"}
    examples = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(examples) == 2
    for number, example in enumerate(examples):
        exec(compile(example, f"docs/transfer-queue.md, example {number + 1}", "exec"), names)


def test_every_call_is_told_and_has_a_form_for_event_loops() -> None:
    text = PAGE.read_text()
    calls = {name for name in vars(StepStore) if not name.startswith("_")} - {"run_anywhere"}
    blocking = {name for name in calls if not name.endswith("_async")}
    assert calls == blocking | {f"{name}_async" for name in blocking}
    for name in blocking:
        assert f"`{name}(" in text, name
