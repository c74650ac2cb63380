"""The identity of those who plan, read and write tables: given as options, or by the environment."""

from __future__ import annotations

import pickle
from typing import Any, cast

import pyarrow as pa
import pytest

from heliograph.base.errors import InvalidConfigError
from heliograph.client.identity import Identity, IdentityOptions
from heliograph.pipelines.planning import access
from heliograph.pipelines.planning.access import ClusterAccess
from heliograph.pipelines.ray_data import dataset
from heliograph.pipelines.ray_data.dataset import TopicDatasink
from heliograph.pipelines.spark import dataframe
from heliograph.pipelines.streaming.datasets import stream_datasets
from heliograph.pipelines.streaming.stream import stream
from heliograph.pipelines.writing import table_writer
from heliograph.pipelines.writing.options import WriteOptions
from heliograph.pipelines.writing.table_writer import TableWriter

ADDRESS = "pulsar://127.0.0.1:6650"
ALICE: IdentityOptions = {"user": "alice", "password": "wonderland"}
NOBODY: Any = None


class AskedError(Exception):
    """A broker was asked."""


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HELIOGRAPH_TOKEN", "HELIOGRAPH_TOKEN_FILE", "HELIOGRAPH_USER", "HELIOGRAPH_PASSWORD"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Identity]:
    """Return the identities by which brokers were asked for a plan; no plan is made."""
    found: list[Identity] = []

    def admin(namespace: str, identity: Identity, gateway: None = None) -> Any:
        found.append(identity)
        raise AskedError

    monkeypatch.setattr(access, "Admin", admin)
    monkeypatch.setattr(access, "AdminSync", admin)
    monkeypatch.setattr("heliograph.client.discovery.attach", lambda namespace: None)
    monkeypatch.setattr(access, "noted_gateway", lambda *_: None)
    return found


def test_readers_show_the_identity_that_they_are_given_or_that_of_the_environment(
    asked: list[Identity], monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    def read_all(**shown: Any) -> None:
        with pytest.raises(AskedError):
            dataset.read_topic("t", **shown)
        with pytest.raises(AskedError):
            dataframe.topic_dataframe(NOBODY, "t", **shown)
        with pytest.raises(AskedError):
            stream(NOBODY, "t", NOBODY, checkpoint=tmp_path / "checkpoint", **shown)
        with pytest.raises(AskedError):
            next(stream_datasets("t", checkpoint=tmp_path / "other", **shown))

    read_all(**ALICE)
    monkeypatch.setenv("HELIOGRAPH_USER", "bob")
    monkeypatch.setenv("HELIOGRAPH_PASSWORD", "builder")
    read_all()
    shown = [identity.present().data for identity in asked]
    assert shown == [b"alice:wonderland"] * 4 + [b"bob:builder"] * 4
    assert not any(b"wonderland" in file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())


def test_a_writer_takes_user_and_password_to_its_tasks_and_shows_neither(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[dict[str, Any]] = []

    def connect(address: str, **options: Any) -> Any:
        used.append(options)
        raise AskedError

    monkeypatch.setattr(table_writer, "connect", connect)
    writer = TableWriter.create("t", WriteOptions(access=ClusterAccess(identity=Identity.of(ALICE)), address=ADDRESS))
    assert "wonderland" not in repr(writer) + str(writer) + repr(TopicDatasink(writer))
    for one in (writer, pickle.loads(pickle.dumps(writer))):
        with pytest.raises(AskedError):
            one.write([pa.table({"value": [b"x"]})])
    assert [(options["user"], options["password"]) for options in used] == [("alice", "wonderland")] * 2


@pytest.mark.parametrize(
    "credentials",
    [{"user": "alice"}, {"password": "p"}, {"token": "t", "user": "alice", "password": "p"},
     {"token": "t", "token_file": "f"}],
)  # fmt: skip
def test_credentials_that_contradict_each_other_are_refused(credentials: dict[str, str]) -> None:
    given = cast(IdentityOptions, credentials)
    with pytest.raises(InvalidConfigError):
        dataset.write_dataset(NOBODY, "t", address=ADDRESS, **given)
    with pytest.raises(InvalidConfigError):
        dataset.read_topic("t", **given)
