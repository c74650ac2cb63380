"""The arrows of ARCHITECTURE.md: who may import whom."""

from __future__ import annotations

import pytest

from tests.rules.source import PACKAGES, SourceFile, product_files

# From the most specific prefix to the least: the first that matches a module decides. Values are allowed prefixes of
# our own modules; a module may always import its own folder.
COMMON = ("heliograph.errors",)
LEDGER_SHELL = ("metadata", "actors.wire", "actors.errors", *COMMON)
ALLOWED: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("heliograph.protocol", COMMON),
    ("heliograph.cluster", (*PACKAGES,)),  # starts the actors
    ("heliograph.cli", (*PACKAGES,)),
    ("heliograph", ("heliograph",)),
    ("metadata", COMMON),
    ("actors.errors", COMMON),
    ("actors.wire", ("actors.errors", *COMMON)),
    ("actors.ledger.driver", ("actors.ledger", *LEDGER_SHELL)),
    ("actors.ledger.directory", LEDGER_SHELL),
    ("actors.ledger", ("metadata", "actors.errors", *COMMON)),
    ("actors.bookie", ("metadata", "actors.wire", "actors.errors", *COMMON)),
    ("actors.broker", ("metadata", "actors.ledger", "actors.wire", "actors.errors", "heliograph.protocol", *COMMON)),
    ("actors.auditor", ("metadata", "actors.ledger", "actors.wire", "actors.errors", *COMMON)),
    ("gateway", ("heliograph", "metadata")),
    ("pipelines", ("heliograph", "metadata", "actors.ledger", "actors.errors")),
)
SHELLS = {"actors/ledger/directory.py": LEDGER_SHELL}
SERVER_SIDE = ("heliograph.cluster", "heliograph.cli")
CLUSTER_NOTE = ("heliograph.cluster.home", "heliograph.cluster.processes")  # what discovery may read of it
BOOKIE_CLIENT = "actors.wire.client"
SPEAKS_TO_BOOKIES = ("actors.ledger.driver", "actors.wire")
CREATES_ACTORS = {"heliograph/cluster/deployment.py"}


def is_under(module: str, prefix: str) -> bool:
    return module == prefix or module.startswith(prefix + ".")


def ours(file: SourceFile) -> set[str]:
    return {name for name in file.imports() if name.split(".")[0] in PACKAGES}


def allowed_for(file: SourceFile) -> tuple[str, tuple[str, ...]]:
    for prefix, targets in ALLOWED:
        if is_under(file.module, prefix):
            return prefix, targets
    assert file.module == "actors", f"{file.name}: no arrow is written down for it"
    return "actors", ()


@pytest.mark.parametrize("file", product_files(), ids=lambda file: file.name)
def test_imports_follow_the_arrows(file: SourceFile) -> None:
    own, targets = allowed_for(file)
    wrong = [
        name
        for name in sorted(ours(file))
        if not is_under(name, own) and not any(is_under(name, target) for target in targets)
    ]
    assert not wrong, f"{file.name} may import {targets}, not {wrong}"


@pytest.mark.parametrize(
    "file", [f for f in product_files() if is_under(f.module, "heliograph")], ids=lambda file: file.name
)
def test_client_side_does_not_import_the_server_side(file: SourceFile) -> None:
    if file.module not in CLUSTER_NOTE and any(is_under(file.module, prefix) for prefix in SERVER_SIDE):
        return
    wrong = [
        name
        for name in ours(file)
        if any(is_under(name, prefix) for prefix in (*SERVER_SIDE, "metadata", "actors", "gateway", "pipelines"))
        and not any(is_under(name, note) for note in CLUSTER_NOTE)
    ]
    assert not wrong, f"{file.name} is client side and may not import {wrong}"


@pytest.mark.parametrize("file", product_files(), ids=lambda file: file.name)
def test_only_the_deployment_imports_actor_modules(file: SourceFile) -> None:
    if file.name in CREATES_ACTORS:
        return
    wrong = [name for name in ours(file) if "actor" in name.split(".")]
    assert not wrong, f"{file.name} may not import {wrong}: only {CREATES_ACTORS} creates actors"


@pytest.mark.parametrize("file", product_files(), ids=lambda file: file.name)
def test_only_the_driver_speaks_to_bookies(file: SourceFile) -> None:
    """Broker, auditor, pipelines and tools have their ledgers from the one driver: nothing else is bookies' client."""
    if any(is_under(file.module, prefix) for prefix in SPEAKS_TO_BOOKIES):
        return
    wrong = [name for name in ours(file) if is_under(name, BOOKIE_CLIENT)]
    assert not wrong, f"{file.name} imports {wrong}: go through actors/ledger/driver"


def test_the_rule_about_bookies_sees_the_one_client() -> None:
    files = [file.name for file in product_files() if any(is_under(name, BOOKIE_CLIENT) for name in ours(file))]
    assert files == ["actors/ledger/driver/world.py"]
