"""The read tasks of a Dataset: every entry in one of them, and none for a handful of entries."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heliograph.pipelines.planning.ranges import TASK_BYTES_MAX, TASK_BYTES_MIN
from heliograph.pipelines.ray_data.source import TableRead, TopicDatasource
from tests.unit.pipelines.test_ranges import a_range


@pytest.mark.parametrize(
    ("size", "asked", "tasks"),
    [(11_000, 16, 1), (TASK_BYTES_MIN, 16, 1), (TASK_BYTES_MIN * 4, 16, 4), (TASK_BYTES_MAX * 100, 16, 100)],
)
def test_a_task_has_a_sensible_size(size: int, asked: int, tasks: int) -> None:
    source = TopicDatasource([replace(a_range(0, 4_095), size=size)], TableRead(("value",)))
    made = source.get_read_tasks(asked)
    assert len(made) == tasks
    assert source.estimate_inmemory_data_size() == sum(task.metadata.size_bytes or 0 for task in made)
    assert 0.6 * size < sum(task.metadata.size_bytes or 0 for task in made) <= size


def test_the_caller_may_ask_for_more_tasks() -> None:
    source = TopicDatasource([a_range(0, 10)], TableRead(("value",)), task_bytes_min=1)
    assert len(source.get_read_tasks(4)) == 4
    assert TopicDatasource([], TableRead(("value",))).get_read_tasks(4) == []
