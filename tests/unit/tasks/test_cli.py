"""``helio tasks``: the jobs of a queue, and its letters."""

from __future__ import annotations

import asyncio
import json
import pickle
from typing import Any

import pytest
from typer.testing import CliRunner

import heliograph
from heliograph.cli.app import app
from heliograph.errors import BadRequestError, JobFailedError, NotFoundError
from heliograph.tasks.encoding import SHOWN_CHARACTERS, shown_arguments
from tests.unit.tasks.test_jobs import SECONDS, Begin, Made

pytestmark = pytest.mark.slow


@pytest.fixture
def helio(cluster: heliograph.LocalCluster) -> Any:
    def run(*arguments: str) -> Any:
        options = ["tasks", *arguments, "--home", str(cluster.directory), "--json"]
        return json.loads(CliRunner().invoke(app, options, catch_exceptions=False).stdout)

    return run


async def test_a_name_that_is_no_queue_makes_none(helio: Any, queue: str, client: heliograph.Client) -> None:
    commands = (["list"], ["show", "job-1"], ["retry", "--all"], ["purge", "--all"], ["schedules"], ["unschedule", "s"])
    for command in ([name, queue, *rest] for name, *rest in commands):
        with pytest.raises(NotFoundError, match=f"{queue}-states"):
            await asyncio.to_thread(helio, *command)
    names = await asyncio.to_thread(client.admin.list_topics, "public/default")
    assert not [each["name"] for each in names if queue in each["name"]]


async def test_letters_are_seen_moved_and_deleted(helio: Any, queue: str, made: Made, begin: Begin) -> None:
    allowed: list[bool] = []

    @made(retries=0)
    async def work(number: int) -> int:
        if number and not allowed:
            raise ValueError(f"not {number}")
        return number

    begin(work)
    jobs = [await work.submit(number, id=f"job-{number}") for number in range(3)]
    await jobs[0].result(SECONDS)
    for job in jobs[1:]:
        with pytest.raises(JobFailedError):
            await job.result(SECONDS)
    found = await asyncio.to_thread(helio, "list", queue, "--state", "failure")
    assert (found["states"]["SUCCESS"], found["states"]["FAILURE"]) == (1, 2)
    assert {row["note"] for row in found["jobs"]} == {"ValueError: not 1", "ValueError: not 2"}
    shown = await asyncio.to_thread(helio, "show", queue, "job-2")
    assert (shown["state"], shown["attempts"]) == ("FAILURE", 1)
    assert "raise ValueError" in shown["traceback"]
    assert shown["arguments"] == "2"
    with pytest.raises(NotFoundError):
        await asyncio.to_thread(helio, "show", queue, "job-9")
    allowed.append(True)
    assert await asyncio.to_thread(helio, "retry", queue, "job-1") == {"submitted": ["job-1"]}
    assert await jobs[1].result(SECONDS) == 1
    assert await asyncio.to_thread(helio, "purge", queue, "--all") == {"purged": ["job-2"]}
    assert await asyncio.to_thread(helio, "purge", queue, "--all") == {"purged": []}


class Hostile:
    """A value whose pickle runs a command when it is loaded."""

    def __reduce__(self) -> tuple[Any, ...]:
        return note_run, ("it was run",)


RUN: list[str] = []


def note_run(text: str) -> None:
    RUN.append(text)


def test_arguments_are_shown_and_no_pickle_is_run() -> None:
    data = pickle.dumps([["a text", 3, -2.5, b"bytes"], {"named": 1 << 70, "it": Hostile()}], protocol=5)
    shown = shown_arguments(data, "pickle")
    assert shown.startswith("'a text' 3 -2.5 b'bytes' 'named' <an integer of 71 bits> 'it' ")
    assert shown.endswith("'note_run' 'it was run'")
    assert RUN == []
    assert shown_arguments(data[:20], "pickle") == "", "what is cut is no failure"
    assert shown_arguments(b'{"args": ["a"]}', "json") == '{"args": ["a"]}'
    assert len(shown_arguments(b"x" * 1_000_000, "json")) == SHOWN_CHARACTERS + 3
    assert len(shown_arguments(pickle.dumps([list(range(100_000)), {}]), "pickle")) == SHOWN_CHARACTERS + 3


@pytest.mark.parametrize(
    "arguments",
    [
        ("retry", "queue"),
        ("purge", "queue", "one", "--all"),
        ("list", "queue", "--state", "asleep"),
        ("work", "no_module"),
        ("work", "no_module:work"),
        ("work", "tests.unit.tasks.test_cli:helio"),
    ],
)
def test_a_wrong_argument_is_refused(helio: Any, arguments: tuple[str, ...]) -> None:
    with pytest.raises(BadRequestError):
        helio(*arguments)
