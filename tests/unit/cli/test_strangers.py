"""What strangers wrote reaches a terminal as text: each command that prints names, properties or messages is fed
hostile ones, and only one module of the command line prints."""

from __future__ import annotations

import ast
import json
import os
import pty
import select
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from heliograph.base.errors import NotFoundError
from heliograph.base.visible import visible, visible_json
from heliograph.cli import context
from heliograph.cli.app import app
from heliograph.cli.messages.consume import _write_fields, _write_value
from heliograph.cli.output import Output, note
from heliograph.cli.relays import RELAYS
from tests.rules.source import files_below

CLIPBOARD = "\x1b]52;c;cm0gLXJmIH4K\x07"
HOSTILE = f"a{CLIPBOARD}\x9b31m\nb\r\x08\x7f\u202e\u2066\u2028\U000e0041\ud800"
SHOWN = r"a\x1b]52;c;cm0gLXJmIH4K\x07\x9b31m\nb\r\x08\x7f\u202e\u2066\u2028\U000e0041\ud800"


class Hostile(dict[str, Any]):
    """An answer of administration that has every field, each with a hostile text."""

    def __missing__(self, name: str) -> str:
        return HOSTILE

    def get(self, name: str, default: Any = None) -> Any:
        return self[name]


MAPPING = {HOSTILE: HOSTILE}
MESSAGE = {
    "message_id": "1:2", "key": HOSTILE, "publish_time_ms": 7, "properties": MAPPING,
    "payload": HOSTILE.encode(errors="replace"),
}  # fmt: skip
STATS = {"name": HOSTILE, "subscriptions": {HOSTILE: {"type": HOSTILE, "consumers": []}}, "cursors": {HOSTILE: MAPPING},
         "ledgers": [{"ledger_id": 1, "note": HOSTILE}]}  # fmt: skip
LINES: dict[str, Any] = {  # what is typed, and what administration answers
    "topics list": [[{"name": HOSTILE, "partitions": 0}]],  # one page
    "topics stats t": STATS,
    "topics stats t --internal": STATS,
    "topics properties t": MAPPING,
    "topics record t": MAPPING,
    "topics ledgers t": {"ledgers": [Hostile(name=HOSTILE)]},
    "topics bundle t": HOSTILE,
    "topics lookup t": Hostile(name=HOSTILE),
    "topics terminate t": MAPPING,
    "topics policies get t": MAPPING,
    "subscriptions list t": STATS,
    "subscriptions peek t s": [MESSAGE],
    "subscriptions policies t s": MAPPING,
    "subscriptions properties t s": MAPPING,
    "tenants list": [HOSTILE],
    "namespaces list": [HOSTILE],
    "namespaces properties a/b": MAPPING,
    "namespaces policies get a/b": MAPPING,
    "namespaces bundles a/b": {"bundles": [Hostile(name=HOSTILE)]},
    "permissions list a/b": {HOSTILE: [HOSTILE]},
    "permissions subscriptions a/b": {"subscription_auth_mode": HOSTILE,
                                      "subscription_auth_roles": {HOSTILE: [HOSTILE]}},
    "schemas show t": {"version": 1, "type": HOSTILE, "schema": HOSTILE},
    "schemas list t": [Hostile(name=HOSTILE)],
    "brokers list": [Hostile(name=HOSTILE)],
    "brokers bundles b": {HOSTILE: [HOSTILE]},
    "brokers topics b": MAPPING,
    "brokers settings b": MAPPING,
    "config live": [Hostile(name=HOSTILE)],
}  # fmt: skip


class Answers:
    """An administration that answers, or refuses, with what a stranger wrote."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer

    def __getattr__(self, name: str) -> Any:
        return Answers(self._answer)

    def __call__(self, *arguments: Any) -> Any:
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


def is_harmless(text: str) -> bool:
    return visible(text, keep="\n") == text


@pytest.mark.parametrize("line", LINES)
def test_a_command_shows_what_strangers_wrote(monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    monkeypatch.setattr(context, "admin_of", lambda namespace, home: Answers(LINES[line]))
    shown = CliRunner().invoke(app, line.split())
    assert shown.exit_code == 0, shown.output
    assert is_harmless(shown.output)
    assert r"\x1b]52;c;cm0gLXJmIH4K\x07" in shown.output.replace("\n", "") or r"\u001b]52" in shown.output
    as_json = CliRunner().invoke(app, [*line.split(), "--json"])
    assert is_harmless(as_json.output)
    assert as_json.output.count("\n") == 1
    assert json.dumps(HOSTILE)[1:-1].replace("\x7f", r"\u007f") in as_json.output or "peek" in line


def test_every_command_that_lists_is_fed() -> None:
    read_only = {"list", "stats", "peek", "properties", "record", "lookup", "topics", "show", "get"}
    fed = {tuple(line.split()[:2]) for line in LINES}
    for name in ("topics", "subscriptions", "tenants", "schemas", "permissions", "brokers"):
        for file in files_below("heliograph/cli/admin"):
            if file.name.endswith(f"/{name}.py"):
                commands = {each.name.rstrip("_") for each in file.functions() if each.name.rstrip("_") in read_only}
                assert {(name, each) for each in commands} <= fed
    tables = {tuple(path.split()) for path, relay in RELAYS.items() if relay.columns or not relay.says}
    assert tables - fed <= {("brokers", "load"), ("bookies", "racks", "list")}, "which print what parts say"


def test_an_error_shows_what_strangers_wrote(capsys: pytest.CaptureFixture[str]) -> None:
    for as_json in (False, True):
        Output(as_json).error(NotFoundError(f"there is no topic {HOSTILE}", limit=HOSTILE))
    note(HOSTILE)
    printed = capsys.readouterr()
    assert is_harmless(printed.out + printed.err)
    assert printed.err.endswith(SHOWN + "\n")


def test_lines_and_titles_are_made_harmless(capsys: pytest.CaptureFixture[str]) -> None:
    output = Output(as_json=False)
    output.done(HOSTILE)
    output.warn(HOSTILE)
    output.facts(f"[bold]{HOSTILE}", [("name", HOSTILE)])
    with output.timed() as watch:
        watch.progress(HOSTILE)
    printed = capsys.readouterr().out
    assert is_harmless(printed)
    assert printed.count(r"\u202e") == 5
    assert "[bold]a" in printed


MESSAGE_HOSTILE = SimpleNamespace(
    topic="t", message_id="1:2", key=HOSTILE, value=HOSTILE.encode(errors="replace") + b"\xff\t|", properties=MAPPING,
    publish_time_ms=1, event_time_ms=1, index=1, broker_publish_time_ms=1, redelivery_count=0,
)  # fmt: skip


@pytest.mark.parametrize("is_raw", [False, True])
def test_a_message_on_a_terminal_is_text_and_raw_only_when_asked(monkeypatch: pytest.MonkeyPatch, is_raw: bool) -> None:
    master, slave = pty.openpty()
    with open(slave, "w", encoding="utf-8") as screen:
        monkeypatch.setattr(sys, "stdout", screen)
        message: Any = MESSAGE_HOSTILE
        _write_value(message, is_raw=is_raw)
        screen.flush()
        assert select.select([master], [], [], 10)[0]
        seen = os.read(master, 65_536)
    os.close(master)
    assert (CLIPBOARD.encode() in seen) is is_raw
    if not is_raw:
        assert seen.decode().startswith(SHOWN.removesuffix(r"\ud800"))
        assert seen.endswith((b"?\\xff\t|\r\n", b"?\\xff   |\r\n"))  # the terminal may expand the tab


def test_a_file_gets_the_bytes(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    message: Any = MESSAGE_HOSTILE
    _write_value(message, is_raw=False)
    sys.stdout.flush()
    assert capfdbinary.readouterr().out == message.value + b"\n"
    _write_fields(message)
    sys.stdout.flush()
    line = capfdbinary.readouterr().out
    assert is_harmless(line.decode())
    assert json.loads(line)["key"] == HOSTILE


def test_letters_of_all_scripts_stay() -> None:
    for text in ("Größe", "日本\u3000語", "می\u200cخواهم", "👨\u200d👩", "a\xa0b"):
        assert visible(text) == text
    assert visible_json({"ä": "\x85\x7f€"}, is_ascii=False) == r'{"ä": "\u0085\u007f€"}'
    assert json.loads(visible_json([HOSTILE], is_ascii=False)) == [HOSTILE]


def test_one_module_of_the_command_line_prints() -> None:
    found = []
    for file in files_below("heliograph/cli", ".py"):
        if file.name == "heliograph/cli/output.py":
            continue
        for node in file.nodes:
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                if called in ("print", "rich.print", "Console") or called.endswith((".echo", ".secho", "Console")):
                    found.append(f"{file.name}:{node.lineno}: {called}")
                if called.endswith((".write", ".writelines")) and ("stdout" in called or "stderr" in called):
                    found.append(f"{file.name}:{node.lineno}: {called}")
    assert not found, "print through heliograph/cli/output.py: " + ", ".join(found)
