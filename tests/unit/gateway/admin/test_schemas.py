"""Pulsar's /admin/v2/schemas, over the brokers' own registry in memory."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from tests.unit.gateway.world import Gateway

TOPIC = "/admin/v2/schemas/public/default/flights"


def avro(*fields: dict[str, Any]) -> dict[str, Any]:
    definition = {"type": "record", "name": "Flight", "fields": [{"name": "carrier", "type": "string"}, *fields]}
    return {"type": "AVRO", "schema": json.dumps(definition), "properties": {"team": "air"}}


async def test_versions_are_added_shown_and_deleted(gateway: Gateway) -> None:
    http = gateway.http
    assert (await http.get(f"{TOPIC}/schema")).status_code == 404
    assert (await http.post(f"{TOPIC}/schema", json=avro())).json() == {"version": {"version": 0}}
    grown = avro({"name": "delay", "type": "int", "default": 0})
    assert (await http.post(f"{TOPIC}/schema", json=grown)).json() == {"version": {"version": 1}}
    newest = (await http.get(f"{TOPIC}/schema")).json()
    assert (newest["version"], newest["type"], newest["data"]) == (1, "AVRO", grown["schema"])
    assert newest["properties"] == {"team": "air"}
    assert (await http.get(f"{TOPIC}/schema/0")).json()["data"] == avro()["schema"]
    assert (await http.get(f"{TOPIC}/schema/9")).status_code == 404
    shown = (await http.get(f"{TOPIC}/schemas")).json()["getSchemaResponses"]
    assert [schema["version"] for schema in shown] == [0, 1]
    assert (await http.post(f"{TOPIC}/version", json=grown)).json() == {"version": 1}
    assert (await http.post(f"{TOPIC}/version", json={"type": "STRING"})).json() == {"version": -1}
    metadata = (await http.get(f"{TOPIC}/metadata")).json()
    assert [entry["version"] for entry in metadata["index"]] == [0, 1]
    assert (metadata["info"]["version"], metadata["info"]["type"]) == (1, "AVRO")
    assert (await http.delete(f"{TOPIC}/schema")).json() == {"version": 2}
    assert (await http.get(f"{TOPIC}/schema")).status_code == 404


async def test_what_must_not_follow_is_refused_with_the_reason(gateway: Gateway) -> None:
    http = gateway.http
    await http.post(f"{TOPIC}/schema", json=avro())
    needed = avro({"name": "delay", "type": "int"})
    answer = (await http.post(f"{TOPIC}/compatibility", json=needed)).json()
    assert (answer["compatibility"], answer["schemaCompatibilityStrategy"]) == (False, "FULL")
    assert "delay" in answer["reason"]
    refused = await http.post(f"{TOPIC}/schema", json=needed)
    assert (refused.status_code, refused.json()["field"]) == (409, "schema")
    assert (await http.post(f"{TOPIC}/compatibility", json=avro())).json()["compatibility"] is True


async def test_a_pair_is_shown_as_a_pair(gateway: Gateway) -> None:
    pair = {
        "type": "KEY_VALUE",
        "schema": json.dumps({"key": "", "value": json.loads(avro()["schema"])}),
        "properties": {"key.schema.type": "STRING", "value.schema.type": "AVRO"},
    }
    assert (await gateway.http.post(f"{TOPIC}/schema", json=pair)).status_code == 200
    shown = (await gateway.http.get(f"{TOPIC}/schema")).json()
    assert json.loads(json.loads(shown["data"])["value"]) == json.loads(avro()["schema"])


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 400),
        (b"[]", 400),
        (b"[" * 60_000, 400),
        (b"{}", 400),
        (json.dumps({"type": "XML", "schema": ""}).encode(), 400),
        (json.dumps({"type": "AVRO", "data": "%%"}).encode(), 400),
        (json.dumps({"type": "AVRO", "schema": 7}).encode(), 400),
        (json.dumps({"type": "AVRO", "schema": "", "properties": {"a": 1}}).encode(), 400),
        (json.dumps({"type": "AVRO", "schema": "nonsense"}).encode(), 409),
        (json.dumps({"type": "AVRO", "data": base64.b64encode(b"x" * 600_000).decode()}).encode(), 400),
        (b" " * (1 << 21), 413),
    ],
)
async def test_a_body_that_is_no_schema(gateway: Gateway, body: bytes, status: int) -> None:
    answer = await gateway.http.post(f"{TOPIC}/schema", content=body)
    assert answer.status_code == status, answer.text
    assert answer.json()["advice"] == "stop"
