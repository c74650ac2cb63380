"""The keywords of the functions that read and write tables: each is taken, others are refused by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from heliograph.base.errors import BadRequestError
from heliograph.pipelines.planning.access import ClusterAccess
from heliograph.pipelines.planning.conditions import where_of
from heliograph.pipelines.ray_data import dataset
from heliograph.pipelines.reading.options import CountKeywords, ReadKeywords, ReadOptions, StreamKeywords
from heliograph.pipelines.reading.registry import RegistryRead
from heliograph.pipelines.spark import dataframe
from heliograph.pipelines.streaming.datasets import stream_datasets
from heliograph.pipelines.streaming.stream import stream
from heliograph.pipelines.writing.columns import WrittenColumns
from heliograph.pipelines.writing.identity import WriteIdentity
from heliograph.pipelines.writing.options import WriteKeywords, WriteOptions

NOBODY: Any = None
CALLS: dict[str, Callable[..., Any]] = {
    "read_topic": lambda **given: dataset.read_topic("t", **given),
    "stream_datasets": lambda **given: next(stream_datasets("t", checkpoint="never-made", **given)),
    "write_dataset": lambda **given: dataset.write_dataset(NOBODY, "t", **given),
    "topic_dataframe": lambda **given: dataframe.topic_dataframe(NOBODY, "t", **given),
    "topic_count": lambda **given: dataframe.topic_count(NOBODY, "t", **given),
    "stream": lambda **given: stream(NOBODY, "t", NOBODY, checkpoint="never-made", **given),
    "write_dataframe": lambda **given: dataframe.write_dataframe(NOBODY, "t", **given),
}


@pytest.mark.parametrize("function", CALLS)
def test_a_keyword_that_a_function_does_not_have_is_named(function: str) -> None:
    with pytest.raises(TypeError, match=rf"{function}\(\) has no keyword 'namespaces'; did you mean 'namespace'"):
        CALLS[function](namespaces="other")
    assert not Path("never-made").exists()


@pytest.mark.parametrize(
    ("function", "keyword"),
    [("topic_count", "columns"), ("stream", "end"), ("stream_datasets", "compacted"), ("read_topic", "checkpoint")],
)
def test_keywords_of_other_functions_are_refused(function: str, keyword: str) -> None:
    with pytest.raises(TypeError, match=f"{function}.*'{keyword}'"):
        CALLS[function](**{keyword: None})


@pytest.mark.parametrize("function", ["read_topic", "stream_datasets"])
def test_datasets_refuse_a_schema_that_only_spark_understands(function: str) -> None:
    with pytest.raises(BadRequestError, match="row long") as refused:
        CALLS[function](schema="row long, name string")
    assert (refused.value.field, refused.value.limit) == ("schema", "registry, or None")


def test_every_keyword_of_a_read_arrives() -> None:
    condition = ("__key", "==", "k")
    given: ReadKeywords = {
        "columns": ["value"],
        "protobuf_descriptor": None,
        "recursion_depth": 3,
        "on_data_loss": "skip",
        "on_unreadable": "null",
        "parallelism": 7,
        "where": [condition],
        "start": {-1: (1, 2)},
        "end": {-1: (3, 4)},
        "compacted": True,
        "latest": True,
        "namespace": "other",
        "gateway": "http://gateway:8080/",
        "user": "alice",
        "password": "wonderland",
    }
    assert set(given) | {"token", "token_file"} == set(get_type_hints(ReadKeywords))
    found = ReadOptions.of("read_topic", ReadKeywords, given, "registry")
    access = found.access
    assert (access.namespace, access.gateway) == ("other", "http://gateway:8080")
    assert access.identity is not None
    assert access.identity.options["user"] == "alice"
    assert found == ReadOptions(
        access, "registry", RegistryRead(recursion_depth=3), ("value",), "null", "skip", 7, where_of([condition]),
        {-1: (1, 2)}, {-1: (3, 4)}, True, True,
    )  # fmt: skip
    assert "wonderland" not in repr(found)


def test_without_keywords_a_read_has_the_defaults_of_its_options(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TOKEN", "TOKEN_FILE", "USER", "PASSWORD"):
        monkeypatch.delenv(f"HELIOGRAPH_{name}", raising=False)
    for kind in (CountKeywords, ReadKeywords, StreamKeywords):
        found = ReadOptions.of("a function", kind, {})
        assert found == ReadOptions(ClusterAccess.of({}))


def test_every_keyword_of_a_write_arrives() -> None:
    given: WriteKeywords = {
        "value": None,
        "key": "k",
        "properties": "p",
        "event_time": "e",
        "ordering_key": "o",
        "deliver_at": "d",
        "deliver_after": None,
        "topic_column": "t",
        "protobuf_descriptor": None,
        "query": "copy",
        "batch_id": 5,
        "on_doubt": "write",
        "address": "pulsar://broker:6650",
        "namespace": "other",
        "gateway": "http://gateway:8080",
        "token": "secret-token",
    }
    assert set(given) | {"token_file", "user", "password"} == set(get_type_hints(WriteKeywords))
    found = WriteOptions.of("write_dataset", given, "avro")
    columns = {"key": "k", "properties": "p", "event_time": "e", "ordering_key": "o", "deliver_at": "d"}
    assert found == WriteOptions(
        WrittenColumns(None, {**columns, "topic_column": "t"}),
        ClusterAccess.of(given),
        "pulsar://broker:6650",
        WriteIdentity("copy", 5, writes_in_doubt=True),
        "avro",
    )
    assert "secret-token" not in repr(found)
    assert WriteOptions.of("write_dataset", {}, None).columns == WrittenColumns("value")
