"""What the benchmarks make of their figures: aims of values and of ratios, two revisions side by side, processes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.bench import machine, processor, sections
from tests.bench.figure import Aim, Figure, Limit, at_most, ratio_at_least, ratio_at_most
from tests.bench.rest import family, rest
from tools.laboratory import against


@pytest.mark.parametrize(
    ("aim", "limit", "is_met"),
    [
        (at_most(3.0), 1.0, True),
        (ratio_at_most(3.0), 1.0, True),
        (ratio_at_most(3.0), 0.5, False),  # the machine was faster, and we were not
        (ratio_at_least(3.0), 0.5, True),
        (ratio_at_least(3.0), 0.0, None),  # nothing to compare with
    ],
)
def test_an_aim_is_of_the_value_or_of_the_ratio(aim: Aim, limit: float, is_met: bool | None) -> None:
    assert Figure("s", "f", 2.0, "ms", Limit(limit, "a bare log"), aim).is_aim_met is is_met


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("/v/lib/python3.11/ray/gcs/gcs_server --log_dir=/tmp/hg-1/session/logs", "gcs_server"),
        ("ray::SharedProcess", "SharedProcess"),
        ("ray-dashboard-NodeHead-0 (python)", "ray-dashboard-NodeHead-0"),
        ("/v/bin/python -u /v/lib/python3.11/ray/_private/log_monitor.py --logs-dir=/tmp", "log_monitor"),
        ("/v/bin/python -m ray.util.client.server --port=1", "ray.util.client.server"),
        ("/v/bin/python3.11 -B -c from\tmultiprocessing.forkserver\timport\tmain", "multiprocessing.forkserver"),
    ],
)
def test_processes_are_named_by_what_they_run(command: str, name: str) -> None:
    words = [word.replace("\t", " ") for word in command.split(" ")]
    assert family.name_of([" ".join(words)] if words[0].startswith("ray-") else words) == name


def test_two_revisions_are_compared_round_by_round() -> None:
    found: dict[against.Key, against.Pair] = {}
    for before, now in ((100.0, 150.0), (50.0, 80.0)):  # the machine was half as fast in the second round
        against.note(found, "before", [{"section": "s", "name": "f", "unit": "ms", "value": before}])
        against.note(found, "now", [{"section": "s", "name": "f", "unit": "ms", "value": now}])
    against.note(found, "now", [{"section": "s", "name": "new", "unit": "ms", "value": 1.0}])
    pair = found["s", "f"]
    assert pair.ratios == [1.5, 1.6]
    assert pair.is_clear
    assert against.cells(pair) == ("75.0", "115", "ms", "1.55", "1.50 to 1.60", "changed")
    assert against.cells(found["s", "new"]) == ("-", "1.00", "ms", "-", "", "")
    assert not against.Pair("ms", [100.0, 100.0], [150.0, 90.0]).is_clear  # the rounds do not agree


def test_the_yardstick_of_the_processor_counts_its_own_time_only() -> None:
    found = processor.measure(0.01)
    assert found.steps_per_s > 0
    assert found.checksum_mb_per_s > 0
    assert 0 < found.share <= 1


def test_processes_of_a_session_are_measured_by_kind() -> None:
    here = family.sample(os.getsid(0))
    assert here[os.getpid()].pss_bytes > 0
    before = {1: family.ProcessSample("broker", 5, 1.0, 10), 2: family.ProcessSample("gone", 5, 9.0, 10)}
    after = {1: family.ProcessSample("broker", 7, 3.0, 30), 3: family.ProcessSample("broker", 4, 1.0, 50, is_own=True)}
    found = rest.between(before, after, seconds=10.0, up_seconds=2.0)
    assert (found.processes, found.pss_bytes, found.wakes) == (2, 11, 2.0)
    assert found.cores == pytest.approx(0.3)
    assert found.memory_of == {"broker": 11 / 1e6}
    assert found.own_pss_bytes == 4
    assert found.own_cores == pytest.approx(0.1)


def test_the_present_benchmarks_take_the_place_of_those_of_an_older_tree(tmp_path: Path) -> None:
    old = tmp_path / "tests" / "bench"
    old.mkdir(parents=True)
    (old / "gone.py").write_text("")
    (tmp_path / "tests" / "kept.py").write_text("")
    against.lay_over(tmp_path)
    assert (old / "peers" / "relay.py").exists()
    assert not (old / "gone.py").exists()
    assert (tmp_path / "tests" / "kept.py").exists()


def test_every_section_has_a_module_that_reports() -> None:
    for name, module in sections.SECTIONS.items():
        source = machine.ROOT / f"{module.replace('.', '/')}.py"
        assert "\ndef report(bench: Bench) -> None:\n" in source.read_text(), name
