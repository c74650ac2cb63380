"""Modules of Ray's dashboard that run while they are asked, with processes that are only noted."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from heliograph.cluster.head import dashboard
from heliograph.cluster.head.dashboard import RestingModule


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test on an event loop of its own."""

    @functools.wraps(test)
    def run(**fixtures: Any) -> None:
        asyncio.run(asyncio.wait_for(test(**fixtures), 60))

    return run


class Process:
    """A process that ends when it is told to."""

    exitcode: int | None = None

    def terminate(self) -> None:
        self.exitcode = 0

    def join(self, seconds: float) -> None:
        assert self.exitcode is not None, "it was told to end"


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is asked of Ray's own handle, which is changed to start no process."""
    found: list[str] = []

    def start(self: Any) -> None:
        found.append(f"start {self.module_cls.__name__}")
        self.process = Process()
        self.parent_conn = SimpleNamespace(poll=lambda seconds: True, close=lambda: None)

    def ready(self: Any) -> None:
        self.health_check_task = asyncio.get_event_loop().create_task(self._do_periodic_health_check())

    async def answer(self: Any, request: Any, *_: Any) -> str:
        assert self.process is not None
        await request.answer
        return f"{request.method} of {self.module_cls.__name__}"

    async def healthy(self: Any) -> None:
        found.append(f"look at {self.module_cls.__name__}")
        if self.process.exitcode is not None:
            raise RuntimeError("it has ended")

    async def destroy(self: Any) -> None:
        found.append(f"destroy {self.module_cls.__name__}")
        self.process = None

    base: Any = RestingModule.__mro__[1]
    for name, method in {
        "start_module": start,
        "wait_for_module_ready": ready,
        "proxy_request": answer,
        "_do_once_health_check": healthy,
        "destroy_module": destroy,
    }.items():
        monkeypatch.setattr(base, name, method)
    monkeypatch.setattr(dashboard, "_write_examples", lambda module: found.append(f"examples of {module.name}"))
    monkeypatch.setattr(dashboard, "CHECK_SECONDS", 0.0)
    return found


def _module(name: str) -> RestingModule:
    return RestingModule(asyncio.get_running_loop(), type(name, (), {}), None)


def _request(method: str = "GET") -> Any:
    answer = asyncio.get_running_loop().create_future()
    answer.set_result(None)
    return SimpleNamespace(method=method, answer=answer)


async def _until(holds: Callable[[], object]) -> None:
    while not holds():  # noqa: ASYNC110 - a step that is noted sets no event
        await asyncio.sleep(0)


async def _end(*modules: Any) -> None:
    for module in modules:
        module.health_check_task.cancel()


@in_loop
async def test_only_modules_that_nobody_needs_unasked_wait_for_the_first_request(steps: list[str]) -> None:
    modules = [_module(name) for name in ("StateHead", "JobHead", "MetricsHead", "OfANewRelease")]
    for module in modules:
        module.start_module()
    for module in modules:
        module.wait_for_module_ready()
    assert steps == ["start StateHead", "examples of MetricsHead", "start OfANewRelease"]
    assert [module.name for module in dashboard._Running(modules)] == ["StateHead", "OfANewRelease"]
    await _end(modules[0], modules[3])


@in_loop
async def test_requests_at_once_start_a_module_once_and_are_answered(steps: list[str]) -> None:
    module = _module("DataHead")
    answers = await asyncio.gather(*(module.proxy_request(_request()) for _ in range(3)))
    assert answers == ["GET of DataHead"] * 3
    assert [step for step in steps if step.startswith("start")] == ["start DataHead"]
    await _end(module)


@in_loop
async def test_a_module_that_is_not_asked_any_more_ends_and_starts_again(
    steps: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = _module("DataHead")
    await module.proxy_request(_request())
    await _until(lambda: steps.count("look at DataHead") > 2)
    assert "destroy DataHead" not in steps
    monkeypatch.setattr(dashboard, "IDLE_SECONDS", 0.0)
    await _until(lambda: module.process is None)
    assert await module.proxy_request(_request()) == "GET of DataHead"
    assert steps.count("start DataHead") == 2
    await _end(module)


@pytest.mark.parametrize(("name", "method"), [("EventHead", "POST"), ("StateHead", "GET")])
@in_loop
async def test_a_module_that_was_told_something_or_is_needed_unasked_goes_on(
    steps: list[str], monkeypatch: pytest.MonkeyPatch, name: str, method: str
) -> None:
    monkeypatch.setattr(dashboard, "IDLE_SECONDS", 0.0)
    module = _module(name)
    await module.proxy_request(_request(method))
    await _until(lambda: steps.count(f"look at {name}") > 3)
    assert f"destroy {name}" not in steps
    await _end(module)


@in_loop
async def test_a_module_does_not_end_while_it_answers(steps: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dashboard, "IDLE_SECONDS", 0.0)
    module, request = _module("JobHead"), _request()
    request.answer = asyncio.get_running_loop().create_future()  # the log of a job that runs
    answer = asyncio.ensure_future(module.proxy_request(request))
    await _until(lambda: steps.count("look at JobHead") > 3)
    request.answer.set_result(None)
    assert await answer == "GET of JobHead"
    await _until(lambda: module.process is None)


@in_loop
async def test_a_request_finds_a_module_again_whose_process_has_ended(steps: list[str]) -> None:
    module: Any = _module("JobHead")
    await module.proxy_request(_request())
    module.health_check_task.cancel()
    module.process.exitcode = 1
    assert await module.proxy_request(_request()) == "GET of JobHead"
    assert [step for step in steps if "look" not in step] == ["start JobHead", "destroy JobHead", "start JobHead"]
    await _end(module)


@in_loop
async def test_a_needed_module_whose_process_has_ended_starts_unasked(steps: list[str]) -> None:
    module: Any = _module("StateHead")
    module.start_module()
    module.wait_for_module_ready()
    module.process.exitcode = 1
    await _until(lambda: steps.count("start StateHead") == 2)
    await _end(module)


def test_what_of_the_dashboard_is_changed_is_there() -> None:
    """This asks the installed release, and ``make compat`` the others."""
    assert callable(dashboard._head.DashboardHead._record_dashboard_metrics)
    assert dashboard._head.dashboard_consts.SUBPROCESS_MODULE_WAIT_READY_TIMEOUT > 0
    names = ("start_module", "wait_for_module_ready", "proxy_request", "destroy_module", "_do_once_health_check")
    assert all(callable(getattr(RestingModule.__mro__[1], name)) for name in (*names, "_do_periodic_health_check"))
