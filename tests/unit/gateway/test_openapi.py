"""The OpenAPI document says what the gateway answers, and the gateway answers what it says."""

from __future__ import annotations

import asyncio
import os
import re
from typing import Any

import pytest

from heliograph.base.errors import InvalidTopicNameError
from heliograph.gateway.errors import _ROWS
from heliograph.gateway.openapi import MEANINGS, METHODS, operations
from heliograph.protocol.topic_name import TopicName
from tests.fuzz.gateway_api import run
from tests.unit.gateway.world import Gateway

pytestmark = pytest.mark.slow

EXAMPLES = int(os.environ.get("GATEWAY_API_EXAMPLES", "6"))  # requests of each operation
NAMES = [
    "a", "A-1=b:c.d_e", "", ".", "..", "...", "a b", " a", "a ", "a/b", "a\n", "\x7f", "a%2Fb", "naïve", "x" * 255,
    "x" * 256,
]  # fmt: skip


def document() -> dict[str, Any]:
    async def whole() -> dict[str, Any]:
        async with Gateway() as gateway:
            found: dict[str, Any] = (await gateway.http.get("/openapi.json")).json()
            return found

    return asyncio.run(whole())


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return document()


def test_every_operation_documents_the_errors_of_its_kind(found: dict[str, Any]) -> None:
    for path, operation in operations(found):
        responses = operation["responses"]
        errors = {int(status) for status in responses if int(status) >= 400}
        assert errors >= {403, 421, 429}, path
        assert (401 in errors) == (path != "/health"), path
        if path.startswith(("/admin", "/topics", "/lookup")):
            assert errors >= {400, 404, 409, 412, 501, 503}, path
        if "requestBody" in operation:
            assert errors >= {400, 413, 415, 422}, path
        assert "Retry-After" in responses["429"]["headers"]
        for status in errors:
            body = responses[str(status)]["content"]["application/json"]["schema"]
            assert body == {"$ref": "#/components/schemas/ErrorBody"}, (path, status)
    assert not {"HTTPValidationError", "ValidationError"} & found["components"]["schemas"].keys()


def test_every_name_in_a_path_is_a_parameter(found: dict[str, Any]) -> None:
    for path, operation in operations(found):
        named = [one["name"] for one in operation.get("parameters", ()) if one["in"] == "path"]
        assert sorted(named) == sorted(re.findall(r"{(\w+)}", path)), path
        assert all(one["required"] for one in operation.get("parameters", ()) if one["in"] == "path"), path


def test_there_are_no_methods_beside_those_that_are_documented(found: dict[str, Any]) -> None:
    assert {method for methods in found["paths"].values() for method in methods} == set(METHODS)


def test_statuses_of_errors_have_a_meaning() -> None:
    answered = {row.http for row in _ROWS.values()}
    assert answered <= MEANINGS.keys()


def parameters(found: dict[str, Any], name: str) -> list[dict[str, Any]]:
    every = (one for _, operation in operations(found) for one in operation.get("parameters", ()))
    return [one["schema"] for one in every if one["name"] == name and one["in"] == "path"]


@pytest.mark.parametrize("name", NAMES)
def test_rules_of_names_are_those_of_topics(found: dict[str, Any], name: str) -> None:
    for field in ("tenant", "namespace", "topic"):
        parts = {"tenant": "public", "namespace": "default", "topic": "flights"} | {field: name}
        try:
            TopicName.parse("persistent://{tenant}/{namespace}/{topic}".format(**parts))
            is_legal = True
        except InvalidTopicNameError:
            is_legal = False
        [rules] = {tuple(sorted(one.items())) for one in parameters(found, field)}
        allowed = dict(rules)
        lengths = allowed["minLength"] <= len(name) <= allowed.get("maxLength", 1_000)
        assert (lengths and bool(re.fullmatch(allowed["pattern"], name))) == is_legal, (field, name)


def test_answers_are_those_of_the_document() -> None:
    """A short round of ``tests/fuzz/gateway_api.py``, the same every time."""
    found = run(EXAMPLES)
    assert not found.problems, "\n".join(found.problems.values())
    assert found.requests > 400
    assert {200, 204, 400, 404, 412, 422, 501} <= found.statuses.keys()  # requests got far
