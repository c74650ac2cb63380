"""The read tasks of a Dataset: every entry in one of them, and none for a handful of entries."""

from __future__ import annotations

from dataclasses import replace

import pytest
import ray

from heliograph.base.errors import UnsupportedError
from heliograph.client import ray_release
from heliograph.pipelines.planning.ranges import TASK_BYTES_MAX, TASK_BYTES_MIN
from heliograph.pipelines.ray_data.dataset import read_topic
from heliograph.pipelines.ray_data.source import TableRead, TopicDatasource
from heliograph.pipelines.streaming.datasets import stream_datasets
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


def test_with_ray_client_a_read_says_to_run_it_in_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_release, "is_ray_client", lambda: True)
    with pytest.raises(UnsupportedError, match="run it in a task"):
        read_topic("t")
    with pytest.raises(UnsupportedError, match="run it in a task"):
        next(stream_datasets("t", checkpoint="never-made"))
    monkeypatch.setattr(ray_release, "is_ray_client", lambda: False)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setenv("RAY_ADDRESS", "ray://head:10001")
    with pytest.raises(UnsupportedError, match="run it in a task"):
        read_topic("t")
