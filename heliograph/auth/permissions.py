"""The rules of authorisation: Pulsar's, the same at every door (pure).

A superuser may do everything, and a role that administers a tenant everything in it that needs no superuser. Any other
role needs a grant: an action on a namespace, which holds for all topics in it, or on a topic, which holds for its
partitions too. A grant to ``ingest-*`` or ``*-ingest`` holds for all roles that begin or end so.

The roles of a subscription and the mode ``Prefix`` take rights away from roles that have them by a grant; they do not
bind superusers and administrators of the tenant.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from heliograph.operations.table import Right

PRODUCE = "produce"
CONSUME = "consume"
ACTIONS = (PRODUCE, CONSUME, "functions", "sources", "sinks", "packages")  # the last four are kept for Pulsar's clients
ANY_MODE = "None"  # of subscriptions: names are free
PREFIX_MODE = "Prefix"
SUBSCRIPTION_MODES = (ANY_MODE, PREFIX_MODE)

_ACTIONS_OF = {Right.PRODUCE: (PRODUCE,), Right.CONSUME: (CONSUME,), Right.PRODUCE_OR_CONSUME: (PRODUCE, CONSUME)}

ActionsByRole = Mapping[str, Collection[str]]


class Grants(Protocol):
    """The grants of one namespace; ``metadata/model.py`` explains the fields."""

    @property
    def namespace_auth(self) -> ActionsByRole:
        """Actions on all topics, by role."""

    @property
    def destination_auth(self) -> Mapping[str, ActionsByRole]:
        """Actions on single topics, by full name and role."""

    @property
    def subscription_auth_roles(self) -> Mapping[str, Collection[str]]:
        """The only roles that may use a subscription, by its name."""

    @property
    def subscription_auth_mode(self) -> str:
        """How names of subscriptions depend on roles."""


@dataclass(frozen=True, slots=True)
class Rules:
    """The roles and grants that decide over one target: a topic, a namespace, a tenant or the cluster.

    Attributes:
        superuser_roles: of the cluster.
        admin_roles: of the tenant; empty if the target is in no tenant.
        grants: of the namespace; None if the target is in no namespace.
        topics: the full names by which the target may be granted: a topic's own, and that of its partitioned topic.
            Empty for a namespace.
    """

    superuser_roles: Collection[str] = ()
    admin_roles: Collection[str] = ()
    grants: Grants | None = None
    topics: Collection[str] = field(default=())

    def permit(self, role: str, right: Right, subscription: str | None = None) -> bool:
        """Return whether one role has a right, on a subscription if one is named."""
        if not role:
            return False
        if role in self.superuser_roles:
            return True
        if right is Right.SUPERUSER:
            return False
        if role in self.admin_roles:
            return True
        if right is Right.TENANT_ADMIN or self.grants is None:
            return False
        if subscription is not None and not _may_use(role, subscription, self.grants):
            return False
        wanted = _ACTIONS_OF[right]
        return any(action in found for found in self._actions(role, self.grants) for action in wanted)

    def _actions(self, role: str, grants: Grants) -> Iterator[Collection[str]]:
        yield from _granted(role, grants.namespace_auth)
        for topic in self.topics:
            yield from _granted(role, grants.destination_auth.get(topic, {}))


def _granted(role: str, by_role: ActionsByRole) -> Iterator[Collection[str]]:
    if role in by_role:
        yield by_role[role]
    for pattern, actions in by_role.items():
        if (pattern.endswith("*") and role.startswith(pattern[:-1])) or (
            pattern.startswith("*") and role.endswith(pattern[1:])
        ):
            yield actions


def _may_use(role: str, subscription: str, grants: Grants) -> bool:
    roles = grants.subscription_auth_roles.get(subscription)
    if roles and role not in roles:
        return False
    return grants.subscription_auth_mode != PREFIX_MODE or subscription.startswith(role)
