"""The OpenAPI document: derived from the routes by the framework, completed by tables for all of them (pure).

One table says which errors a kind of route may answer, because the middlewares, the body readers and the brokers answer
them for every route of that kind. Another says what the names in paths may be. A route itself documents only what it
alone answers; its own words are kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from fastapi import FastAPI
from typing_extensions import override

from heliograph.gateway.http.door import OPEN
from heliograph.protocol.topic_name import DOMAINS, LOCAL_NAME_CHARACTERS_MAX, LOCAL_NAME_PATTERN, PART_PATTERN

Json = dict[str, Any]

METHODS = ("get", "put", "post", "delete")
MEANINGS = {
    400: "A value is malformed, or the body is not JSON",
    401: "Callers are authenticated, and this one has not shown who it is",
    403: "The caller lacks the right, or the request is of a foreign web page",
    404: "The named object does not exist",
    405: "The topic is of a kind that has no such operation, or nothing has it here",
    409: "It exists already, or is in use",
    412: "A name that is not allowed, or a request that contradicts the present state",
    413: "The body is too large",
    415: "The body is not called JSON by its Content-Type",
    421: "The request is for a host that this gateway is not",
    422: "A value is not acceptable for its field",
    429: "The caller has reached the limit of one caller; nothing was done",
    501: "Something of Pulsar that is not offered, with the reason",
    502: "A broker's answer is not understood",
    503: "Not possible now: try again",
    504: "A broker did not answer in time; the request may have been carried out",
    507: "Disks of bookies are full; the answer names them",
}
OF_ALL = (403, 421, 429)  # answered before a route is looked for
OF_KNOWN_CALLERS = (401,)
OF_THE_CLUSTER = (400, 404, 405, 409, 412, 501, 502, 503, 504, 507)  # brokers or the metadata store are asked
OF_BODIES = (400, 413, 415, 422, 503)
OF_PARAMETERS = (422,)
_HEADERS = {
    401: {"WWW-Authenticate": "How to show who one is"},
    429: {"Retry-After": "Seconds after which to try again"},
}
_ERROR = {"application/json": {"schema": {"$ref": "#/components/schemas/ErrorBody"}}}
_PART = {"minLength": 1, "pattern": rf"^(?!\.{{1,2}}$){PART_PATTERN}$"}
_PARAMETERS: dict[str, Json] = {
    "tenant": {**_PART, "description": "Tenant, such as `public`"},
    "namespace": {**_PART, "description": "Namespace, such as `default`"},
    "topic": {
        "minLength": 1,
        "maxLength": LOCAL_NAME_CHARACTERS_MAX,
        "pattern": LOCAL_NAME_PATTERN,
        "description": "Local name of the topic",
    },
    "queue": {
        "minLength": 1,
        "maxLength": LOCAL_NAME_CHARACTERS_MAX,
        "pattern": LOCAL_NAME_PATTERN,
        "description": "Local name of the topic of a queue of tasks",
    },
    "subscription": {"minLength": 1, "pattern": r"\S"},
    "bundle": {"pattern": "^0x[0-9a-fA-F]{8}_0x[0-9a-fA-F]{8}$", "description": "Range of hashes of a bundle"},
}
_TOPIC_DOMAIN = {"enum": list(DOMAINS), "description": "`persistent` or `non-persistent`"}


class DocumentedApp(FastAPI):
    """An app whose document lists the served routes."""

    @override
    def openapi(self) -> Json:
        if self.openapi_schema is None:
            self.openapi_schema = completed(super().openapi())
        return self.openapi_schema


def completed(document: Json) -> Json:
    """Complete the framework's document in place, and return it."""
    for path, operation in operations(document):
        _complete(path, operation)
    for name in ("HTTPValidationError", "ValidationError"):  # the framework's own body, which is never sent
        document["components"]["schemas"].pop(name, None)
    return document


def operations(document: Json) -> Iterator[tuple[str, Json]]:
    """Yield the operations with their paths."""
    for path, methods in document["paths"].items():
        for method in METHODS:
            if method in methods:
                yield path, methods[method]


def statuses_of(path: str, operation: Json) -> set[int]:
    """Return the statuses of errors that a route of this kind may answer."""
    found = set(OF_ALL)
    if path not in OPEN:
        found.update(OF_KNOWN_CALLERS)
    if path.startswith(("/admin/", "/topics/", "/tasks/", "/lookup/")) or path == "/status":
        found.update(OF_THE_CLUSTER)
    if "requestBody" in operation:
        found.update(OF_BODIES)
    if any(_is_checked(parameter) for parameter in operation.get("parameters", ())):
        found.update(OF_PARAMETERS)
    return found


def _complete(path: str, operation: Json) -> None:
    _name_parameters(path, operation)
    responses = operation["responses"]
    own = responses.pop("422", None)
    if own is not None and own["description"] != "Validation Error":
        responses["422"] = own
    for status in statuses_of(path, operation):
        responses.setdefault(str(status), {"description": MEANINGS[status]})
    for status, answer in responses.items():
        if int(status) < 400:
            continue
        answer["content"] = _ERROR
        if headers := _HEADERS.get(int(status)):
            answer["headers"] = {
                name: {"description": meaning, "required": True, "schema": {"type": "string"}}
                for name, meaning in headers.items()
            }
    operation["responses"] = dict(sorted(responses.items()))
    for parameter in operation.get("parameters", ()):
        if parameter["in"] == "path":
            _describe(path, parameter)


def _name_parameters(path: str, operation: Json) -> None:
    """Add the names in a path that a route does not read, such as those of what is refused."""
    named = {one["name"] for one in operation.get("parameters", ()) if one["in"] == "path"}
    for name in re.findall(r"{(\w+)}", path):
        if name not in named:
            one = {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            operation.setdefault("parameters", []).append(one)


def _describe(path: str, parameter: Json) -> None:
    """Add the rules of a name in a path."""
    name, schema = parameter["name"], parameter["schema"]
    is_topic_domain = name == "domain" and "/failureDomains" not in path
    rules = _TOPIC_DOMAIN if is_topic_domain else _PARAMETERS.get(name, {"minLength": 1})
    if schema.get("type") != "string":
        return
    for rule, value in rules.items():
        schema[rule] = value
    if "description" in rules:
        parameter["description"] = rules["description"]


def _is_checked(parameter: Json) -> bool:
    """Return whether the framework checks a parameter: it has to be there, is no text, or has a rule of its own."""
    if parameter["in"] != "path" and parameter.get("required"):
        return True
    rules = {"enum", "minLength", "maxLength", "pattern"}
    return any(
        kind.get("type") not in ("string", "null") or bool(rules & kind.keys())
        for kind in parameter["schema"].get("anyOf", [parameter["schema"]])
    )
