"""Grants on namespaces, topics and subscriptions, in Pulsar's shapes."""

from __future__ import annotations

from typing import Any

import pytest

from heliograph.actors.broker.namespaces.grants import GRANTS_MAX
from heliograph.gateway.admin.permissions import NOTE
from tests.unit.gateway.world import FLIGHTS, Gateway

NAMESPACE = "/admin/v2/namespaces/public/default"
GRANTS = f"{NAMESPACE}/permissions"
TOPIC_GRANTS = "/admin/v2/persistent/public/default/flights/permissions"


async def test_a_namespace_is_granted_shown_and_revoked(gateway: Gateway) -> None:
    await gateway.world.namespaces.begin()
    http = gateway.http
    assert (await http.get(GRANTS)).json() == {}
    granted = await http.post(f"{GRANTS}/seller", json=["consume", "produce"])
    assert (granted.status_code, granted.headers[NOTE]) == (
        204, "authentication is off, so every caller may do everything",
    )  # fmt: skip
    assert (await http.post(f"{GRANTS}/a%2Fb%20*", json=["functions"])).status_code == 204
    assert (await http.get(GRANTS)).json() == {"seller": ["produce", "consume"], "a/b *": ["functions"]}
    assert (await http.post(f"{GRANTS}/seller", json=["consume"])).status_code == 204  # instead, as in Pulsar
    assert (await http.delete(f"{GRANTS}/a%2Fb%20*")).status_code == 204
    assert (await http.get(GRANTS)).json() == {"seller": ["consume"]}
    assert (await http.delete(f"{GRANTS}/unknown")).status_code == 204
    whole = (await http.get(NAMESPACE)).json()
    assert whole["auth_policies"]["namespace_auth"] == {"seller": ["consume"]}


async def test_a_topic_is_granted_shown_with_its_namespace_and_revoked(gateway: Gateway) -> None:
    await gateway.world.namespaces.begin()
    http = gateway.http
    assert (await http.post(f"{GRANTS}/seller", json=["consume"])).status_code == 204
    assert (await http.post(f"{TOPIC_GRANTS}/seller", json=["produce"])).status_code == 204
    assert (await http.get(TOPIC_GRANTS)).json() == {"seller": ["produce", "consume"]}
    partition = TOPIC_GRANTS.replace("flights", "flights-partition-1")
    assert (await http.get(partition)).json() == {"seller": ["produce", "consume"]}
    whole = (await http.get(NAMESPACE)).json()
    assert whole["auth_policies"]["destination_auth"] == {FLIGHTS: {"seller": ["produce"]}}
    assert (await http.delete(f"{TOPIC_GRANTS}/seller")).status_code == 204
    assert (await http.get(TOPIC_GRANTS)).json() == {"seller": ["consume"]}
    again = await http.delete(f"{TOPIC_GRANTS}/seller")
    assert (again.status_code, again.json()["reason"]) == (412, "Permissions are not set at the topic level")


async def test_subscriptions_have_lists_of_roles(gateway: Gateway) -> None:
    url = f"{GRANTS}/subscription"
    await gateway.world.namespaces.begin()
    http = gateway.http
    assert (await http.get(url)).json() == {}
    assert (await http.post(f"{url}/audit", json=["a", "b", "a"])).status_code == 204
    assert (await http.get(url)).json() == {"audit": ["a", "b"]}
    assert (await http.delete(f"{url}/audit/a")).status_code == 204
    assert (await http.get(url)).json() == {"audit": ["b"]}
    assert (await http.delete(f"{GRANTS}/audit/b")).status_code == 204  # the path of Pulsar's older clients
    assert (await http.get(url)).json() == {}
    assert (await http.delete(f"{url}/audit/b")).status_code == 404


async def test_the_mode_of_subscriptions(gateway: Gateway) -> None:
    url = f"{NAMESPACE}/subscriptionAuthMode"
    await gateway.world.namespaces.begin()
    http = gateway.http
    assert (await http.get(url)).json() == "None"
    assert (await http.post(url, json="Prefix")).status_code == 204
    assert (await http.get(url)).json() == "Prefix"
    assert (await http.post(url, json="Suffix")).status_code == 400
    assert (await http.post(url, json="None")).status_code == 204
    assert (await http.get(url)).json() == "None"


async def test_a_namespace_is_created_with_its_grants(gateway: Gateway) -> None:
    body = {
        "auth_policies": {
            "namespace_auth": {"seller": ["produce"]},
            "destination_auth": {FLIGHTS.replace("default", "new"): {"clerk": ["consume"]}},
            "subscription_auth_roles": {"audit": ["clerk"]},
        },
        "subscription_auth_mode": "Prefix",
    }
    await gateway.world.namespaces.begin()
    assert (await gateway.http.put("/admin/v2/namespaces/public/new", json=body)).status_code == 204
    shown = (await gateway.http.get("/admin/v2/namespaces/public/new")).json()
    assert shown["subscription_auth_mode"] == "Prefix"
    for name, value in body["auth_policies"].items():  # type: ignore[attr-defined]
        assert shown["auth_policies"][name] == value


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (f"{GRANTS}/r", ["everything"]),
        (f"{GRANTS}/r", []),
        (f"{GRANTS}/r", {"a": 1}),
        (f"{GRANTS}/r", [1]),
        (f"{GRANTS}/r", None),
        (f"{GRANTS}/{'r' * 257}", ["produce"]),
        (f"{GRANTS}/r%0A", ["produce"]),
        (f"{GRANTS}/subscription/s", ["r" * 257]),
        (f"{GRANTS}/subscription/s", [""]),
        (f"{TOPIC_GRANTS}/r", ["administer"]),
        (f"{NAMESPACE}/subscriptionAuthMode", 3),
    ],
)
async def test_what_cannot_be_granted_is_refused(gateway: Gateway, path: str, body: Any) -> None:
    await gateway.world.namespaces.begin()
    answer = await gateway.http.post(path, json=body)
    assert answer.status_code in (400, 422), answer.text
    assert (await gateway.http.get(GRANTS)).json() == {}


async def test_a_namespace_that_is_not_there_has_no_grants(gateway: Gateway) -> None:
    await gateway.world.namespaces.begin()
    for path in ("public/nowhere/permissions", "public/nowhere/permissions/subscription"):
        assert (await gateway.http.get(f"/admin/v2/namespaces/{path}")).status_code == 404
    missing = "/admin/v2/namespaces/public/nowhere/permissions/r"
    assert (await gateway.http.post(missing, json=["produce"])).status_code == 404


async def test_the_grants_of_a_namespace_are_bounded(gateway: Gateway) -> None:
    await gateway.world.namespaces.begin()
    roles = [f"role-{number}" for number in range(GRANTS_MAX)]
    assert (await gateway.http.post(f"{GRANTS}/subscription/s", json=roles)).status_code == 204
    answer = await gateway.http.post(f"{GRANTS}/one-more", json=["produce"])
    assert (answer.status_code, str(GRANTS_MAX) in answer.json()["limit"]) == (400, True)
