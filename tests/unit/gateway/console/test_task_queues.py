"""The list of queues of tasks, some of which do not answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from heliograph.base.errors import NotFoundError, NotPermittedError, ServiceNotReadyError
from heliograph.tasks.options import SUBSCRIPTION
from tests.unit.gateway.world import Gateway

PLACE = "persistent://public/default"


async def test_a_queue_that_does_not_answer_hides_no_other(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    failures = {"moves": ServiceNotReadyError("it moves"), "hidden": NotPermittedError("not for you")}

    async def list_topics(namespace: str, **_: Any) -> list[Mapping[str, Any]]:
        names = [f"persistent://{namespace}/{name}-letters" for name in ("hidden", "mail", "moves")]
        return [{"name": name, "partitions": 0} for name in names]

    async def topic_stats(topic: str) -> Mapping[str, Any]:
        name = topic.rpartition("/")[2].removesuffix("-letters")
        if name in failures:
            raise failures[name]
        if "-priority-" in name:
            raise NotFoundError("there is no more")
        return {"subscriptions": {SUBSCRIPTION: {"msgBacklog": 3, "consumers": [{}]}}}

    monkeypatch.setattr(gateway.world, "list_topics", list_topics)
    monkeypatch.setattr(gateway.world, "topic_stats", topic_stats)
    answer = await gateway.http.get("/admin/heliograph/tasks")
    assert answer.status_code == 200, answer.text
    unknown = {"backlog": None, "workers": None, "letters": None}
    assert answer.json()["queues"] == [
        {"name": f"{PLACE}/hidden", **unknown},
        {"name": f"{PLACE}/mail", "backlog": 3, "workers": 1, "letters": 3},
        {"name": f"{PLACE}/moves", **unknown},
    ]
