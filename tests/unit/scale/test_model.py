"""The model of docs/scaling.md: what grows with what, and what does not."""

from __future__ import annotations

from dataclasses import replace

from tests.scale.model import Cluster, predict

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
