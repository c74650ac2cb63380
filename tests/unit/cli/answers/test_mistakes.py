"""What a person types wrong, and the sentence that is the answer: the table is ``mistakes.txt``.

All run in this process, against a cluster in it. ``<home>``, ``<url>`` and ``<pid>`` stand for what differs.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from heliograph.cli import app
from heliograph.client import access
from heliograph.cluster.settings.location import ClusterLocation
from heliograph.standalone.config import StandaloneConfig
from heliograph.standalone.local import LocalCluster

TABLE = Path(__file__).with_name("mistakes.txt")
MISTAKES_MIN = 40
LETTERS_MAX = 300
NOBODY = "pulsar://127.0.0.1:1"  # an address of which a command needs no patience


def mistakes() -> list[tuple[str, str]]:
    """Return what is typed and what is read, of each entry of the table."""
    entries = [each for each in TABLE.read_text().split("\n\n") if each.startswith("$ ")]
    parts = [each.removeprefix("$ ").partition("\n") for each in entries]
    return [(typed, read.rstrip("\n")) for typed, _, read in parts]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return the home of a cluster that has some topics."""
    directory = tmp_path_factory.mktemp("home")
    location = ClusterLocation(home=directory)
    with LocalCluster(StandaloneConfig(), directory, location.namespace) as cluster:
        with cluster.connect() as client:
            client.producer("orders").send("x")
            client.consumer("orders", "billing", initial_position="earliest").close()
            client.admin.create_topic("parts", 2)
        yield directory


def answer(typed: str, home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    """Return what standard error of a command has, and its exit code."""
    words = shlex.split(typed)
    while "=" in words[0]:
        monkeypatch.setenv(*words.pop(0).split("=", 1))
    assert words[0] == "helio"
    for name, value in {"HELIOGRAPH_HOME": str(home), "TERM": "dumb", "COLUMNS": "200", "NO_COLOR": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(os, "environ", os.environ.copy())  # which commands change for what they call
    monkeypatch.setattr(sys, "argv", words)
    if NOBODY in words:
        connect: Any = access.connect_async
        monkeypatch.setattr(access, "connect_async", partial(connect, operation_timeout_ms=1_000))
    with pytest.raises(SystemExit) as ended:
        app._run()
    shown = capsys.readouterr()
    assert "Traceback" not in shown.out + shown.err
    text = shown.err.replace(str(home), "<home>")
    text = re.sub(r"\bprocess \d+", "process <pid>", re.sub(r"pulsar://127\.0\.0\.1:\d+", "<url>", text))
    _, hint, after = text.partition(" -h' for help.\n")  # behind the usage line, before the sentence
    return "\n".join([" ".join((after if hint else text).split()), f"({ended.value.code})"])


@pytest.mark.parametrize(("typed", "read"), mistakes(), ids=lambda text: text if text.startswith("helio") else "")
def test_a_mistake_gets_its_sentence(
    typed: str, read: str, home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert answer(typed, home, capsys, monkeypatch) == read


def test_the_table_is_long_and_its_sentences_are_short() -> None:
    assert len(mistakes()) >= MISTAKES_MIN
    assert not [typed for typed, read in mistakes() if len(read) > LETTERS_MAX]
