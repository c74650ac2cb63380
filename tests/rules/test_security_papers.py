"""SECURITY.md and the threat model name every listener and every setting that guards one."""

from __future__ import annotations

import re

import pytest

from heliograph.cluster.config import ClusterConfig
from tests.rules.source import ROOT, product_files

LISTENS = re.compile(r"\b(?:create_(?:unix_)?server|start_(?:unix_)?server|listening_socket)\(")
GUARDS = re.compile(r"tls|secret|password|insecure|^host$|^(?!ray_).*_port$")
PAPER = (ROOT / "docs/threat-model.md").read_text()


def listeners() -> list[str]:
    return [file.name for file in product_files() if LISTENS.search(file.text)]


@pytest.mark.parametrize("name", listeners())
def test_the_threat_model_names_every_listener(name: str) -> None:
    assert f"`{name}`" in PAPER, f"docs/threat-model.md does not say who may use the listener of {name}"


def test_the_listeners_are_found() -> None:
    assert {"actors/broker/protocol/server.py", "gateway/http/server.py", "actors/bookie/server/server.py"} <= set(
        listeners()
    )
    assert "heliograph/base/guard/local_socket.py" in listeners()


@pytest.mark.parametrize("name", [name for name in ClusterConfig.model_fields if GUARDS.search(name)])
def test_the_threat_model_names_every_setting_that_guards_a_door(name: str) -> None:
    assert f"`{name}`" in PAPER


def test_the_policy_says_how_to_report_and_what_is_promised() -> None:
    policy = (ROOT / "SECURITY.md").read_text()
    for heading in ("## Report a vulnerability", "## Versions", "## What is promised"):
        assert heading in policy
    assert "make sbom" in policy
    assert re.search(r"^sbom:", (ROOT / "Makefile").read_text(), re.MULTILINE)
