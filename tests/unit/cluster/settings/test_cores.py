"""The numbers of parts of a machine whose user names none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from heliograph.cluster.settings.declared import default_bookies, default_brokers, usable_cores


@pytest.mark.parametrize(("cores", "bookies", "brokers"), [(1, 3, 2), (2, 3, 2), (16, 3, 2), (64, 8, 8), (512, 16, 16)])
def test_parts_follow_the_cores_and_a_small_machine_has_as_many_as_before(
    cores: int, bookies: int, brokers: int
) -> None:
    assert (default_bookies(cores), default_brokers(cores)) == (bookies, brokers)


def test_a_container_counts_by_its_quota(tmp_path: Path) -> None:
    quota = tmp_path / "cpu.max"
    here = len(os.sched_getaffinity(0))
    assert usable_cores(quota) == here, "there is no such file"
    for text, cores in (("max 100000", here), ("50000 100000", 1), (f"{here * 100_000} 100000", here), ("odd", here)):
        quota.write_text(text)
        assert usable_cores(quota) == cores
