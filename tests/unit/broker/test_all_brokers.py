"""Operations that ask all brokers: the answers of some count although others fail."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from heliograph.actors.broker.admin.brokers import BrokerAdminService, BrokerDuties
from heliograph.actors.broker.namespaces.bundles import bundle_names
from heliograph.base.errors import BadRequestError, HeliographError, PersistenceError, ServiceNotReadyError
from heliograph.metadata.model import NamespacePolicies

BROKERS = {
    "us": None,
    "old": BadRequestError("there is no followed", field="method"),
    "dead": ServiceNotReadyError("broker dead cannot be reached"),
    "other": None,
}


class Broker:
    """What one broker answers."""

    def __init__(self, name: str) -> None:
        self.name = name

    async def asked(self, method: str, arguments: dict[str, Any]) -> list[dict[str, Any]]:
        assert method == "followed"
        error: HeliographError | None = BROKERS[self.name]
        if error is not None:
            raise error
        return [{"broker": self.name}]

    async def run(self, method: str, arguments: dict[str, Any]) -> list[dict[str, Any]]:
        if arguments["trace_id"] == "zz":
            raise BadRequestError("zz is no trace id", field="trace_id")
        return await self.asked(method, arguments)


def service_of(names: Iterable[str], broker: Callable[[str], Any]) -> BrokerAdminService:
    async def live() -> list[Any]:
        return [SimpleNamespace(broker_id=name, actor_name=name) for name in names]

    ownership = SimpleNamespace(registration=SimpleNamespace(broker_id="us"), brokers=live)
    nothing = cast(Any, None)
    return BrokerAdminService(nothing, nothing, cast(Any, ownership), nothing, broker("us"), broker)


async def test_brokers_that_cannot_answer_are_left_out() -> None:
    service = service_of(BROKERS, Broker)
    assert [one["broker"] for one in await service.followed("a")] == ["us", "other"]
    with pytest.raises(BadRequestError, match="no trace id"):
        await service.followed("zz")


async def test_quotas_of_all_brokers_are_checked_although_one_cannot_be_reached() -> None:
    asked: list[str] = []

    class Counting:
        def __init__(self, name: str) -> None:
            self.name = name

        async def asked(self, method: str, arguments: dict[str, Any]) -> int:
            if self.name == "dead":
                raise ServiceNotReadyError("broker dead cannot be reached")
            await asyncio.sleep(0)
            asked.append(self.name)
            return 2

        run = asked

    service = service_of(["dead", "us", "other"], Counting)
    with pytest.raises(ServiceNotReadyError, match=r"4 topics were checked, and not all of dead: .* cannot be reached"):
        await service.check_quotas()
    assert sorted(asked) == ["other", "us"]
    assert await service_of(["us", "other"], Counting).check_quotas() == 4


async def test_quotas_of_all_topics_of_a_broker_are_checked_although_one_cannot_be_read() -> None:
    def topic(name: str, error: HeliographError | None = None) -> Any:
        async def check_quota() -> None:
            checked.append(name)
            if error is not None:
                raise error

        return SimpleNamespace(name=name, is_open=True, admission=SimpleNamespace(check_quota=check_quota))

    checked: list[str] = []
    nothing = cast(Any, None)
    topics = SimpleNamespace(loaded=[topic("a", PersistenceError("no bookie answers")), topic("b")])
    duties = BrokerDuties(
        cast(Any, SimpleNamespace(topics=topics, ownership=None)), nothing, cast(Any, SimpleNamespace(unload=None))
    )
    with pytest.raises(ServiceNotReadyError, match="1 topics were checked, and not all of a: no bookie answers"):
        await duties.run("check_quotas", {})
    assert checked == ["a", "b"]


async def test_a_namespace_is_unloaded_from_all_brokers_before_the_error_of_one_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    unloaded, (dead, *others) = list[str](), bundle_names(NamespacePolicies())

    async def unload_bundle(namespace: str, name: str) -> bool:
        if name == dead:
            raise ServiceNotReadyError("broker dead cannot be reached")
        await asyncio.sleep(0)
        unloaded.append(name)
        return True

    async def policies(_: Any) -> NamespacePolicies:
        return NamespacePolicies()

    service = service_of(["us"], Broker)
    monkeypatch.setattr(service, "_catalog", SimpleNamespace(policies=policies))
    monkeypatch.setattr(service, "unload_bundle", unload_bundle)
    with pytest.raises(ServiceNotReadyError, match="cannot be reached"):
        await service.unload_namespace("a/b")
    assert unloaded == others
    assert unloaded
