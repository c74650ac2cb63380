"""``helio permissions``: what roles may do in namespaces, with topics and by subscriptions."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from heliograph.cli.context import CommandContext, command, group

app = group("Grants to roles on namespaces, topics and subscriptions.")

Place = Annotated[
    str, typer.Argument(help="tenant/namespace, or a topic as tenant/namespace/topic or with its domain.")
]
Role = Annotated[str, typer.Argument(help="Role; `team-*` and `*-team` match roles by their beginning or end.")]
NamespaceName = Annotated[str, typer.Argument(help="tenant/namespace", metavar="TENANT/NAMESPACE")]


@command(app, "list")
def list_(context: CommandContext, place: Place) -> None:
    """Show the grants on a namespace or a topic."""
    found = (
        context.admin.permissions.of_topic(place) if _is_topic(place) else context.admin.permissions.of_namespace(place)
    )
    rows = [(role, ", ".join(actions)) for role, actions in sorted(found.items())]
    context.show({"place": place, "permissions": found}, ("role", "actions"), rows, place)


@command(app)
def grant(
    context: CommandContext,
    place: Place,
    role: Role,
    actions: Annotated[list[str], typer.Argument(help="produce, consume, functions, sources, sinks or packages.")],
) -> None:
    """Grant a role actions, instead of those it had there."""
    give = context.admin.permissions.grant_topic if _is_topic(place) else context.admin.permissions.grant
    is_enforced = give(place, role, actions)
    result = {"place": place, "role": role, "actions": actions}
    _report(context, result, f"{role} may {', '.join(actions)} in {place}", is_enforced)


@command(app)
def revoke(context: CommandContext, place: Place, role: Role) -> None:
    """Take a role's grants there away. Its open producers and consumers are closed within moments."""
    if _is_topic(place):
        was_granted = context.admin.permissions.revoke_topic(place, role)
    else:
        context.admin.permissions.revoke(place, role)
        was_granted = True
    words = f"{role} has no grant on {place} any more" if was_granted else f"{role} had no grant on {place} itself"
    context.report({"place": place, "role": role, "revoked": was_granted}, words)


@command(app)
def subscriptions(context: CommandContext, name: NamespaceName) -> None:
    """Show which subscriptions only some roles may use."""
    found = context.admin.permissions.granted(name)
    mode, named = found["subscription_auth_mode"], found["subscription_auth_roles"]
    rows = [(each, ", ".join(roles)) for each, roles in sorted(named.items())]
    result = {"namespace": name, "mode": mode, "subscriptions": named}
    context.show(result, ("subscription", "roles"), rows, f"{name}, mode {mode}")


@command(app)
def subscription(
    context: CommandContext,
    name: NamespaceName,
    subscription_name: Annotated[str, typer.Argument(help="Name of the subscription.", metavar="SUBSCRIPTION")],
    roles: Annotated[list[str] | None, typer.Argument(help="Roles that may use it. [default: all]")] = None,
) -> None:
    """Set the only roles that may use a subscription. They still need a grant to consume."""
    is_enforced = context.admin.permissions.grant_subscription(name, subscription_name, roles or [])
    words = (
        f"only {', '.join(roles)} may use {subscription_name}"
        if roles
        else f"every role that may consume may use {subscription_name}"
    )
    result = {"namespace": name, "subscription": subscription_name, "roles": roles or []}
    _report(context, result, words, is_enforced)


@command(app)
def mode(
    context: CommandContext,
    name: NamespaceName,
    wanted: Annotated[str, typer.Argument(help="None, or Prefix: names of subscriptions begin with the role.")],
) -> None:
    """Set how the names of subscriptions depend on roles."""
    is_enforced = context.admin.permissions.set_subscription_mode(name, wanted)
    _report(context, {"namespace": name, "mode": wanted}, f"{name} has the mode {wanted}", is_enforced)


def _report(context: CommandContext, result: dict[str, Any], line: str, is_enforced: bool | None) -> None:
    """Report the stored grant, and warn if authentication is off, so that it has no effect."""
    context.report({**result, "enforced": is_enforced is not False}, line)
    if is_enforced is False:
        context.output.warn("authentication is off, so every caller may do everything: set auth.enabled")


def _is_topic(place: str) -> bool:
    return "://" in place or place.count("/") != 1
