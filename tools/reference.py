"""The generated pages of the documentation: every setting and every metric, from where they are declared.

``python -m tools.reference`` writes them to ``docs/operations``.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import SecretStr

from heliograph.actors.broker.topic.series import SUBSCRIPTIONS_SHOWN_MAX, TOPICS_SHOWN_MAX
from heliograph.base.section import Declared
from heliograph.cluster.config import ClusterConfig
from heliograph.cluster.settings.location import PREFIX
from heliograph.cluster.settings.sections import SECTIONS
from heliograph.metrics.broker import HIDDEN
from heliograph.metrics.metric import LATENCY_BOUNDS
from heliograph.metrics.table import TABLE
from heliograph.monitoring.prometheus import runbooks_page

PAGES = Path("docs/operations")
COMMAND = "`python -m tools.reference`"
_TYPES = {int: "integer", float: "number", bool: "yes or no", str: "text", Path: "path", SecretStr: "secret"}
_MIB = 1 << 20

_SETTINGS = f"""# Settings

{COMMAND} generates this page from the configuration.

A setting comes from the first of these that has it:

1. a flag of `helio up`, or an argument of `ClusterConfig` such as `bookies=5` or `bookie={{"read_threads": 4}}`;
2. the environment variable of its row;
3. the TOML file that `helio up --config` or `{PREFIX}CONFIG_FILE` names, or `<home>/cluster.toml`;
4. the default.

The cluster's own settings stand at the top of the file, and each section is a table:

    bookies = 5
    data_directory = "/mnt/disk1"

    [bookie]
    read_cache_bytes = 1_073_741_824

    [broker.balance]
    shed_gap = 0.3

A section holds for all parts of its kind. A name that is no setting is refused, and the error gives the nearest one.
A setting that "changes live" can be set while brokers run: [tasks.md](tasks.md), "Change settings while brokers run".

In the environment, this is so for variables that begin with a section and two underscores; others are ignored. `home`
and `namespace` cannot be set in `<home>/cluster.toml`, because they lead to it.
"""

# What users are expected to choose, in this order; all other settings are for experts.
_USUAL = (
    *("bookies", "brokers", "host", "data_directory", "nodes", "home", "namespace", "config_file"),
    *("broker_port", "gateway_port", "ray_port", "gateway", "lean", "parts"),
    *("ensemble_size", "write_quorum", "ack_quorum", "max_message_bytes", "broker.default_retention_seconds"),
    *("metadata_kind", "metadata_url", "metadata_password"),
    *("bookie.journal_directories", "bookie.data_directories", "bookie.read_cache_bytes", "broker.cache_bytes"),
    *("secure", "tls", "tls_certificate_file", "tls_key_file", "tls_ca_file", "cluster_secret", "insecure"),
    *("auth.enabled", "auth.superuser_roles", "auth.token_secret_key", "auth.token_public_key"),
    *("broker.advertised_listeners", "gateway.allowed_hosts", "gateway.trusted_proxies"),
    *("broker.audit.file", "logs.level", "logs.format"),
)
_EXPERTS = (
    "The defaults of these settings suit almost every cluster. Change one if another page of this manual says so, or",
    "if a measurement shows that another value is better. They are set in the same ways as the usual ones.",
)

_METRICS = f"""# Metrics

{COMMAND} generates this page from `heliograph/metrics/table.py`. [watching.md](watching.md) says how Prometheus
reads them, which boards and alerts there are, and which ten numbers matter.

Each part answers `GET /metrics` with its own, the gateway with all of them. What the operator reports, which is all
under "The cluster", the gateway shows. Brokers measure any metadata store, too
(`heliograph_broker_metadata_latency_seconds`, `heliograph_broker_metadata_silent_seconds`); members of etcd and
ZooKeeper have exporters of their own.
Counters are sums since the start of their part; those of the auditor, of repair and of the operator since its session
with the metadata store began. Histograms have buckets up to
{", ".join(f"{bound:g}" for bound in LATENCY_BOUNDS[:-1])} and
{LATENCY_BOUNDS[-1]:g} seconds, and one without end. The metrics with "yes" in the last column go through
`ray.util.metrics`, too, with `ray_` before their names.

Of the topics of a broker, the first {TOPICS_SHOWN_MAX} by rate and the first {TOPICS_SHOWN_MAX} by backlog have
series of their own, each with the {SUBSCRIPTIONS_SHOWN_MAX} subscriptions that have the largest backlogs.
All others are added up by namespace in `topic="{HIDDEN}"`.

What that costs: with 10,000 loaded topics a scrape took 0.12 s of a broker's processor time on average, which is 0.8 %
of a core every 15 s. The counting of an entry took 0.26 µs: 0.05 % of a core at 20,000 messages a second in batches of
ten, 0.5 % if each message is an entry. No step of the event loop took more than 5 ms. The figures are of a busy machine
of two cores; `docs/benchmarks.md` has more, and `python -m tests.bench --only metrics` measures them again.
"""


def settings_page() -> str:
    """Return the page of all settings: those that users choose, then all others."""
    declared = {each.name: each for each in ClusterConfig.declared()}
    text = [_SETTINGS, "## Usual settings", ""]
    text += _settings_table(_row(declared.pop(name), name) for name in _USUAL)
    experts = declared.values()
    text += ["", "## Settings for experts", "", *_EXPERTS, "", "### The cluster", ""]
    text += _settings_table(_row(each, each.name) for each in experts if "." not in each.name)
    for name, section in SECTIONS.items():
        text += ["", f"### `[{name}]`", ""]
        text += _settings_table(
            _row(each, each.name.partition(".")[2]) for each in experts if each.name.startswith(section.prefix)
        )
        text += ["", "Not in the section, because the cluster decides it:", ""]
        text += [f"- `{setting}`: {by}" for setting, by in sorted(section.decided().items())]
    return "\n".join(text) + "\n"


def metrics_page() -> str:
    text = [_METRICS]
    for heading, metrics in TABLE.items():
        text += [f"## {heading}", "", "| name | type | unit | labels | meaning | Ray |", "|---|---|---|---|---|---|"]
        for metric in metrics:
            labels, is_rays = ", ".join(metric.labels), "yes" if metric.is_rays else ""
            row = (f"`{metric.name}`", metric.kind.value, metric.unit, labels, metric.meaning, is_rays)
            text.append("| " + " | ".join(row) + " |")
        text.append("")
    return "\n".join(text)


def main(directory: Path = PAGES) -> None:
    """Write the pages."""
    (directory / "settings.md").write_text(settings_page())
    (directory / "metrics.md").write_text(metrics_page())
    (directory / "runbooks.md").write_text(runbooks_page(COMMAND))


def _settings_table(rows: Iterable[tuple[str, ...]]) -> list[str]:
    head = ["| name | type, unit | default | limits | meaning | environment variable |", "|---|---|---|---|---|---|"]
    return head + ["| " + " | ".join(row) + " |" for row in rows]


def _row(declared: Declared, name: str) -> tuple[str, ...]:
    setting, unit = declared.setting, declared.unit
    return (
        f"`{name}`",
        _type(declared.kind, unit),
        "see meaning" if declared.is_computed else _value(declared.default, unit),
        setting.limit(),
        setting.meaning + (" (changes live)" if setting.is_live else ""),
        f"`{declared.variable(PREFIX)}`",
    )


def _type(kind: Any, unit: str) -> str:
    if get_origin(kind) in (Union, types.UnionType):
        kind = next(each for each in get_args(kind) if each is not type(None))
    if get_origin(kind) is Literal:
        kind = str
    name = "tables" if get_origin(kind) is dict else _TYPES.get(kind, "list of texts")
    return f"{name}, {unit}" if unit else name


def _value(value: Any, unit: str) -> str:
    if value is None or value == "":
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if unit == "bytes" and value >= _MIB and value % _MIB == 0:
        return f"{value} ({value // _MIB} MiB)"
    return f"`{value}`" if isinstance(value, str) else str(value)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:2]))
