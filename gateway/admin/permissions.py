"""Pulsar's administrative REST interface for what roles may do: grants on namespaces, topics and subscriptions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from heliograph.auth.permissions import ANY_MODE, SUBSCRIPTION_MODES
from heliograph.gateway.admin.policy_shapes import object_of
from heliograph.gateway.admin.routes import NAMESPACE, NO_CONTENT, NamespaceInUrl
from heliograph.gateway.errors import PreconditionError, UnacceptableFieldError
from heliograph.gateway.ports import AdminPort
from heliograph.gateway.services import ServicesDep
from heliograph.gateway.shapes.bodies import ErrorBody, json_body
from heliograph.gateway.shapes.topics import ADMIN_TOPIC, TopicInUrl
from heliograph.gateway.shapes.url_segments import decoded

NOTE = "X-Heliograph-Note"  # header that says more than the status does

router = APIRouter(
    tags=["permissions"],
    responses={
        404: {"model": ErrorBody, "description": "No such namespace, or a subscription without a list of roles"},
        412: {"model": ErrorBody, "description": "Nothing was granted to the role on the topic itself"},
    },
)
_list = {"type": "array", "items": {"type": "string"}}
_list_body = {"requestBody": {"required": True, "content": {"application/json": {"schema": _list}}}}
_text_body = {"requestBody": {"required": True, "content": {"application/json": {"schema": {"type": "string"}}}}}


@router.get(f"{NAMESPACE}/permissions", summary="Grants on a namespace")
async def of_namespace(services: ServicesDep, name: NamespaceInUrl) -> dict[str, list[str]]:
    """Return the actions of each role that was granted some on all topics of the namespace."""
    return dict(await services.admin.permissions.of_namespace(name))


@router.get(f"{NAMESPACE}/permissions/subscription", summary="Roles of subscriptions")
async def of_subscriptions(services: ServicesDep, name: NamespaceInUrl) -> dict[str, list[str]]:
    """Return the only roles that may use a subscription, for each subscription that has such a list."""
    return dict(await services.admin.permissions.of_subscriptions(name))


@router.post(
    f"{NAMESPACE}/permissions/subscription/{{subscription}}",
    **NO_CONTENT,
    summary="Set the roles of a subscription",
    openapi_extra=_list_body,
)
async def grant_subscription(
    request: Request, response: Response, services: ServicesDep, name: NamespaceInUrl, subscription: str
) -> None:
    """Let only some roles use a subscription; the body is a list of roles."""
    roles = _texts(await json_body(request), "roles")
    _note(response, await services.admin.permissions.grant_subscription(name, decoded(subscription), roles))


@router.delete(
    f"{NAMESPACE}/permissions/subscription/{{subscription}}/{{role}}",
    **NO_CONTENT,
    summary="Remove a role of a subscription",
)
@router.delete(f"{NAMESPACE}/permissions/{{subscription}}/{{role}}", **NO_CONTENT, include_in_schema=False)
async def revoke_subscription(services: ServicesDep, name: NamespaceInUrl, subscription: str, role: str) -> None:
    """Take a role from the list of a subscription."""
    await services.admin.permissions.revoke_subscription(name, decoded(subscription), decoded(role))


@router.post(
    f"{NAMESPACE}/permissions/{{role}}", **NO_CONTENT, summary="Grant on a namespace", openapi_extra=_list_body
)
async def grant(request: Request, response: Response, services: ServicesDep, name: NamespaceInUrl, role: str) -> None:
    """Give a role actions on all topics of a namespace; the body is a list such as `["produce", "consume"]`."""
    actions = _texts(await json_body(request), "actions")
    _note(response, await services.admin.permissions.grant(name, decoded(role), actions))


@router.delete(f"{NAMESPACE}/permissions/{{role}}", **NO_CONTENT, summary="Revoke on a namespace")
async def revoke(services: ServicesDep, name: NamespaceInUrl, role: str) -> None:
    """Take a role's grants on the namespace away. Its open producers and consumers are closed within moments."""
    await services.admin.permissions.revoke(name, decoded(role))


@router.get(f"{NAMESPACE}/subscriptionAuthMode", summary="How subscriptions depend on roles")
async def subscription_mode(services: ServicesDep, name: NamespaceInUrl) -> str:
    """Return `"None"`, or `"Prefix"` where the name of a subscription has to begin with the role."""
    return str(await services.admin.permissions.subscription_mode(name))


@router.post(
    f"{NAMESPACE}/subscriptionAuthMode",
    **NO_CONTENT,
    summary="Set how subscriptions depend on roles",
    openapi_extra=_text_body,
)
async def set_subscription_mode(
    request: Request, response: Response, services: ServicesDep, name: NamespaceInUrl
) -> None:
    """Set the mode; the body is `"None"` or `"Prefix"`."""
    mode = await json_body(request)
    if mode is not None and not isinstance(mode, str):
        raise UnacceptableFieldError("the mode must be a text", field="subscription_auth_mode")
    _note(response, await services.admin.permissions.set_subscription_mode(name, mode or "None"))


@router.get(f"{ADMIN_TOPIC}/permissions", summary="Grants on a topic")
async def of_topic(services: ServicesDep, topic: TopicInUrl) -> dict[str, list[str]]:
    """Return the actions of each role on a topic, by grants on it and on its namespace."""
    return dict(await services.admin.permissions.of_topic(str(topic)))


@router.post(f"{ADMIN_TOPIC}/permissions/{{role}}", **NO_CONTENT, summary="Grant on a topic", openapi_extra=_list_body)
async def grant_topic(
    request: Request, response: Response, services: ServicesDep, topic: TopicInUrl, role: str
) -> None:
    """Give a role actions on a topic with its partitions; the body is that of a grant on a namespace."""
    actions = _texts(await json_body(request), "actions")
    _note(response, await services.admin.permissions.grant_topic(str(topic), decoded(role), actions))


@router.delete(f"{ADMIN_TOPIC}/permissions/{{role}}", **NO_CONTENT, summary="Revoke on a topic")
async def revoke_topic(services: ServicesDep, topic: TopicInUrl, role: str) -> None:
    """Take from a role what it was granted on the topic: 412 when that is nothing. A grant on the namespace stays."""
    name = decoded(role)
    if not await services.admin.permissions.revoke_topic(str(topic), name):
        raise PreconditionError("Permissions are not set at the topic level", field="role")


@dataclass(frozen=True)
class GivenGrants:
    """The grants in Pulsar's ``Policies`` object of a new namespace."""

    on_namespace: Mapping[str, list[str]]
    on_topics: Mapping[str, Mapping[str, list[str]]]
    of_subscriptions: Mapping[str, list[str]]
    mode: str

    async def apply(self, admin: AdminPort, namespace: str) -> None:
        """Make the grants, one by one."""
        for role, actions in self.on_namespace.items():
            await admin.permissions.grant(namespace, role, actions)
        for topic, by_role in self.on_topics.items():
            for role, actions in by_role.items():
                await admin.permissions.grant_topic(topic, role, actions)
        for subscription, roles in self.of_subscriptions.items():
            await admin.permissions.grant_subscription(namespace, subscription, roles)
        if self.mode != ANY_MODE:
            await admin.permissions.set_subscription_mode(namespace, self.mode)


def grants_parsed(body: Mapping[str, Any]) -> GivenGrants:
    """Return the grants that Pulsar's ``Policies`` object gives a new namespace.

    Raises:
        UnacceptableFieldError: a field has another form.
    """
    given = object_of(body.get("auth_policies") or {}, "auth_policies")
    by_topic = object_of(given.get("destination_auth") or {}, "destination_auth")
    mode = body.get("subscription_auth_mode") or ANY_MODE
    if mode not in SUBSCRIPTION_MODES:
        raise UnacceptableFieldError(
            f"{mode!r} is no mode of subscriptions",
            field="subscription_auth_mode",
            limit=", ".join(SUBSCRIPTION_MODES),
        )
    return GivenGrants(
        _lists(given.get("namespace_auth"), "namespace_auth"),
        {topic: _lists(by_role, "destination_auth") for topic, by_role in by_topic.items()},
        _lists(given.get("subscription_auth_roles"), "subscription_auth_roles"),
        mode,
    )


def _note(response: Response, is_enforced: bool | None) -> None:
    """Say in a header that what was stored decides nothing while authentication is off."""
    if is_enforced is False:
        response.headers[NOTE] = "authentication is off, so every caller may do everything"


def _lists(body: Any, name: str) -> dict[str, list[str]]:
    return {key: _texts(items, name) for key, items in object_of(body or {}, name).items()}


def _texts(body: Any, name: str) -> list[str]:
    if not isinstance(body, list) or not all(isinstance(item, str) for item in body):
        raise UnacceptableFieldError(f"the {name} must be a list of texts", field=name)
    return body
