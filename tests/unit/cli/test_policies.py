"""The commands for tenants, namespaces, policies and brokers: the calls they make, and what they print."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from heliograph.base.errors import BadRequestError
from heliograph.cli import context
from heliograph.cli.admin import policies, subscriptions
from heliograph.cli.app import app
from heliograph.cli.operations.cluster import retention_text
from heliograph.cli.output import Output


class Answers:
    """An admin client that records its calls and answers from a table, as its parts do."""

    def __init__(self, calls: list[tuple[Any, ...]], answers: dict[str, Any]) -> None:
        self._calls, self._answers = calls, answers

    def __getattr__(self, name: str) -> Any:
        if name in ("namespaces", "permissions", "brokers", "cursors"):
            return Answers(self._calls, self._answers)

        def call(*arguments: Any) -> Any:
            self._calls.append((name, *arguments))
            return self._answers.get(name)

        return call


@pytest.mark.parametrize(
    ("line", "call", "says"),
    [
        ("tenants list", ("tenants",), "acme"),
        ("tenants create acme", ("create_tenant", "acme"), "created"),
        ("tenants delete acme", ("delete_tenant", "acme"), "deleted"),
        ("namespaces list", ("list", None), "broker-1"),
        (
            "namespaces create a/b retention_seconds=-1 deduplication=true --bundles 4",
            ("create", "a/b", 4, {"retention_seconds": -1, "deduplication": True}),
            "created",
        ),
        ("namespaces delete a/b --force", ("delete", "a/b", True), "deleted"),
        ("namespaces policies get a/b", ("policies", "a/b"), "max_producers"),
        (
            "namespaces policies set a/b backlog_quota_action=producer_exception",
            ("set_policies", "a/b", {"backlog_quota_action": "producer_exception"}),
            "backlog_quota_action",
        ),
        ("namespaces policies remove a/b x y", ("remove_policies", "a/b", ["x", "y"]), "x, y"),
        ("namespaces bundles a/b", ("bundles", "a/b"), "0x0_0xf"),
        ("namespaces unload a/b", ("unload_namespace", "a/b"), "3 bundles"),
        ("namespaces unload a/b 0x0_0xf", ("unload_bundle", "a/b", "0x0_0xf"), "1 bundles"),
        ("namespaces split a/b 0x0_0xf --boundary 0x5", ("split_bundle", "a/b", "0x0_0xf", "0x5"), "low and high"),
        ("permissions grant a/b r produce consume", ("grant", "a/b", "r", ["produce", "consume"]), "r may produce"),
        ("permissions grant a/b/t r produce", ("grant_topic", "a/b/t", "r", ["produce"]), "r may produce"),
        ("permissions revoke a/b r", ("revoke", "a/b", "r"), "no grant"),
        ("permissions revoke t r", ("revoke_topic", "t", "r"), "no grant"),
        ("permissions subscription a/b s r q", ("grant_subscription", "a/b", "s", ["r", "q"]), "only r, q may use s"),
        ("permissions subscription a/b s", ("grant_subscription", "a/b", "s", []), "every role"),
        ("permissions mode a/b Prefix", ("set_subscription_mode", "a/b", "Prefix"), "Prefix"),
        ("brokers list", ("list",), "broker-1"),
        ("brokers load", ("loads",), "50.0%"),
        ("brokers drain broker-1", ("drain", "broker-1"), "2 bundles"),
        ("brokers undrain broker-1", ("undrain", "broker-1"), "takes topics"),
        ("topics policies get t --applied", ("topic_policies", "t", True), "max_producers"),
        ("topics policies set t max_producers=1", ("set_topic_policies", "t", {"max_producers": 1}), "max_producers"),
        ("topics policies remove t max_producers", ("remove_topic_policies", "t", ["max_producers"]), "removed"),
        ("topics grow t 8", ("update_partitions", "t", 8), "8 partitions"),
        ("topics unload t", ("unload_topic", "t"), "unloaded"),
        ("topics lookup t", ("lookup", "t"), "served by broker-1 at pulsar://h:1"),
        ("subscriptions reset t s earliest", ("reset", "t", "s", "earliest", False), "goes on at earliest"),
        ("subscriptions reset t s 12:3:-1", ("reset", "t", "s", "12:3:-1", False), "12:3"),
        ("subscriptions reset t s 1700000000000", ("reset", "t", "s", 1_700_000_000_000, False), "goes on"),
        ("subscriptions reset t s 2023-11-14T22:13:20Z", ("reset", "t", "s", 1_700_000_000_000, False), "goes on"),
        ("subscriptions reset t s 2023-11-14T23:13:20+01:00", ("reset", "t", "s", 1_700_000_000_000, False), "goes"),
        ("topics stats t", ("topic_stats", "t"), "msgInCounter"),
    ],
)
def test_commands(monkeypatch: pytest.MonkeyPatch, line: str, call: tuple[Any, ...], says: str) -> None:
    calls: list[tuple[Any, ...]] = []
    load = dict.fromkeys(
        ("messages_in_per_second", "messages_out_per_second", "bytes_in_per_second", "bytes_out_per_second"), 0.0
    )
    broker = {
        "broker_id": "broker-1",
        "service_url": "",
        "service_url_tls": "",
        "is_leader": True,
        "is_draining": False,
    }
    bundle = {"name": "0x0_0xf", "owner": None, "topics": 1, "messages_per_second": 0.0, "bytes_per_second": 0.0}
    answers = {
        "tenants": ["acme"],
        "list": (broker,),
        "policies": {"max_producers": 0},
        "topic_policies": {"max_producers": 1},
        "bundles": {"boundaries": [], "bundles": [bundle]},
        "unload_namespace": 3,
        "unload_bundle": True,
        "split_bundle": ("low", "high"),
        "loads": ({**load, "broker_id": "b", "cpu_share": 0.5, "memory_share": 0.1, "topics": 1, "bundles_owned": 1},),
        "drain": 2,
        "lookup": {"broker_id": "broker-1", "service_url": "pulsar://h:1", "actor_name": "broker-1"},
        "topic_stats": {"msgInCounter": 7, "subscriptions": {}},
    }
    monkeypatch.setattr(context, "admin_of", lambda namespace, home: Answers(calls, answers))
    for more in ([], ["--json"]):
        shown = CliRunner().invoke(app, [*line.split(), *more])
        assert shown.exit_code == 0, shown.output
        assert calls[0] == call
        if more:
            json.loads(shown.output)
        else:
            assert says in shown.output


def test_statistics_of_a_topic_fit_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    many = {f"counter{number}": number for number in range(30)}
    found: dict[str, dict[str, Any]] = {
        "s": {
            **many,
            "type": "Shared",
            "msgBacklog": 3,
            "backlogMessages": 7,
            "isDurable": True,
            "consumers": [{}, {}],
        },
        "r": {**many},
    }
    subscriptions.show_subscriptions(Output(as_json=False), "subscriptions", found)
    title, heading, first, second = capsys.readouterr().out.splitlines()
    assert (title.strip(), heading.split()[0], first.split()[0]) == ("subscriptions", "name", "r")
    assert second.split() == ["s", "Shared", "7", "True", "2"]
    assert max(len(line) for line in (heading, first, second)) <= 110


@pytest.mark.parametrize(
    "line", ["grant a/b r produce", "grant a/b/t r produce", "subscription a/b s r", "mode a/b None"]
)
@pytest.mark.parametrize(("answer", "is_enforced"), [(False, False), (True, True), (None, True)])
def test_a_grant_without_authentication_says_so(
    monkeypatch: pytest.MonkeyPatch, line: str, answer: bool | None, is_enforced: bool
) -> None:
    names = ("grant", "grant_topic", "grant_subscription", "set_subscription_mode")
    monkeypatch.setattr(context, "admin_of", lambda namespace, home: Answers([], dict.fromkeys(names, answer)))
    command = ["permissions", *line.split()]
    assert ("authentication is off" in CliRunner().invoke(app, command).output) is not is_enforced
    assert json.loads(CliRunner().invoke(app, [*command, "--json"]).output)["enforced"] is is_enforced


def test_a_topic_without_policies_of_its_own_says_where_to_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "admin_of", lambda namespace, home: Answers([], {"topic_policies": {}}))
    assert "--applied" in CliRunner().invoke(app, ["topics", "policies", "get", "t"]).output


@pytest.mark.parametrize(("to", "says"), [("yesterday", "no position"), ("2023-11-14T22:13:20", "without its zone")])
def test_a_time_that_is_none_is_refused_with_the_form(monkeypatch: pytest.MonkeyPatch, to: str, says: str) -> None:
    monkeypatch.setattr(context, "admin_of", lambda namespace, home: Answers([], {}))
    shown = CliRunner().invoke(app, ["subscriptions", "reset", "t", "s", to])
    assert isinstance(shown.exception, BadRequestError)
    assert says in str(shown.exception)
    assert "2026-01-31T12:00:00Z" in str(shown.exception)


def test_values_of_policies() -> None:
    assert policies.values_of(["a=1", "b=-5", "c=true", "d=false", "e=FULL"]) == {
        "a": 1, "b": -5, "c": True, "d": False, "e": "FULL",
    }  # fmt: skip
    for wrong in ("a", "=1", ""):
        with pytest.raises(BadRequestError):
            policies.values_of([wrong])


@pytest.mark.parametrize(
    ("seconds", "says"), [(-1, "are kept for ever unless"), (0, "are deleted unless"), (60, "are kept for 60 s unless")]
)
def test_a_new_cluster_says_what_becomes_of_acknowledged_messages(seconds: int, says: str) -> None:
    assert says in retention_text(seconds)
