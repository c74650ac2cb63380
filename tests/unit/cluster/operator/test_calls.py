"""Calls of commands to an operator that is being elected or restarts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import ray
import ray.exceptions

from heliograph.base.errors import ConflictError, ServiceNotReadyError
from heliograph.client import discovery
from heliograph.cluster.operator import calls


class Method:
    def remote(self, *arguments: Any) -> tuple[Any, ...]:
        return arguments


class OperatorHandle:
    scale = Method()


class Stage:
    """Answers of calls one after the other; the last one for ever. Time goes on by the pauses between calls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *answers: Any) -> None:
        self.answers, self.asked, self.now = list(answers), 0, 0.0
        monkeypatch.setattr(discovery, "actor", lambda name, namespace: OperatorHandle())
        monkeypatch.setattr(ray, "get", self.get)
        monkeypatch.setattr(calls, "time", SimpleNamespace(monotonic=lambda: self.now, sleep=self.sleep))

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def get(self, call: tuple[Any, ...], timeout: float) -> Any:
        self.asked += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def restarting() -> ray.exceptions.ActorUnavailableError:
    return ray.exceptions.ActorUnavailableError("The actor is restarting.", None)


def refusal(error: Exception) -> ray.exceptions.RayError:
    return ray.exceptions.RayTaskError("scale", "trace", error)  # type: ignore[no-untyped-call]


def test_an_operator_that_restarts_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch, restarting(), restarting(), {"wanted": 5})
    assert calls.ask_operator("heliograph", "scale", "bookie", 5) == {"wanted": 5}
    assert stage.asked == 3


def test_an_operator_that_does_not_come_back_is_named_in_words_of_this_program(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch, restarting())
    monkeypatch.setattr(calls, "ELECTED_SECONDS", 7.0)
    with pytest.raises(ServiceNotReadyError, match="the operator is restarting: try again"):
        calls.ask_operator("heliograph", "scale", "bookie", 5)
    assert 7 < stage.now < 7 + 2 * calls.POLL_SECONDS


def test_a_refusal_is_raised_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(monkeypatch, refusal(ConflictError("two wishes")))
    with pytest.raises(ConflictError, match="two wishes"):
        calls.ask_operator("heliograph", "scale", "bookie", 5)
    assert stage.asked == 1
