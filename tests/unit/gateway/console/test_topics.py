"""The pages of topics of all namespaces, where the time of a page is over soon."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from heliograph.gateway.console import topics as pages
from tests.unit.gateway.world import Gateway

NAMESPACES = [f"{tenant}/n{number}" for tenant in ("-a", "a", "b") for number in range(4)]
TOPICS = {"a/n1": ["x", "y"], "b/n0": ["x"]}


async def test_a_page_ends_in_time_in_many_small_namespaces_and_the_next_goes_on_after_the_last_one(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[str] = []
    asked: list[str] = []

    async def tenants() -> list[str]:
        return ["-a", "a", "b"]

    async def listed(tenant: str) -> list[str]:
        asked.append(tenant)
        return [name for name in NAMESPACES if name.startswith(f"{tenant}/")]

    async def list_topics(namespace: str, after: str = "", **_: Any) -> list[Mapping[str, Any]]:
        looked.append(namespace)
        names = [f"persistent://{namespace}/{name}" for name in TOPICS.get(namespace, ())]
        return [{"name": name, "partitions": 0} for name in names if name > after]

    monkeypatch.setattr(gateway.world.namespaces, "tenants", tenants)
    monkeypatch.setattr(gateway.world.namespaces, "list", listed)
    monkeypatch.setattr(gateway.world, "list_topics", list_topics)
    assert (await _all(gateway))[0] == 1
    assert asked == ["-a", "a", "b"]
    seconds, looked[:], asked[:] = pages.SECONDS_MAX, [], []
    monkeypatch.setattr(pages, "SECONDS_MAX", 0.0)
    count, found = await _all(gateway)
    # A page is a namespace, or finds that a tenant has no more, or that there are no more tenants.
    assert (seconds, count, looked) == (2.0, len(NAMESPACES) + 3 + 1, NAMESPACES)
    assert len(asked) == count - 1, "a page lists the namespaces of one tenant"
    assert found == [f"persistent://{name}" for name in ("a/n1/x", "a/n1/y", "b/n0/x")]


async def _all(gateway: Gateway) -> tuple[int, list[str]]:
    """Return how many pages there are, and the topics on them."""
    found, after, count = list[str](), "", 0
    while True:
        answer = (await gateway.http.get("/admin/heliograph/topics", params={"after": after})).json()
        found, count = [*found, *(row["name"] for row in answer["topics"])], count + 1
        if not (after := answer["next"]):
            return count, found
        assert count < 50, "the pages do not end"
