"""Administration over a few brokers of which some fail: what is retried, and what an answer then means."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from ray.exceptions import RayTaskError

from heliograph.auth.principal import Credentials
from heliograph.base.errors import (
    ClusterNotFoundError,
    ConnectionLostError,
    HeliographError,
    RequestTimeoutError,
    ServiceNotReadyError,
    TopicExistsError,
    TopicNotFoundError,
)
from heliograph.client import discovery
from heliograph.client.admin import admin as admin_module
from heliograph.client.admin.admin import ATTEMPTS_MAX, Admin, AdminSync, unwrapped
from heliograph.client.identity import Identity


def as_ray_raises(error: BaseException) -> BaseException:
    wrapped = RayTaskError("f", "traceback", error)  # type: ignore[no-untyped-call]
    raised: BaseException = wrapped.as_instanceof_cause()  # type: ignore[no-untyped-call]
    return raised


class Method:
    def __init__(self, script: Callable[..., Coroutine[Any, Any, Any]]) -> None:
        self._script = script

    def remote(self, *arguments: Any) -> Coroutine[Any, Any, Any]:
        return self._script(*arguments)


class Brokers:
    """Broker actors that answer from a list, one answer or error for each call, whichever broker is asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *answers: Any) -> None:
        self.answers = list(answers)
        self.calls: list[tuple[Any, ...]] = []
        self.shown: tuple[str, bytes, str] | None = None
        self.addresses: list[str] = []
        monkeypatch.setattr(discovery, "own_address", lambda: "10.0.0.5")
        monkeypatch.setattr(admin_module, "RETRY_PAUSE_SECONDS", 0)
        monkeypatch.setattr(discovery, "broker_names", lambda namespace: ["broker-1", "broker-2"])
        monkeypatch.setattr(discovery, "actor", lambda name, namespace: self)

    def __getattr__(self, name: str) -> Method:
        async def call(
            operation: str, arguments: dict[str, Any], shown: Credentials, original: str, address: str
        ) -> Any:
            assert name == "admin"
            self.addresses.append(address)
            self.shown = (shown.method, shown.data, original)
            self.calls.append((operation, *arguments.values()))
            answer = self.answers.pop(0)
            if isinstance(answer, HeliographError):
                raise as_ray_raises(answer)
            if isinstance(answer, BaseException):
                raise answer
            return answer

        return Method(call)


def test_an_answer_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = Brokers(monkeypatch, 4, [{"name": "t", "partitions": 4}])
    admin = AdminSync()
    assert admin.partitions("t") == 4
    assert admin.list_topics() == [{"name": "t", "partitions": 4}]
    assert brokers.calls == [("partitions", "t"), ("list_topics",)]


def test_an_error_of_ours_comes_out_of_rays_wrapping_and_is_not_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = Brokers(monkeypatch, TopicNotFoundError("no topic t", field="topic"))
    with pytest.raises(TopicNotFoundError, match="no topic t") as caught:
        AdminSync().topic_stats("t")
    assert type(caught.value) is TopicNotFoundError
    assert caught.value.field == "topic"
    assert len(brokers.calls) == 1


def test_a_dead_broker_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    from ray.exceptions import ActorUnavailableError

    Brokers(monkeypatch, ActorUnavailableError("gone", None), ServiceNotReadyError("not yet"), {"broker_id": "b"})
    assert AdminSync().lookup("t") == {"broker_id": "b"}


def test_a_creation_of_unknown_outcome_that_is_found_done_succeeds(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = Brokers(monkeypatch, ConnectionLostError("?"), TopicExistsError("t exists"))
    AdminSync().create_topic("t", 2, {"ensemble_size": 3, "write_quorum": 3, "ack_quorum": 2})
    assert brokers.calls[0][1:3] == ("t", 2)


@pytest.mark.parametrize("first", [[], [ServiceNotReadyError("nothing was done")]])
def test_a_topic_that_was_there_before_is_an_error(monkeypatch: pytest.MonkeyPatch, first: list[Any]) -> None:
    Brokers(monkeypatch, *first, TopicExistsError("t exists"))
    with pytest.raises(TopicExistsError):
        AdminSync().create_topic("t")


def test_publishing_is_never_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = Brokers(monkeypatch, ConnectionLostError("?"), ["1:0"])
    with pytest.raises(ConnectionLostError):
        AdminSync().publish("t", [b"x"])
    assert len(brokers.calls) == 1


def test_giving_up_names_the_last_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = Brokers(monkeypatch, *[ServiceNotReadyError(f"no {n}") for n in range(ATTEMPTS_MAX)])
    with pytest.raises(ServiceNotReadyError, match=f"no {ATTEMPTS_MAX - 1}"):
        AdminSync().subscriptions("t")
    assert brokers.answers == []


def test_brokers_that_do_not_answer_in_time_are_not_asked_for_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 40.0, 80.5])
    assert len(list(admin_module._pauses(lambda: next(clock)))) == 1, "the third attempt would begin after 80 s"
    monkeypatch.setattr(admin_module, "REPEATED_SECONDS", 0)
    brokers = Brokers(monkeypatch, *[RequestTimeoutError(f"no {n}") for n in range(ATTEMPTS_MAX)])
    with pytest.raises(RequestTimeoutError, match="no 0"):
        AdminSync().list_topics()
    assert len(brokers.calls) == 1


def test_no_cluster_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(namespace: str) -> list[str]:
        raise ClusterNotFoundError("no Ray")

    monkeypatch.setattr(discovery, "broker_names", none)
    with pytest.raises(ClusterNotFoundError, match="no Ray"):
        AdminSync().list_topics()


async def test_the_blocking_form_works_inside_a_running_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    Brokers(monkeypatch, 4, TopicNotFoundError("t"))
    assert AdminSync().partitions("t") == 4
    with pytest.raises(TopicNotFoundError):
        AdminSync().delete_topic("t")


def test_both_forms_have_the_same_methods() -> None:
    def public(kind: type) -> set[str]:
        return {name for name in dir(kind) if not name.startswith("_")}

    only_async = {
        "speaking_for",
        "called_from",
        "run_through",
    }  # of proxies, which serve many callers, and of subclasses
    assert public(Admin) - only_async == public(AdminSync)


def test_a_failure_that_is_not_ours_is_named() -> None:
    wrapped = as_ray_raises(ZeroDivisionError("by zero"))
    assert "ZeroDivisionError: by zero" in str(unwrapped(wrapped, "broker-1"))


def test_every_call_names_the_address_of_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = Brokers(monkeypatch, *[["t"]] * 4)
    AdminSync().list_topics()
    admin = Admin()
    asyncio.run(admin.called_from("203.0.113.9").list_topics())
    asyncio.run(admin.called_from("203.0.113.9").speaking_for("bob").list_topics())
    asyncio.run(admin.list_topics())
    assert brokers.addresses == ["10.0.0.5", "203.0.113.9", "203.0.113.9", "10.0.0.5"]


def test_every_call_shows_who_the_caller_is(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers = Brokers(monkeypatch, *[["t"]] * 4)
    AdminSync().list_topics()
    assert brokers.shown == ("none", b"", "")
    monkeypatch.setenv("HELIOGRAPH_TOKEN", "from-environment")
    AdminSync().list_topics()
    assert brokers.shown == ("token", b"from-environment", "")
    tokens = iter(["first", "second"])
    admin = Admin(identity=Identity(token=lambda: next(tokens)))
    asyncio.run(admin.list_topics())
    assert brokers.shown == ("token", b"first", "")
    asyncio.run(admin.speaking_for("bob").list_topics())
    assert brokers.shown == ("token", b"second", "bob")
