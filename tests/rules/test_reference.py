"""The generated pages are up to date, and every setting and metric that a document names exists."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import fields
from functools import cache

import pytest

from heliograph.actors.auditor.auditor import AuditorStatistics
from heliograph.actors.auditor.worker import WorkerStatistics
from heliograph.cluster.config import ClusterConfig
from heliograph.cluster.settings.sections import SECTIONS
from heliograph.metadata.model import Policies
from heliograph.metrics.auditor import AUDITOR_METRICS
from heliograph.metrics.metric import MetricKind
from heliograph.metrics.table import METRICS, TABLE
from heliograph.monitoring.prometheus import runbooks_page
from tests.rules.source import FOLDERS, ROOT, files_below
from tests.rules.test_documents import DOCUMENTS
from tools.clients_matrix import PAGE, clients_page
from tools.reference import COMMAND, PAGES, metrics_page, settings_page

QUOTED = re.compile(r"`([^`\n]+)`")
VARIABLE = re.compile(r"\bHELIOGRAPH_[A-Z0-9_]*[A-Z0-9]\b")
METRIC = re.compile(
    r"\b(?:ray_)?heliograph_(?:auditor|bookie|broker|gateway|ledgers|namespace|part|report|subscription|topic)_\w+"
)
SERIES_OF_HISTOGRAMS = ("_bucket", "_sum", "_count")
SECTION = re.compile(rf"(?:{'|'.join(SECTIONS)})(?:\.[a-z_]+)+(?:\.\*)?")
UNIT = re.compile(r"[a-z][a-z0-9]*(?:_[a-z0-9]+)*_(?:ms|seconds|bytes|share|bytes_max|ms_max|per_second)")
CONFIG = re.compile(r"[A-Z]\w+Config|[A-Z]\w+Limits")
FOREIGN = ("etcd_",)  # names of other programs begin with these
HISTORY = "CHANGELOG.md"  # names what there was, too


@cache
def metrics() -> frozenset[str]:
    parts = {f"{n}{end}" for n, m in METRICS.items() if m.kind is MetricKind.HISTOGRAM for end in SERIES_OF_HISTOGRAMS}
    return frozenset(METRICS) | parts | {f"ray_{name}" for name, metric in METRICS.items() if metric.is_rays}


@cache
def plain_names() -> frozenset[str]:
    """Names without a section: settings of the cluster, policies, and statistics that are listed without a prefix."""
    statistics = {item.name for kind in (AuditorStatistics, WorkerStatistics) for item in fields(kind)}
    return frozenset({*ClusterConfig.model_fields} | {item.name for item in fields(Policies)} | statistics)


@cache
def sources() -> str:
    files = [file for folder in (*FOLDERS, "examples", "tests") for file in files_below(folder, ".py")]
    return "\n".join([file.text for file in files if not file.name.startswith("tests/rules/")])


@cache
def pages_of_operation() -> list[str]:
    return [
        name for name in DOCUMENTS if name.startswith("docs/operations/") or name in ("README.md", "docs/gateway.md")
    ]


@pytest.mark.parametrize(
    ("page", "generate"),
    [
        ("settings.md", settings_page),
        ("metrics.md", metrics_page),
        ("runbooks.md", lambda: runbooks_page(COMMAND)),
    ],
)
def test_a_generated_page_is_what_the_code_says(page: str, generate: Callable[[], str]) -> None:
    found = (ROOT / PAGES / page).read_text()
    assert found == generate(), f"{PAGES / page} is old: run `make docs`"


def test_the_page_of_foreign_clients_is_what_was_recorded() -> None:
    assert (ROOT / PAGE).read_text() == clients_page(), f"{PAGE} is old: run `python -m tools.clients_matrix`"


@pytest.mark.parametrize("name", DOCUMENTS)
def test_environment_variables_exist(name: str) -> None:
    known = {
        *(declared.variable("HELIOGRAPH_") for declared in ClusterConfig.declared()),
        *(f"HELIOGRAPH_{name.upper()}" for name in ClusterConfig.model_fields),
    }
    named = set(VARIABLE.findall((ROOT / name).read_text())) - known
    assert not {variable for variable in named if variable not in sources()}


@pytest.mark.parametrize("name", [name for name in DOCUMENTS if name != HISTORY])
def test_settings_of_sections_exist(name: str) -> None:
    known = {declared.name for declared in ClusterConfig.declared() if "." in declared.name}
    named = {text for text in QUOTED.findall((ROOT / name).read_text()) if SECTION.fullmatch(text)}
    folders = {full.rpartition(".")[0] for full in known}
    wrong = {text for text in named if text not in known and text.removesuffix(".*") not in folders}
    files = {text for text in wrong if text.endswith((".py", ".md", ".toml"))}
    assert not wrong - files


@pytest.mark.parametrize("name", [name for name in DOCUMENTS if name != HISTORY])
def test_metrics_exist(name: str) -> None:
    assert not {found for found in METRIC.findall((ROOT / name).read_text()) if found not in metrics()}


@pytest.mark.parametrize("name", [name for name in DOCUMENTS if name != HISTORY])
def test_configuration_classes_exist(name: str) -> None:
    named = {text for text in QUOTED.findall((ROOT / name).read_text()) if CONFIG.fullmatch(text)}
    assert not {text for text in named if f"class {text}" not in sources()}


@pytest.mark.parametrize("name", pages_of_operation())
def test_settings_and_policies_without_a_section_exist(name: str) -> None:
    if name.endswith("/settings.md"):
        return  # generated; within a table names are relative to the section
    named = {text for text in QUOTED.findall((ROOT / name).read_text()) if UNIT.fullmatch(text)}
    assert not {text for text in named - plain_names() - metrics() if not text.startswith(FOREIGN)}


def test_every_number_of_the_auditors_statistics_is_a_metric() -> None:
    numbers = [
        item.name for kind in (AuditorStatistics, WorkerStatistics) for item in fields(kind) if item.type != "str"
    ]
    assert sorted(metric.key for metric in AUDITOR_METRICS) == sorted(numbers)


def test_metrics_keep_the_rules_of_prometheus() -> None:
    assert len(METRICS) == sum(map(len, TABLE.values())), "no two metrics share a name"
    assert sum(metric.is_rays for metric in METRICS.values()) <= 20, "few go through Ray, which keeps all series"
    for name, metric in METRICS.items():
        assert re.fullmatch(r"heliograph_[a-z0-9_]+", name)
        assert metric.meaning, name
        assert name.endswith("_total") is (metric.kind is MetricKind.COUNTER), name
        assert not re.search(r"_(?:count|sum|bucket|created|info|ms|msec|kb|mb)$", name) or name.endswith("build_info")
        assert metric.kind is not MetricKind.HISTOGRAM or metric.unit in ("seconds", "bytes"), name


def test_the_rules_see_names() -> None:
    text = (ROOT / PAGES / "tasks.md").read_text()
    assert VARIABLE.findall(text)
    assert any(SECTION.fullmatch(found) for found in QUOTED.findall(text))
    assert any(UNIT.fullmatch(found) for found in QUOTED.findall(text))
