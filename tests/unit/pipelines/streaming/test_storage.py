"""Checkpoints on file systems of pyarrow and fsspec: the same promises, and a second stream that is noticed."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs

from heliograph.base.errors import BadRequestError, ConflictError, ResourceError, UnsupportedError
from heliograph.pipelines.streaming.checkpoint import Batch, StreamCheckpoint, batches
from heliograph.pipelines.streaming.storage import CheckpointPlace, StoredFiles, files_of
from tests.unit.pipelines.streaming.test_checkpoint import GrowingTopic
from tests.unit.pipelines.test_ranges import a_range, entries_of


class Fsspec:
    """The methods of a file system of fsspec that pyarrow's wrapper calls, in memory. It stands in for fsspec, which is
    not among the locked packages."""

    protocol = "memory"

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}

    def info(self, path: str) -> dict[str, Any]:
        if path in self.files:
            return {"name": path, "size": len(self.files[path]), "type": "file"}
        if self.isdir(path):
            return {"name": path, "size": 0, "type": "directory"}
        raise FileNotFoundError(path)

    def isdir(self, path: str) -> bool:
        return any(name.startswith(path + "/") for name in self.files)

    def isfile(self, path: str) -> bool:
        return path in self.files

    def exists(self, path: str) -> bool:
        return self.isfile(path) or self.isdir(path)

    def find(self, path: str, **_: object) -> dict[str, dict[str, Any]]:
        return {name: self.info(name) for name in self.files if name.startswith(path + "/")}

    def mkdir(self, path: str, create_parents: bool) -> None:
        pass

    def rm(self, path: str, recursive: bool = False) -> None:
        del self.files[path]

    def mv(self, source: str, target: str, recursive: bool) -> None:
        self.files[target] = self.files.pop(source)

    def open(self, path: str, mode: str) -> io.BytesIO:
        if mode == "rb":
            return io.BytesIO(self.files[path])
        files = self.files

        class Writing(io.BytesIO):
            def close(self) -> None:
                files[path] = self.getvalue()
                super().close()

        return Writing()


class Store:
    """A file system whose objects are replaced as a whole, as those of s3; the mock of pyarrow has another name."""

    type_name = "s3"

    def __init__(self) -> None:
        self._fs = fs._MockFileSystem()
        self._fs.create_dir("bucket/one")

    def __getattr__(self, name: str) -> Any:
        assert name != "move", "an object is replaced as a whole"
        return getattr(self._fs, name)


@pytest.fixture(params=["directory", "uri", "pyarrow", "fsspec"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> CheckpointPlace:
    places: dict[str, CheckpointPlace] = {
        "directory": str(tmp_path / "a"),
        "uri": f"file://{tmp_path}/b",
        "pyarrow": (fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem()), "c/d"),
        "fsspec": (Fsspec(), "/bucket/e"),
    }
    return places[request.param]


def test_every_batch_once_wherever_the_checkpoint_is(place: CheckpointPlace) -> None:
    topic = GrowingTopic()
    topic.ranges = [a_range(0, 99, 1, 0), a_range(0, 9, 2, 1)]
    done: list[Batch] = []
    for run in range(3):
        running = batches(StreamCheckpoint(place), topic.plan, entries_max=40, until_caught_up=run == 2)
        first = next(running)
        assert not done or first == done[-1], "the batch in hand when the driver was killed"
        done += [] if done else [first]
        done += running if run == 2 else [next(running)]
        running.close()
    assert [batch.batch_id for batch in done] == [0, 1, 2]
    last = StreamCheckpoint(place).last_plan()
    assert last is not None
    assert StreamCheckpoint(place).is_committed(last)
    assert last.next_positions == {0: (1, 100), 1: (2, 10)}
    assert len(entries_of(list(done[0].ranges))) == 30
    assert StreamCheckpoint(place).stream_id() == StreamCheckpoint(place).stream_id()


@pytest.mark.parametrize("file_system", [Store(), Fsspec()], ids=["object store", "fsspec"])
def test_where_there_is_no_lock_the_stream_that_starts_last_goes_on(file_system: Any) -> None:
    topic = GrowingTopic()
    topic.ranges = [a_range(0, 99)]

    def stream() -> Any:
        checkpoint = StreamCheckpoint((Fsspec(), "bucket/one"))
        is_store = isinstance(file_system, Store)
        stored = StoredFiles(file_system, "bucket/one", "s3:bucket/one") if is_store else None
        checkpoint._files = stored or files_of((file_system, "bucket/one"))
        return batches(checkpoint, topic.plan, entries_max=10)

    first, second = stream(), stream()
    begun = next(first)
    assert next(second) == begun, "the batch was not committed"
    with pytest.raises(ConflictError, match="taken over"):
        next(first)
    assert next(second).batch_id == 1
    second.close()


def test_what_is_no_place_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"nowhere://bucket.*fsspec"):
        files_of("nowhere://bucket/x")
    for wrong in (7, ("x", "y"), (fs.LocalFileSystem(), 7)):
        with pytest.raises(BadRequestError, match=r"no place|no file system"):
            files_of(wrong)  # type: ignore[arg-type]
    (tmp_path / "file").touch()
    with pytest.raises(ResourceError, match="checkpoint"):
        next(batches(StreamCheckpoint(tmp_path / "file" / "below"), GrowingTopic().plan))
    with pytest.raises(ResourceError, match="cannot be written"):
        next(batches(StreamCheckpoint((fs.LocalFileSystem(), f"{tmp_path}/file/below")), GrowingTopic().plan))
