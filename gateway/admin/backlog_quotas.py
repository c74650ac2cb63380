"""Backlog quotas in Pulsar's shape: a topic has one by size and one by age, each with its own action. No I/O."""

from __future__ import annotations

from typing import Any

from heliograph.gateway.admin.policy_shapes import Values, object_of
from heliograph.gateway.errors import UnacceptableFieldError
from heliograph.gateway.shapes.json_forms import number_of

SIZE, AGE = "destination_storage", "message_age"
QUOTA_FIELDS = {SIZE: "backlog_quota_bytes", AGE: "backlog_quota_seconds"}
_ACTION_FIELDS = {SIZE: "backlog_quota_action", AGE: "backlog_quota_seconds_action"}
_ACTIONS = ("producer_request_hold", "producer_exception", "consumer_backlog_eviction")


def quotas_shown(values: Values) -> dict[str, Any]:
    """Return Pulsar's map of quotas by type; a type without a quota is left out."""
    size, seconds, action = (values[f"backlog_quota_{name}"] for name in ("bytes", "seconds", "action"))
    found = {}
    if size >= 0:
        found[SIZE] = {"limit": size, "limitSize": size, "limitTime": -1, "policy": action}
    if seconds >= 0:
        of_age = values["backlog_quota_seconds_action"] or action
        found[AGE] = {"limit": -1, "limitSize": -1, "limitTime": seconds, "policy": of_age}
    return found


def quota_parsed(body: Any, kind: str) -> dict[str, Any]:
    """Return the values of the fields that a quota of one type sets.

    Raises:
        UnacceptableFieldError, PreconditionError: a field has another form, or is too low.
    """
    given = object_of(body, "backlogQuota")
    action = given.get("policy") or _ACTIONS[0]
    if action not in _ACTIONS:
        raise UnacceptableFieldError(f"policy is {action!r}", field="policy", limit=", ".join(_ACTIONS))
    name = "limitSize" if kind == SIZE else "limitTime"
    limit = given.get(name)
    if kind == SIZE and (limit is None or (limit == 0 and given.get("limit"))):  # `limit` is its name in older clients
        limit = given.get("limit")
    return {QUOTA_FIELDS[kind]: number_of(limit, name, -1), _ACTION_FIELDS[kind]: action}


def quota_conflict(values: Values) -> str | None:
    """Return why a quota contradicts retention, below which it has to be, or None."""
    size, quota = values["retention_bytes"], values["backlog_quota_bytes"]
    if size > 0 and quota >= 0 and quota >= size:
        return f"a backlog quota of {quota} bytes is not below the {size} bytes that retention keeps"
    seconds, age = values["retention_seconds"], values["backlog_quota_seconds"]
    if seconds > 0 and age >= 0 and age >= seconds:
        return f"a backlog quota of {age} s is not below the {seconds} s that retention keeps"
    return None
