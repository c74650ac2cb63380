"""Every route of the OpenAPI document, with bodies and parameters that are hostile: none is answered by 500."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.unit.gateway.world import Gateway
from tests.unit.limits.measuring import Costs

pytestmark = pytest.mark.slow

DEEP = "[" * 100_000
BODIES: dict[str, str | bytes] = {
    "deep arrays": DEEP,
    "deep objects": '{"a":' * 50_000,
    "many arrays": "[" + "[]," * 20_000 + "[]]",
    "a long number": '{"type": ' + "1" * 60_000 + "}",
    "a number above all": '{"retentionTimeInMinutes": 1e999}',
    "no number": '{"retentionTimeInMinutes": NaN}',
    "half a pair": '{"type": "\\ud800", "schema": "\\ud800"}',
    "no UTF-8": b'{"type": "\xed\xa0\x80"}',
    "UTF-16": '{"type": "JSON"}'.encode("utf-16"),
    "a schema of deep arrays": json.dumps({"type": "PROTOBUF_NATIVE", "schema": DEEP[:60_000]}),
    "a pair of deep arrays": json.dumps({"type": "KEY_VALUE", "schema": DEEP[:60_000]}),
    "a wrong type": '"text"',
    "nothing": "",
}
LONG = "n" * 5_000


def operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    document = Gateway().app.openapi()
    for path, methods in sorted(document["paths"].items()):
        for method, operation in methods.items():
            yield path, method, operation


def _url(path: str, operation: dict[str, Any], text: str) -> str:
    for parameter in operation.get("parameters", ()):
        if parameter["in"] == "path":
            number = parameter["schema"].get("type") == "integer"
            path = path.replace(f"{{{parameter['name']}}}", "1" if number else text)
    return path


WITH_BODIES = [
    pytest.param(path, method, operation, id=f"{method} {path}")
    for path, method, operation in operations()
    if "requestBody" in operation or method in ("post", "put", "patch")
]


def test_the_document_has_the_routes_that_take_bodies() -> None:
    assert len(WITH_BODIES) > 50


@pytest.mark.parametrize(("path", "method", "operation"), WITH_BODIES)
async def test_no_body_is_answered_by_500_or_holds_the_loop(path: str, method: str, operation: dict[str, Any]) -> None:
    async with Gateway() as gateway:
        gateway.world.add("persistent://public/default/name")
        for what, body in BODIES.items():
            url = _url(path, operation, "name")
            costs = Costs()
            for _ in costs.attempts():
                with costs.measured():
                    answer = await gateway.http.request(method, url, content=body)
                assert answer.status_code != 500, f"{what}: {answer.text[:300]}"
            costs.check(what)
            assert len(answer.content) < 10_000, f"{what} is sent back"


NAMES_TOGETHER = 5  # long ones, which the client puts into one address


@pytest.mark.parametrize(
    ("path", "method", "operation"),
    [pytest.param(*one, id=f"{one[1]} {one[0]}") for one in operations() if "{" in one[0]],
)
async def test_no_long_parameter_is_answered_by_500(path: str, method: str, operation: dict[str, Any]) -> None:
    async with Gateway() as gateway:
        for text in (LONG, "%00", "%ED%A0%80", "%F0%9F%92%A9" * 300, ".."):
            names = [one["name"] for one in operation.get("parameters", ()) if one["in"] == "query"]
            for first in range(0, len(names) or 1, NAMES_TOGETHER):
                query = "&".join(f"{name}={text}" for name in names[first : first + NAMES_TOGETHER])
                answer = await gateway.http.request(method, f"{_url(path, operation, text)}?{query}", content="{}")
                assert answer.status_code != 500, answer.text[:300]
