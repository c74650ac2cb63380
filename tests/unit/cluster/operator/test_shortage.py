"""Why actors of parts were started again: the texts of Ray for workers that it ended because memory ran short.

``shortage_texts.json`` has what Ray said of real ones, by its release: when, the pid, and the text.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from heliograph.base.clock import wall_ms
from heliograph.cluster.operator.shortage import AGE_SECONDS_MAX, QUIET_MS, Shortage, latest_shortage
from heliograph.report.record import load_report
from tests.unit.cluster.operator.test_leaving import operated

Ended = list[tuple[int, int, str]]
TEXTS: dict[str, Ended] = {
    release: [(ended_ms, pid, text) for ended_ms, pid, text in rows]
    for release, rows in json.loads((Path(__file__).parent / "shortage_texts.json").read_text()).items()
}
ACTORS = {
    "2.60.0": {
        "7babc81450f30277d3b0b0c301000000": "bookie-1",
        "cb5e673c9cf436abb8e4c42101000000": "bookie-2",
    },
    "2.49.0": {"cb244e109d952faccf0a046301000000": "bookie-1"},
    "2.55.1": {"74b7302495f8db05e020ef3d01000000": "bookie-1"},
}
ENDED_MS = {"2.60.0": 1_795_896_961_954, "2.55.1": 1_795_897_467_485, "2.49.0": 1_795_897_465_000}
LARGEST = {
    "2.60.0": ("ray::Leaker.leak", 0.74),
    "2.55.1": ("ray::leak_task", 1.31),
    "2.49.0": ("ray::Leaker.leak", 0.68),
}


@pytest.mark.parametrize("release", TEXTS)
def test_the_parts_and_the_largest_user_come_out_of_the_text_of_each_release(release: str) -> None:
    found = latest_shortage(TEXTS[release], ACTORS[release])
    assert found is not None
    assert found.parts == tuple(sorted(ACTORS[release].values()))
    assert found.largest == LARGEST[release]
    assert found.ended_ms == ENDED_MS[release]


def test_workers_of_others_that_were_ended_are_no_shortage_of_ours() -> None:
    assert latest_shortage(TEXTS["2.60.0"], {"f" * 32: "bookie-1"}) is None
    assert latest_shortage([], ACTORS["2.60.0"]) is None


def test_only_the_latest_shortage_counts() -> None:
    actors = ACTORS["2.60.0"]
    early, late = (next(row for row in TEXTS["2.60.0"] if row[1] == pid) for pid in (31624, 31739))
    found = latest_shortage([early, (early[0] + QUIET_MS + 1, late[1], late[2])], actors)
    assert found is not None
    assert found.parts == (actors["7babc81450f30277d3b0b0c301000000"],)
    assert found.largest == ("ray::leak_task", 0.22)


def test_a_text_without_a_table_of_processes_names_no_user() -> None:
    ended_ms, pid, text = TEXTS["2.60.0"][0]
    found = latest_shortage([(ended_ms, pid, text.partition("Top 10")[0])], ACTORS["2.60.0"])
    assert found is not None
    assert found.largest is None
    assert found.note(ended_ms / 1_000).endswith("the processes of the parts went on")


def test_the_sentence_names_few_parts_counts_many_and_ends_after_a_day() -> None:
    few = Shortage(1_795_896_957_000, ("bookie-1", "broker-1"), ("ray::Leaker", 4.1))
    now = few.ended_ms / 1_000
    assert few.note(now).startswith("Ray ended the actor of bookie-1, broker-1 at ")
    assert few.note(now).endswith("; the largest user was ray::Leaker, 4.1 GB")
    assert few.note(now + AGE_SECONDS_MAX + 1) == ""
    many = Shortage(few.ended_ms, tuple(f"bookie-{number}" for number in range(9)), None)
    assert many.note(now).startswith("Ray ended the actors of 9 parts at ")


async def test_the_operator_reports_it_for_every_form_of_status() -> None:
    async with operated() as (operator, cluster, store):
        cluster.shortage = Shortage(wall_ms(), ("bookie-1",), ("ray::Leaker", 4.1))
        await operator._look(with_facts=True)
        report = await load_report(store)
        assert report is not None
        assert cluster.shortage.note(wall_ms() / 1_000) in report.notes
        cluster.shortage = Shortage(wall_ms() - AGE_SECONDS_MAX * 1_000 - 1, ("bookie-1",), None)
        await operator._look(with_facts=True)
        report = await load_report(store)
        assert report is not None
        assert report.notes == ()
