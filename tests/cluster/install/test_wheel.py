"""The wheel in an environment of its own, beside a project whose folders have the names of ours."""

from __future__ import annotations

import uuid
import zipfile
from pathlib import Path

import pytest

from tests.cluster.install.environment import (
    ROOT,
    Environment,
    build_editable,
    build_wheel_from_sdist,
)
from tests.patience import START_SECONDS
from tests.rules.source import FOLDERS, GENERATED, files_below

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

CONSOLE = ("index.html", "app.js", "style.css", "pages/overview.js", "vendor/htm-preact.js", "vendor/preact.LICENSE")
OWN_PACKAGES = ("actors", "gateway", "metadata", "pipelines")
PROGRAM = '''
import sys

import ray

import actors.greeting, gateway.greeting, metadata.greeting, pipelines.greeting  # the project's own
import heliograph
from heliograph.ray_data import read_topic
from heliograph.spark import spark_session, topic_dataframe

assert heliograph.__file__.startswith(sys.argv[1]), heliograph.__file__
own = [module.greeting.TEXT for module in (actors, gateway, metadata, pipelines)]
assert own == ["hello from " + name for name in ("actors", "gateway", "metadata", "pipelines")], own


@ray.remote
class Reader:
    """Receives in a process of Ray's, where the project's own packages are there too."""

    def __init__(self, topic):
        self.consumer = topic.consumer("own", initial_position="earliest")

    def read(self, count):
        from metadata.greeting import TEXT

        with self.consumer as consumer:
            return TEXT, [message.value for message in consumer.receive_many(count, timeout=120)]


client = heliograph.connect()
with client.producer("greetings") as producer:
    producer.send_many(own)
print(ray.get(Reader.remote(client.topic("greetings")).read.remote(len(own)), timeout=300))
'''


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return Environment.create(tmp_path_factory.mktemp("environment") / "venv", wheel)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A user's project with packages that are named as our folders are."""
    for name in OWN_PACKAGES:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
        (tmp_path / name / "greeting.py").write_text(f'TEXT = "hello from {name}"\n')
    (tmp_path / "program.py").write_text(PROGRAM)
    return tmp_path


def names(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return sorted(name for name in archive.namelist() if ".dist-info/" not in name)


def test_the_wheel_holds_every_module_once_and_only_under_heliograph(wheel: Path) -> None:
    written = [file.name for folder in FOLDERS for file in files_below(folder, ".py")]
    expected = {name if name.startswith("heliograph/") else f"heliograph/{name}" for name in written}
    held = names(wheel)
    assert len(held) == len(set(held))
    assert {name for name in held if name.endswith(".py")} == expected
    assert set(held) >= GENERATED
    others = {name for name in held if not name.endswith(".py")}
    assert all(name.startswith("heliograph/") for name in others)
    assert {"heliograph/py.typed", *(f"heliograph/gateway/console/static/{name}" for name in CONSOLE)} <= others


def test_a_wheel_of_the_sdist_is_the_same(wheel: Path, tmp_path: Path) -> None:
    again = build_wheel_from_sdist(ROOT, tmp_path)
    with zipfile.ZipFile(wheel) as first, zipfile.ZipFile(again) as second:
        for name in {*names(wheel), *names(again)}:
            assert first.read(name) == second.read(name), name


def test_an_editable_install_copies_no_module(tmp_path: Path) -> None:
    """It names the directory of the repository, and an edit there takes effect at once."""
    editable = build_editable(ROOT, tmp_path)
    with zipfile.ZipFile(editable) as archive:
        (path_file,) = names(editable)
        assert path_file.endswith(".pth")
        assert archive.read(path_file).decode().strip() == str(ROOT)


def test_the_license_is_in_the_wheel(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        licenses = {name.rpartition("/")[2] for name in archive.namelist() if "/licenses/" in name}
    assert licenses == {"LICENSE", "NOTICE"}


@pytest.mark.parametrize("name", OWN_PACKAGES)
def test_without_a_project_the_short_names_do_not_exist(environment: Environment, name: str, tmp_path: Path) -> None:
    said = environment.run(["python", "-c", f"import {name}"], tmp_path, code=1)
    assert f"ModuleNotFoundError: No module named '{name}'" in said


def test_a_project_with_folders_of_our_names_uses_all_of_it(environment: Environment, project: Path) -> None:
    home = project / "home"
    settings = {
        "HELIOGRAPH_HOME": str(home),
        "HELIOGRAPH_NAMESPACE": f"wheel-{uuid.uuid4().hex[:8]}",
        "HELIOGRAPH_START_TIMEOUT_MS": str(START_SECONDS * 1_000),
        "HELIOGRAPH_BROKERS": "1",
        "HELIOGRAPH_BROKER_PORT": "0",
        "HELIOGRAPH_GATEWAY_PORT": "0",
        **{f"HELIOGRAPH_{name}": "1" for name in ("BOOKIES", "ENSEMBLE_SIZE", "WRITE_QUORUM", "ACK_QUORUM")},
    }
    environment.run(["helio", "up", "--lean", "--no-gateway"], project, settings)
    try:
        said = environment.run(["python", "program.py", str(environment.packages)], project, settings)
        received = [f"hello from {name}".encode() for name in OWN_PACKAGES]
        assert said.rstrip().endswith(repr(("hello from metadata", received)))
        assert "greetings" in environment.run(["helio", "topics", "list"], project, settings)
    finally:
        environment.run(["helio", "down", "--delete-data"], project, settings)
