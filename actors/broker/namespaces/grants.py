"""Changes of the grants of a namespace, with their bounds (pure)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from heliograph.auth.permissions import ACTIONS, SUBSCRIPTION_MODES, ActionsByRole
from heliograph.base.errors import BadRequestError, NotFoundError
from heliograph.metadata.model import AuthPolicies

V = TypeVar("V")

ROLE_CHARACTERS_MAX = 256
SUBSCRIPTION_CHARACTERS_MAX = 1_024
GRANTS_MAX = 2_000  # of one namespace: roles on it, on its topics and of its subscriptions, together (I15)
GRANTS_CHARACTERS_MAX = 256 * 1024  # of all names in them, so that the record stays small


def with_grant(auth: AuthPolicies, role: str, actions: Sequence[str], topic: str | None = None) -> AuthPolicies:
    """Return the grants with these actions of a role, on one topic or (None) on the namespace.

    Raises:
        BadRequestError: a name is not allowed, or there would be too many grants.
    """
    _check_role(role)
    _check_actions(actions)
    wanted = tuple(action for action in ACTIONS if action in actions)
    if topic is None:
        return checked(replace(auth, namespace_auth={**auth.namespace_auth, role: wanted}))
    on_topic = {**auth.destination_auth.get(topic, {}), role: wanted}
    return checked(replace(auth, destination_auth={**auth.destination_auth, topic: on_topic}))


def without_grant(auth: AuthPolicies, role: str, topic: str | None = None) -> AuthPolicies:
    """Return the grants without a role's grants on one topic or (None) on the namespace."""
    if topic is None:
        return replace(auth, namespace_auth=_without(auth.namespace_auth, role))
    on_topic = _without(auth.destination_auth.get(topic, {}), role)
    others = _without(auth.destination_auth, topic)
    return replace(auth, destination_auth={**others, topic: on_topic} if on_topic else others)


def without_topics(auth: AuthPolicies, topics: Collection[str]) -> AuthPolicies:
    """Return the grants without those on some topics, which were deleted."""
    if not any(topic in auth.destination_auth for topic in topics):
        return auth
    left = {topic: roles for topic, roles in auth.destination_auth.items() if topic not in topics}
    return replace(auth, destination_auth=left)


def on_topic(auth: AuthPolicies, topics: Sequence[str]) -> dict[str, list[str]]:
    """Return the actions of roles on a topic, by its names, from all grants that hold for it."""
    found: dict[str, set[str]] = {}
    sources: list[ActionsByRole] = [auth.namespace_auth, *(auth.destination_auth.get(topic, {}) for topic in topics)]
    for by_role in sources:
        for role, actions in by_role.items():
            found.setdefault(role, set()).update(actions)
    return {role: [action for action in ACTIONS if action in found[role]] for role in sorted(found)}


def with_subscription_roles(auth: AuthPolicies, subscription: str, roles: Sequence[str]) -> AuthPolicies:
    """Return the grants with the only roles that may use a subscription; raises as ``with_grant``."""
    if not isinstance(subscription, str) or not 1 <= len(subscription) <= SUBSCRIPTION_CHARACTERS_MAX:
        raise BadRequestError(
            "a subscription needs a name", field="subscription", limit=f"{SUBSCRIPTION_CHARACTERS_MAX} characters"
        )
    for role in roles:
        _check_role(role)
    named = {**auth.subscription_auth_roles, subscription: tuple(dict.fromkeys(roles))}
    if not roles:
        named = _without(named, subscription)
    return checked(replace(auth, subscription_auth_roles=named))


def without_subscription_role(auth: AuthPolicies, subscription: str, role: str) -> AuthPolicies:
    """Return the grants without a role in the list of a subscription.

    Raises:
        NotFoundError: the subscription has no list.
    """
    if subscription not in auth.subscription_auth_roles:
        raise NotFoundError(f"subscription {subscription} has no list of roles", field="subscription")
    roles = tuple(other for other in auth.subscription_auth_roles[subscription] if other != role)
    named = {**auth.subscription_auth_roles, subscription: roles}
    return replace(auth, subscription_auth_roles=named if roles else _without(named, subscription))


def with_mode(auth: AuthPolicies, mode: str) -> AuthPolicies:
    """Return the grants with the mode of subscriptions; raise BadRequestError for an unknown one."""
    if mode not in SUBSCRIPTION_MODES:
        raise BadRequestError(
            f"{mode!r} is no mode of subscriptions", field="subscription_auth_mode", limit=", ".join(SUBSCRIPTION_MODES)
        )
    return replace(auth, subscription_auth_mode=mode)


def checked(auth: AuthPolicies) -> AuthPolicies:
    """Return the grants; raise BadRequestError if they are more than a namespace can hold."""
    by_role = [auth.namespace_auth, *auth.destination_auth.values()]
    count = sum(map(len, by_role)) + sum(map(len, auth.subscription_auth_roles.values()))
    names = [role for roles in by_role for role in roles]
    names += [role for roles in auth.subscription_auth_roles.values() for role in roles]
    size = sum(map(len, (*names, *auth.destination_auth, *auth.subscription_auth_roles)))
    if count > GRANTS_MAX or size > GRANTS_CHARACTERS_MAX:
        raise BadRequestError(
            f"the namespace would have {count} grants with {size} characters of names: grant to `role*` instead",
            field="role",
            limit=f"{GRANTS_MAX} grants, {GRANTS_CHARACTERS_MAX} characters",
        )
    return auth


def _check_role(role: str) -> None:
    is_role = isinstance(role, str) and 1 <= len(role) <= ROLE_CHARACTERS_MAX and role.isprintable()
    if not is_role:
        raise BadRequestError(
            f"{role!r} is no role", field="role", limit=f"1 to {ROLE_CHARACTERS_MAX} printable characters"
        )


def _check_actions(actions: Sequence[str]) -> None:
    unknown = [action for action in actions if action not in ACTIONS]
    if unknown or not actions:
        raise BadRequestError(
            f"{unknown[0]!r} is no action" if unknown else "a grant needs an action",
            field="actions",
            limit=", ".join(ACTIONS),
        )


def _without(found: Mapping[str, V], name: str) -> dict[str, V]:
    return {key: value for key, value in found.items() if key != name}
