"""The arrows of ARCHITECTURE.md: which folders may import which."""

from __future__ import annotations

from tests.rules.source import SourceFile, example_files, for_each, product_files

# From the most specific prefix to the least: the first match decides. Values are the allowed prefixes of
# our own modules, below ``heliograph``; a module may always import its own folder.
BASE = ("base", "metrics")
LEDGER_SHELL = ("metadata", "actors.wire", "actors.errors", *BASE)
ALLOWED: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("ray", ()),
    ("metrics", ()),
    ("monitoring", ("metrics",)),
    ("base", ("ray",)),
    ("errors", BASE),
    ("tracing", BASE),
    ("protocol", BASE),
    ("operations", BASE),
    ("auth", ("operations", *BASE)),
    ("client", ("protocol", "operations", "tracing", "auth.principal", "ray", *BASE)),
    ("metadata.endpoint", ("metadata", "auth", *BASE)),
    ("metadata.recipes.revoked_tokens", ("metadata", "auth.principal", *BASE)),
    ("metadata", BASE),
    ("actors.errors", BASE),
    ("actors.wire", ("actors.errors", *BASE)),
    ("actors.ledger.driver", ("actors.ledger", *LEDGER_SHELL)),
    ("actors.ledger", ("metadata", "actors.errors", *BASE)),
    ("actors.bookie", ("metadata", "actors.wire", "actors.errors", *BASE)),
    (
        "actors.broker",
        (
            "metadata",
            "actors.ledger",
            "actors.wire",
            "actors.errors",
            "protocol",
            "operations",
            "auth",
            "tracing",
            *BASE,
        ),
    ),
    ("actors.auditor", ("metadata", "actors.ledger", "actors.wire", "actors.errors", *BASE)),
    ("actors", ()),
    ("report", ("client", "metadata", "actors.ledger", "actors.auditor", *BASE)),
    (
        "gateway",
        ("client", "tasks", "processors", "protocol", "operations", "auth", "metadata", "report", "tracing", *BASE),
    ),
    ("pipelines", ("client", "protocol", "operations", "metadata", "actors.ledger", "actors.errors", "tracing", *BASE)),
    ("queue", ("client", "protocol", *BASE)),
    ("tasks", ("client", "protocol", *BASE)),
    ("processors", ("client", "protocol", "tasks", *BASE)),
    ("serve", ("client", "tasks", *BASE)),
    ("taskiq", ("client", "tasks", *BASE)),
    ("spark", ("base", "pipelines")),
    ("ray_data", ("base", "pipelines")),
    ("transfer_queue", ("pipelines",)),
    ("standalone", ("actors", "client", "gateway", "metadata", "protocol", "report", "operations", "auth", *BASE)),
    ("testing", ("standalone", "client", *BASE)),
    ("ray_cluster", ("cluster", "client", *BASE)),
    ("cluster", ("",)),  # starts the actors
    ("cli", ("",)),
    ("", ("client", "protocol", "processors", "ray_cluster", "standalone", "tasks", "base")),  # the public names
)
BOOKIE_CLIENT = (
    "heliograph.actors.wire.client",
    "heliograph.actors.wire.group",
    "heliograph.actors.wire.connections",
)
SPEAKS_TO_BOOKIES = ("heliograph.actors.ledger.driver", "heliograph.actors.wire")
CREATES_ACTORS = {"heliograph/cluster/deployment.py"}


def is_under(module: str, prefix: str) -> bool:
    return module == prefix or module.startswith(prefix + ".")


def full(prefix: str) -> str:
    return f"heliograph.{prefix}" if prefix else "heliograph"


def ours(file: SourceFile) -> set[str]:
    return {name for name in file.imports() if is_under(name, "heliograph") and name != "heliograph"}


def allowed_for(file: SourceFile) -> tuple[str, tuple[str, ...]]:
    return next((prefix, targets) for prefix, targets in ALLOWED if is_under(file.module, full(prefix)))


@for_each(product_files)
def test_imports_follow_the_arrows(file: SourceFile) -> None:
    own, targets = allowed_for(file)
    allowed = [full(target) for target in targets] + ([full(own)] if own else [])
    wrong = [name for name in sorted(ours(file)) if not any(is_under(name, target) for target in allowed)]
    assert not wrong, f"{file.name} may import {allowed}, not {wrong}"


@for_each(product_files)
def test_the_package_does_not_use_its_own_public_names(file: SourceFile) -> None:
    """``heliograph`` itself is for users: inside, each name is imported from the module that defines it."""
    assert "heliograph" not in file.imports(), f"{file.name} imports the public package"


@for_each(lambda: [*product_files(), *example_files()])
def test_only_the_deployment_imports_actor_modules(file: SourceFile) -> None:
    if file.name in CREATES_ACTORS:
        return
    wrong = [name for name in ours(file) if "actor" in name.split(".")]
    assert not wrong, f"{file.name} may not import {wrong}: only {CREATES_ACTORS} creates actors"


@for_each(lambda: [*product_files(), *example_files()])
def test_only_the_driver_speaks_to_bookies(file: SourceFile) -> None:
    """Broker, auditor, pipelines and tools use ledgers through the one driver: nothing else is a client of bookies."""
    if any(is_under(file.module, prefix) for prefix in SPEAKS_TO_BOOKIES):
        return
    wrong = [name for name in ours(file) if any(is_under(name, client) for client in BOOKIE_CLIENT)]
    assert not wrong, f"{file.name} imports {wrong}: go through actors/ledger/driver"


def test_the_rule_about_bookies_sees_the_one_client() -> None:
    own, group, whole = BOOKIE_CLIENT
    wire, context = "actors/wire/connections.py", "actors/ledger/driver/context.py"
    wired = [wire, "actors/wire/group.py", "actors/wire/receiving.py"]
    assert [file.name for file in product_files() if own in ours(file)] == wired
    assert [file.name for file in product_files() if group in ours(file)] == [context, wire]
    assert [file.name for file in product_files() if whole in ours(file)] == [context]
