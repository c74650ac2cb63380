"""The read tasks of a Dataset: every entry in one of them, and none for a handful of entries."""

from __future__ import annotations

import pytest

from heliograph.pipelines.ray_data.dataset import TASK_ENTRIES_MIN, TopicDatasource
from tests.unit.pipelines.test_ranges import a_range


@pytest.mark.parametrize(
    ("entries", "asked", "tasks"),
    [(11, 16, 1), (TASK_ENTRIES_MIN, 16, 1), (TASK_ENTRIES_MIN * 4, 16, 4), (TASK_ENTRIES_MIN * 100, 16, 16)],
)
def test_a_task_has_a_sensible_size(entries: int, asked: int, tasks: int) -> None:
    source = TopicDatasource([a_range(0, entries - 1)], ("value",))
    assert len(source.get_read_tasks(asked)) == tasks


def test_the_caller_may_ask_for_more_tasks() -> None:
    source = TopicDatasource([a_range(0, 10)], ("value",), task_entries_min=1)
    assert len(source.get_read_tasks(4)) == 4
    assert TopicDatasource([], ("value",)).get_read_tasks(4) == []
