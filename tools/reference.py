"""The generated pages of the documentation: every setting and every metric, from where they are declared.

``python -m tools.reference`` writes them to ``docs/operations``.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterable, Iterator
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from heliograph.actors.auditor.auditor import AuditorStatistics
from heliograph.actors.auditor.worker import WorkerStatistics
from heliograph.actors.bookie.statistics import GAUGES, BookieStatistics
from heliograph.actors.broker.metrics import METRICS
from heliograph.base.section import Section, limits_of
from heliograph.base.settings import default_of, setting_of, unit_of
from heliograph.cluster.config import ClusterConfig
from heliograph.cluster.hosting import BUILD_MEANING, BUILD_METRIC
from heliograph.cluster.settings.location import PREFIX
from heliograph.cluster.settings.sections import SECTIONS, decided_in
from heliograph.gateway.http.metrics import GatewayMetrics

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

_METRICS = f"""# Metrics

{COMMAND} generates this page from the metrics that the code exports.

Bookies, brokers and the auditor export every ten seconds through `ray.util.metrics`. Prometheus scrapes the agent port
of each node, and Ray puts `ray_` before each name. The gateway answers `/metrics` itself. Counts are sums since the
start of the process unless the meaning says otherwise; those of the auditor are since its session with the metadata
store began.
"""
_GATEWAY_LABELS = (
    "The counters of messages and bytes have the label `transport` (`rest` or `websocket`), that of HTTP requests has",
    "`method`, `route` and `status`, and that of sessions has `kind`.",
)


def settings_page() -> str:
    """Return the page of all settings."""
    text = [_SETTINGS, "## The cluster", ""]
    rows = [_cluster_row(name, item) for name, item in ClusterConfig.model_fields.items() if name != "sections"]
    text += _settings_table(rows)
    for name, section in SECTIONS.items():
        text += ["", f"## `[{name}]`", ""]
        text += _settings_table(_section_rows(section, name))
        text += ["", "Not in the section, because the cluster decides it:", ""]
        text += [f"- `{setting}`: {by}" for setting, by in sorted(decided_in(name).items())]
    return "\n".join(text) + "\n"


def metrics_page() -> str:
    """Return the page of all metrics."""
    bookie = {item.name: item for item in fields(BookieStatistics)}
    text = [
        _METRICS,
        "## All parts",
        "",
        f"`{BUILD_METRIC}` has the labels `part` and `version`; the gateway's own `version` alone.",
        "",
    ]
    text += _metrics_table([(f"ray_{BUILD_METRIC}", "", BUILD_MEANING)])
    text += ["", "## Bookies", "", "Each metric has the tag `bookie`.", ""]
    text += _metrics_table((f"ray_bookie_{name}", unit_of(name), setting_of(bookie[name]).meaning) for name in GAUGES)
    text += [
        "",
        "## Brokers",
        "",
        "Each metric has the tag `broker`. A name that Pulsar has is Pulsar's.",
        "",
    ]
    text += _metrics_table((f"ray_{metric.name}", _unit(metric.key), metric.meaning) for metric in METRICS)
    text += ["", "## Gateway", "", *_GATEWAY_LABELS, ""]
    families = sorted(GatewayMetrics().registry.collect(), key=lambda family: family.name)
    text += _metrics_table(
        (family.name + ("_total" if family.type == "counter" else ""), _unit(family.name), family.documentation)
        for family in families
    )
    text += [
        "",
        "## Auditor",
        "",
        "Each number is a metric, with `ray_auditor_` before its name and the tag `worker`, the actor.",
        "",
    ]
    text += ["`auditor` in the answer of `statistics()`:", ""]
    text += _metrics_table(_statistics(AuditorStatistics))
    text += ["", "`worker` in the answer of `statistics()`:", ""]
    text += _metrics_table(_statistics(WorkerStatistics))
    return "\n".join(text) + "\n"


def main(directory: Path = PAGES) -> None:
    """Write the pages."""
    (directory / "settings.md").write_text(settings_page())
    (directory / "metrics.md").write_text(metrics_page())


def _unit(name: str) -> str:
    return "bytes" if "bytes" in name else unit_of(name)


def _statistics(kind: type[Any]) -> Iterator[tuple[str, str, str]]:
    return ((item.name, unit_of(item.name), setting_of(item).meaning) for item in fields(kind))


def _metrics_table(rows: Iterable[tuple[str, str, str]]) -> list[str]:
    head = ["| name | unit | meaning |", "|---|---|---|"]
    return head + [f"| `{name}` | {unit} | {meaning} |" for name, unit, meaning in rows]


def _settings_table(rows: Iterable[tuple[str, ...]]) -> list[str]:
    head = ["| name | type, unit | default | limits | meaning | environment variable |", "|---|---|---|---|---|---|"]
    return head + ["| " + " | ".join(row) + " |" for row in rows]


def _cluster_row(name: str, item: FieldInfo) -> tuple[str, ...]:
    unit = unit_of(name)
    default = None if item.default is PydanticUndefined else item.default
    shown = "see meaning" if item.default_factory is not None else _value(default, unit)
    return (
        f"`{name}`",
        _type(item.annotation, unit),
        shown,
        limits_of(item),
        item.description or "",
        f"`{PREFIX}{name.upper()}`",
    )


def _section_rows(section: type[Section], path: str) -> Iterator[tuple[str, ...]]:
    hints = get_type_hints(section.part)
    declared = {item.name: item for item in fields(section.part)}
    for name, item in section.model_fields.items():
        if isinstance(item.annotation, type) and issubclass(item.annotation, Section):
            yield from _section_rows(item.annotation, f"{path}.{name}")
            continue
        full, unit, setting = f"{path}.{name}", unit_of(name), setting_of(declared[name])
        default = default_of(declared[name])
        if default is MISSING:  # required by the part, completed by the cluster, as the meaning says
            default = ()
        variable = PREFIX + full.replace(".", "__").upper()
        meaning = setting.meaning + (" (changes live)" if setting.is_live else "")
        row = (_type(hints[name], unit), _value(default, unit), setting.limit(), meaning, f"`{variable}`")
        yield f"`{full.partition('.')[2]}`", *row


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
