"""The model of docs/scaling.md, and what `make scale` prints when a row fails or takes too long."""

from __future__ import annotations

import asyncio
import functools
from dataclasses import replace
from pathlib import Path

import pytest

from heliograph.base.loop_thread import LoopThread
from tests.scale.cost import Cost
from tests.scale.model import Cluster, predict
from tests.scale.row import Row, cpu
from tests.scale.site import Site
from tests.scale.table import Table

GOALS = (cpu(20, 1_000_000),)


def _fails(site: Site) -> tuple[int, Cost]:
    raise RuntimeError("no disk")


def _waits(thread: LoopThread, site: Site) -> tuple[int, Cost]:
    thread.run(asyncio.sleep(3_600))
    raise AssertionError("it was interrupted")


def _measures(site: Site) -> tuple[int, Cost]:
    return site.topics, Cost(cpu_ms=3.0)


def test_a_row_that_cannot_be_measured_says_why_and_the_others_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with LoopThread("waits") as thread:
        rows = [
            Row("first", "topics", _fails, GOALS),
            Row("second", "topics", functools.partial(_waits, thread), GOALS),
            Row("third", "topics", _measures, GOALS),
        ]
        table = Table(rows, seconds_max=0.5)
        table.measure(Site(tmp_path, 1_000))
    printed = capsys.readouterr().out.splitlines()
    assert [line.split(" | ")[:4] for line in printed] == [
        ["| first", "not measured", "topics", "1 k topics: RuntimeError: no disk"],
        ["| second", "not measured", "topics", "1 k topics: RowTimeoutError: it ran past 0 s"],
        ["| third", "processor, ms", "topics", "1 k: 3.00"],
    ]
    table.print_whole()
    assert capsys.readouterr().out.splitlines()[2:] == printed, "the whole table has the same rows"
    assert [bool(reasons) for reasons in table.missing.values()] == [True, True, False]


SMALL = Cluster()
LARGE = Cluster(bookies=1_000, brokers=20, topics=1_000_000, connections=100_000)


def test_the_goal_fits_into_processes_of_two_gigabytes() -> None:
    found = predict(LARGE)
    assert found.store_mb < 200
    assert found.auditor_mb < 500
    assert found.broker_mb < 2_000
    assert found.topics_of_a_bundle <= 1_000
    assert found.store_cores < 0.2


def test_ledgers_grow_the_auditor_and_no_broker() -> None:
    more = replace(SMALL, ledgers_per_topic=1_000.0)
    assert predict(more).auditor_mb > predict(SMALL).auditor_mb
    assert predict(more).broker_mb == predict(SMALL).broker_mb
    assert predict(more).store_disk_mb > 50 * predict(SMALL).store_disk_mb


def test_brokers_and_bookies_divide_what_there_is() -> None:
    assert predict(replace(LARGE, brokers=40)).broker_mb < predict(LARGE).broker_mb
    assert predict(replace(LARGE, bookies=2_000)).ledgers_of_a_bookie == predict(LARGE).ledgers_of_a_bookie / 2
    assert predict(replace(LARGE, brokers=2)).failover_seconds > predict(LARGE).failover_seconds
