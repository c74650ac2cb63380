"""Agents of Ray know an address, and send no headers: a token in the address lets them in."""

from __future__ import annotations

from typing import Any

from heliograph.auth.principal import METHOD_TOKEN
from heliograph.gateway.http.door import credentials_of


def scope(method: str, path: str) -> dict[str, Any]:
    return {"type": "http", "method": method, "path": path, "query_string": b"token=abc", "headers": []}


def test_a_token_in_the_address_is_taken_for_events_of_ray_alone() -> None:
    assert credentials_of(scope("POST", "/ray/events")).method == METHOD_TOKEN
    assert credentials_of(scope("POST", "/ray/events")).data == b"abc"
    assert credentials_of(scope("POST", "/topics/persistent/public/default/orders")).method != METHOD_TOKEN
