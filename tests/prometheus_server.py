"""Prometheus, its promtool and its Alertmanager for tests, which ``make servers`` installs."""

from __future__ import annotations

import shutil
import subprocess

import pytest


def program(name: str) -> str:
    """Return the path of a program; the test is skipped if it is not installed."""
    if not (found := shutil.which(name)):
        pytest.skip(f"{name} is not installed: make servers (Debian has it in prometheus, prometheus-alertmanager)")
    return found


def metric_problems(text: str) -> str:
    """Return what promtool finds wrong with a text that a scraper gets; empty if nothing is."""
    ran = subprocess.run([program("promtool"), "check", "metrics"], input=text, capture_output=True, text=True)
    return ran.stdout + ran.stderr
