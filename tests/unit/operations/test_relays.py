"""The commands that are made from rows: what they ask by the table of operations, and what they show."""

from __future__ import annotations

import json
from string import Formatter
from typing import Any

import pytest
from typer.testing import CliRunner

from heliograph.cli import context
from heliograph.cli.app import app
from heliograph.cli.relays import ARGUMENTS, RELAYS, Relay, key_of
from tests.unit.cli.test_commands import root


class Admin:
    """An administration that notes what it is asked, and answers with one thing."""

    def __init__(self, answer: Any, calls: list[tuple[Any, ...]], name: str = "") -> None:
        self._answer, self._calls, self._name = answer, calls, name

    def __getattr__(self, name: str) -> Admin:
        return Admin(self._answer, self._calls, f"{self._name}.{name}".strip("."))

    def __call__(self, *arguments: Any) -> Any:
        self._calls.append((self._name, *arguments))
        return self._answer


@pytest.mark.parametrize("path", RELAYS)
def test_a_row_agrees_with_the_table_of_operations(path: str) -> None:
    relay: Relay = RELAYS[path]
    parameters = relay.entry.signature.parameters.values()
    needed = {key_of(relay.entry, each.name) for each in parameters if each.default is each.empty}
    assert needed <= ARGUMENTS.keys()
    assert relay.options.keys() <= {each.name for each in parameters if each.default is not each.empty}
    said = {*relay.columns.split()} if relay.columns else {*needed, "answer"}
    assert {name for _, name, _, _ in Formatter().parse(relay.says) if name} <= said
    assert {name for _, name, _, _ in Formatter().parse(relay.title) if name} <= needed
    command = root()
    for word in path.split():
        command = command.commands[word]
    assert command.get_short_help_str(200).rstrip(".") == relay.told.partition(". ")[0].rstrip(".")


@pytest.mark.parametrize(
    ("line", "answer", "call", "shown", "result"),
    [
        (
            "brokers drain broker-2",
            3,
            ("brokers.drain", "broker-2"),
            "broker-2 gave 3 bundles away",
            {"broker": "broker-2", "bundles": 3},
        ),
        (
            "topics delete t --force",
            None,
            ("delete_topic", "t", True),
            "deleted t",
            {"topic": "t", "deleted": True},
        ),
        (
            "subscriptions delete t s",
            None,
            ("delete_subscription", "t", "s", False),
            "deleted s of t",
            {"topic": "t", "subscription": "s", "deleted": True},
        ),
        (
            "namespaces clear-backlog a/b --subscription s --namespace ray",
            2,
            ("cursors.clear_namespace", "a/b", None, "s"),
            "a/b: cleared 2 subscriptions",
            {"namespace": "a/b", "subscriptions": 2},
        ),
        (
            "topics terminate t",
            {"t-0": "1:2"},
            ("terminate_topic", "t"),
            "t-0 ends with message 1:2",
            {"topic": "t", "last": {"t-0": "1:2"}},
        ),
        (
            "brokers bundles b",
            {"a/b": ["0_1", "1_2"]},
            ("brokers.owned", "b"),
            "1_2",
            {"broker": "b", "bundles": {"a/b": ["0_1", "1_2"]}},
        ),
        (
            "topics record t",
            {"x": {"y": 1}},
            ("topic_record", "t"),
            '{\n  "x": {\n    "y": 1\n  }\n}',
            {"topic": "t", "x": {"y": 1}},
        ),
        (
            "namespaces bundles a/b",
            {
                "boundaries": [],
                "bundles": [
                    {"name": "0_1", "owner": None, "topics": 7, "messages_per_second": 0.0, "bytes_per_second": 0.0}
                ],
            },
            ("brokers.bundles", "a/b"),
            "a/b\n",
            None,
        ),
    ],
)
def test_a_relay_asks_and_answers(
    monkeypatch: pytest.MonkeyPatch, line: str, answer: Any, call: tuple[Any, ...], shown: str, result: Any
) -> None:
    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr(context, "admin_of", lambda namespace, home: Admin(answer, calls))
    for_people = CliRunner().invoke(app, line.split())
    assert for_people.exit_code == 0, for_people.output
    assert shown in for_people.output
    for_programs = json.loads(CliRunner().invoke(app, [*line.split(), "--json"]).output)
    assert calls == [call, call]
    assert for_programs == (result if result is not None else {"namespace": "a/b", **answer})


def test_an_argument_that_is_missing_is_named() -> None:
    ran = CliRunner().invoke(app, ["namespaces", "unsubscribe", "a/b"])
    assert (ran.exit_code, "Missing argument 'subscription'" in ran.output) == (2, True)
