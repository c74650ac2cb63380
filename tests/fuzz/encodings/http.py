"""What hostile clients of the gateway say over HTTP: every route with sensible and with strange parameters. Pure."""

from __future__ import annotations

import base64
import functools
import json
from dataclasses import dataclass
from random import Random
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote, quote_from_bytes

from heliograph.gateway.app import create_app
from heliograph.gateway.config import GatewayConfig
from tests.fuzz import values
from tests.fuzz.encodings import schemas as definitions

METHODS = ("GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW", "get", "")
SEGMENTS: dict[str, tuple[str, ...]] = {
    "domain": ("persistent", "non-persistent"),
    "tenant": ("public", "hostile"),
    "namespace": ("default", "ns"),
    "topic": ("a", "b", "a-partition-0"),
    "subscription": ("s", "t"),
    "partition": ("0", "1"),
    "cluster": ("standalone",),
    "bundle": ("0x00000000_0xffffffff", "0x00000000_0x80000000"),
    "role": ("me",),
    "property": ("owner",),
    "version": ("0", "1"),
    "messageId": ("0", "latest", "10:0:-1"),
    "count": ("1", "1000000"),
}
# What an administrator may break for all clients, the well-behaved one among them.
_FORBIDDEN = ("/brokers/configuration", "/clusters", "/bookies", "/shutdown")
_VALUES_MAX = 3  # of one array, and of unknown properties of one object


@dataclass(frozen=True)
class Route:
    """One operation of the gateway's API."""

    method: str
    path: str
    parameters: tuple[dict[str, Any], ...]
    body: dict[str, Any] | None


def requests(random: Random) -> list[bytes]:
    """Return the requests of one connection."""
    return [request(random) for _ in range(random.choice((1, 1, 2, 3, 8)))]


def request(random: Random) -> bytes:
    """Return one request, with a body that mostly has the announced length."""
    routes, schemas = _routes()
    wanted = random.choice(routes)
    if random.random() < 0.4:  # the routes that carry messages are few
        wanted = random.choice([route for route in routes if route.path.startswith("/topics")])
    method = wanted.method if random.random() < 0.95 else random.choice(METHODS)
    body = b""
    if wanted.body is not None or random.random() < 0.1:
        body = _body(random, wanted.body or {}, schemas)
    return _with_head(random, method, _target(random, wanted), body)


def sensible(random: Random, schema: dict[str, Any], schemas: dict[str, Any], depth: int = 5) -> Any:
    """Return a value that a schema of JSON allows, or, rarely at each place, any value."""
    if random.random() < 0.06 or not depth:
        return values.json_value(random)
    if "$ref" in schema:
        return sensible(random, schemas[schema["$ref"].rpartition("/")[2]], schemas, depth)
    for choice in ("anyOf", "oneOf", "allOf"):
        if choice in schema:
            return sensible(random, random.choice(schema[choice]), schemas, depth)
    if "enum" in schema:
        return random.choice(schema["enum"])
    match schema.get("type"):
        case "object":
            return _object(random, schema, schemas, depth)
        case "array":
            items = schema.get("items", {})
            return [sensible(random, items, schemas, depth - 1) for _ in range(random.randint(0, _VALUES_MAX))]
        case "integer" | "number":
            return random.choice((0, 1, 2, 10, 1_000, values.number(random)))
        case "boolean":
            return random.random() < 0.5
        case "string":
            return random.choice(("a", "10:0:-1", "CAEQAA==", "latest", "1", values.text(random)))
        case "null":
            return None
    return values.json_value(random)


def _object(random: Random, schema: dict[str, Any], schemas: dict[str, Any], depth: int) -> dict[str, Any]:
    known, required = schema.get("properties", {}), schema.get("required", ())
    found = {
        name: sensible(random, inner, schemas, depth - 1)
        for name, inner in known.items()
        if random.random() < (0.95 if name in required else 0.4)
    }
    extra = schema.get("additionalProperties")
    if isinstance(extra, dict):
        for _ in range(random.randint(0, _VALUES_MAX)):
            found[values.text(random)[:100]] = sensible(random, extra, schemas, depth - 1)
    return found


def _body(random: Random, schema: dict[str, Any], schemas: dict[str, Any]) -> bytes:
    kind = random.randrange(25)
    if kind == 0:
        return values.octets(random)
    if kind == 1:
        return b"[" * random.choice((100, 100_000))
    if kind == 2:
        return b'{"a":' * random.choice((100, 20_000)) + b"1"
    if kind == 3:
        return b'{"messages":[{"payload":"a","payload":"b"},{}],"messages":[]}'
    if kind == 4:
        return _with_schema(random)
    text = json.dumps(sensible(random, schema, schemas), ensure_ascii=random.random() < 0.5)
    return text.encode(random.choice(("utf-8", "utf-8", "utf-8", "utf-8", "utf-16")), "surrogatepass")


def _with_schema(random: Random) -> bytes:
    """Return the body of a new schema, or of messages with one."""
    kind = random.choice(("AVRO", "JSON", "PROTOBUF", "PROTOBUF_NATIVE", "KEY_VALUE", "STRING", "NONE", "x"))
    definition = definitions.definition(random)
    pairs = {definitions.pair_text(random): definitions.pair_text(random)}
    found: dict[str, object] = {"type": kind, "schema": definition.decode(errors="replace"), "properties": pairs}
    if random.random() < 0.3:
        found = {"type": kind, "data": base64.b64encode(definition).decode(), "name": definitions.name(random)}
    if random.random() < 0.5:
        encoded = base64.b64encode(definition).decode()
        value: object = {"n": "x"}
        for _ in range(random.choice((0, 3, 60))):
            value = {"n": value, "x": 1}
        given = json.dumps({"type": kind, "schema": encoded})
        found = {"valueSchema": given, "messages": [{"payload": json.dumps(value)}] * random.choice((1, 2))}
    return json.dumps(found).encode()


def _target(random: Random, route: Route) -> str:
    path = "/".join(_segment(random, each) for each in route.path.split("/"))
    query = [
        f"{parameter['name']}={_quoted(random, _plain(random, parameter.get('schema', {})))}"
        for parameter in route.parameters
        if parameter["in"] == "query" and random.random() < 0.4
    ]
    if random.random() < 0.05:
        query.append(_quoted(random, values.text(random)[:2_000]))
    return path + ("?" + "&".join(query) if query else "")


def _segment(random: Random, segment: str) -> str:
    if not segment.startswith("{"):
        return segment
    name = segment.strip("{}").partition(":")[0]
    if random.random() < 0.9:
        return quote(random.choice(SEGMENTS.get(name, ("a", "1"))), safe="")
    return _quoted(random, values.text(random)[:2_000])


def _plain(random: Random, schema: dict[str, Any]) -> str:
    found = sensible(random, schema, _routes()[1])
    return found if isinstance(found, str) else json.dumps(found)


def _quoted(random: Random, text: str) -> str:
    if random.random() < 0.1:
        return quote_from_bytes(values.octets(random)[:2_000], safe="")
    return quote(text[:2_000].encode("utf-8", "surrogatepass"), safe="" if random.random() < 0.8 else "/%?&")


def _with_head(random: Random, method: str, target: str, body: bytes) -> bytes:
    headers = [("Host", "127.0.0.1"), ("Content-Type", "application/json")]
    if random.random() < 0.9:
        headers.append(("Content-Length", str(len(body))))
    elif random.random() < 0.5:
        headers.append(("Transfer-Encoding", "chunked"))
        size = len(body) if random.random() < 0.8 else values.number(random)
        body = b"%x\r\n%s\r\n0\r\n\r\n" % (max(size, 0), body)
    else:
        headers.append(("Content-Length", str(values.number(random))))
    if random.random() < 0.1:
        name = random.choice(("Content-Type", "Host", "Origin", "Expect", "Connection", "Authorization", "Accept",
                              "Content-Encoding", "Range", "Upgrade", "X-" + "a" * 3_000))  # fmt: skip
        headers.append((name, values.text(random)[:40_000]))
    lines = [f"{method} {target} HTTP/{random.choice(('1.1', '1.1', '1.1', '1.1', '1.0', '2.0', '9'))}"]
    lines += [f"{name}: {value}" for name, value in headers]
    return "\r\n".join(lines).encode("utf-8", "surrogatepass") + b"\r\n\r\n" + body


@functools.cache
def _routes() -> tuple[tuple[Route, ...], dict[str, Any]]:
    """Return all operations, as the gateway itself describes them, and the schemas of their bodies."""
    nothing: Any = SimpleNamespace()
    app: Any = create_app(nothing, nothing, GatewayConfig(), nothing, nothing)
    described = app.openapi()
    found = []
    for path, operations in described["paths"].items():
        for method, operation in operations.items():
            if any(part in path for part in _FORBIDDEN):
                continue
            content = operation.get("requestBody", {}).get("content", {})
            body = next(iter(content.values()))["schema"] if content else None
            found.append(Route(method.upper(), path, tuple(operation.get("parameters", ())), body))
    return tuple(found), described.get("components", {}).get("schemas", {})
