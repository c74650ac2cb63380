"""Prometheus' text format, version 0.0.4 (pure)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from heliograph.metrics.metric import Metric, MetricKind, Series

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


_SAMPLE = re.compile(r"(\w+)(?:\{(.*)\})? (\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPED = re.compile(r"\\(.)")


def samples_in(text: str) -> Iterator[tuple[str, dict[str, str], float]]:
    """Yield the samples of a text that ``exposition`` made: name, labels and value."""
    for line in text.split("\n"):
        if not line.startswith("#") and (found := _SAMPLE.fullmatch(line)) is not None:
            labels = {name: _ESCAPED.sub(_unescaped, value) for name, value in _LABEL.findall(found[2] or "")}
            yield found[1], labels, float(found[3])


def exposition(metrics: Iterable[Metric], series: Series) -> str:
    """Return the samples in Prometheus' text format, by the order of the metrics, without others and odd values."""
    lines: list[str] = []
    for metric in metrics:
        samples = [sample for sample in series.get(metric.name, ()) if len(sample[0]) == len(metric.labels)]
        if not samples:
            continue
        meaning = metric.meaning.replace("\\", r"\\").replace("\n", r"\n")
        lines += (f"# HELP {metric.name} {meaning}", f"# TYPE {metric.name} {metric.kind.value}")
        for values, value in samples:
            with suppress(AttributeError, KeyError, TypeError, ValueError):
                labels = ",".join(map('{}="{}"'.format, metric.labels, map(escaped, values)))
                if metric.kind is MetricKind.HISTOGRAM:
                    lines += _buckets(metric, labels, value)
                else:
                    lines.append(f"{metric.name}{{{labels}}} {value + 0}" if labels else f"{metric.name} {value + 0}")
    return "\n".join([*lines, ""]) if lines else ""


def _buckets(metric: Metric, labels: str, told: Mapping[str, Any]) -> list[str]:
    name, before, count, lines = metric.name, labels + "," if labels else "", 0, []
    for bound, more in zip((*metric.bounds, "+Inf"), told["counts"], strict=True):
        count += more
        lines.append(f'{name}_bucket{{{before}le="{bound}"}} {count}')
    inside = f"{{{labels}}}" if labels else ""
    return [*lines, f"{name}_sum{inside} {told['sum'] + 0}", f"{name}_count{inside} {count}"]


def escaped(text: str) -> str:
    """Return the value of a label as it stands between quotation marks."""
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _unescaped(match: re.Match[str]) -> str:
    return "\n" if match[1] == "n" else match[1]
