"""The memory of a reader does not depend on the size of the topic."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from heliograph.pipelines.reading.columns import ALL_COLUMNS
from tests.bench.process import Child
from tests.bench.tables.expanding import expanding_ledgers

MORE_MB = 48.0  # that the reader of the larger topic may hold: allocators keep what they had, and pieces of it


@pytest.mark.parametrize(
    ("small", "large"),
    [(1 << 28, 1 << 30), pytest.param(1 << 30, 20 << 30, marks=pytest.mark.full)],
    ids=["1 GiB", "20 GiB"],
)
def test_memory_is_flat_at_any_size_of_a_topic(tmp_path: Path, small: int, large: int) -> None:
    found = []
    with expanding_ledgers(tmp_path / "bookie", (small, large)) as ranges:
        for piece in ranges:
            plan = tmp_path / "ranges"
            plan.write_text(piece.to_json())
            with Child("tests.bench.tables.scan", plan, *ALL_COLUMNS) as child:
                found.append(json.loads(child.said()))
    few, many = found
    print({size: (one["pss_mb"], one["peak_mb"]) for size, one in zip((small, large), found, strict=True)})
    assert many["bytes"] >= large * 0.99
    assert many["pss_mb"] < few["pss_mb"] + MORE_MB
    assert many["peak_mb"] < few["peak_mb"] + MORE_MB
