"""examples/processor.py runs as it stands."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples import processor


@pytest.mark.slow
def test_the_example_counts_each_payment_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    processor.main(str(tmp_path))
    assert "500 payments of 20 customers; each counts once" in capsys.readouterr().out
