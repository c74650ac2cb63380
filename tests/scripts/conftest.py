"""``pytest tests/scripts --rewrite`` writes the expected traces again. Review the diff."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", default=False, help="write the expected traces of scripts again")
