"""The policies of a topic: those of its namespace, with the topic's own overrides (pure).

Policies have the names of the fields of ``Policies``. ``persistence`` there is three policies here: ``COPIES``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from typing import Any

from heliograph.base.errors import BadRequestError
from heliograph.metadata.model import NamespacePolicies, Persistence, Policies, PolicyValue

COPIES = ("ensemble_size", "write_quorum", "ack_quorum")

_CHOICES = {
    "backlog_quota_action": ("producer_request_hold", "producer_exception", "consumer_backlog_eviction"),
    "inactive_delete_mode": ("delete_when_no_subscriptions", "delete_when_subscriptions_caught_up"),
    "schema_compatibility": (
        "ALWAYS_COMPATIBLE", "ALWAYS_INCOMPATIBLE", "BACKWARD", "BACKWARD_TRANSITIVE", "FORWARD",
        "FORWARD_TRANSITIVE", "FULL", "FULL_TRANSITIVE",
    ),
}  # fmt: skip
_LOWEST = {
    "ledger_entries_max": 1,
    "ledger_bytes_max": 1,
    "ledger_age_seconds_max": 1,
    "deduplication_snapshot_seconds": 1,
}
_HIGHEST = {"auto_create_partitions": 10_000}
_DEFAULTS = NamespacePolicies()
_OF_TOPICS: dict[str, type] = {field.name: type(field.default) for field in fields(Policies)}
del _OF_TOPICS["persistence"]
_OF_TOPICS |= dict.fromkeys(COPIES, int)
_OF_NAMESPACES: dict[str, type] = {**_OF_TOPICS, "auto_create_topics": bool, "auto_create_partitions": int}


def effective(
    namespace: NamespacePolicies, overrides: Mapping[str, PolicyValue], created_with: Persistence | None = None
) -> Policies:
    """Return the policies of a topic. Overrides that this version does not know, of a newer version, are ignored.

    Args:
        created_with: the copies asked for when the topic was created; they go before those of the namespace.
    """
    known: dict[str, Any] = {name: value for name, value in overrides.items() if name in _OF_TOPICS}
    copies = [known.pop(name, None) for name in COPIES]
    values: dict[str, Any] = {field.name: getattr(namespace, field.name) for field in fields(Policies)}
    if None not in copies:
        values["persistence"] = Persistence(*copies)
    elif created_with is not None:
        values["persistence"] = created_with
    return Policies(**(values | known))


def check_policies(values: Mapping[str, PolicyValue], *, of_namespace: bool = False) -> None:
    """Raise BadRequestError, naming field and limit, unless the values are valid policies."""
    kinds = _OF_NAMESPACES if of_namespace else _OF_TOPICS
    for name, value in values.items():
        kind = kinds.get(name)
        if kind is None:
            raise BadRequestError(f"there is no policy {name}", field=name, limit=", ".join(sorted(kinds)))
        if type(value) is not kind:
            raise BadRequestError(f"{name} is {value!r}", field=name, limit=f"a value of type {kind.__name__}")
        if isinstance(value, str) and value not in _CHOICES.get(name, (value,)):
            raise BadRequestError(f"{name} is {value!r}", field=name, limit=", ".join(_CHOICES[name]))
        if kind is int and isinstance(value, int):
            _check_number(name, value)
    given = [name for name in COPIES if name in values]
    if given and len(given) < len(COPIES):
        raise BadRequestError(f"{', '.join(COPIES)} are set together", field=given[0])
    if given:
        Persistence(*(int(values[name]) for name in COPIES))


def with_policies(namespace: NamespacePolicies, values: Mapping[str, PolicyValue]) -> NamespacePolicies:
    """Return a namespace's record with some policies set. The values have passed ``check_policies``."""
    changes: dict[str, Any] = dict(values)
    copies = [changes.pop(name, None) for name in COPIES]
    if None not in copies:
        changes["persistence"] = Persistence(*copies)
    return replace(namespace, **changes)


def without_policies(namespace: NamespacePolicies, names: Iterable[str]) -> NamespacePolicies:
    """Return a namespace's record with some policies reset to their defaults."""
    changed = {"persistence" if name in COPIES else name for name in names}
    return replace(namespace, **{name: getattr(_DEFAULTS, name) for name in changed})


def known_policies(names: Iterable[str], *, of_namespace: bool = False) -> list[str]:
    """Return the names as a list.

    Raises:
        BadRequestError: a name is not that of a policy.
    """
    kinds = _OF_NAMESPACES if of_namespace else _OF_TOPICS
    found = list(names)
    for name in found:
        if name not in kinds:
            raise BadRequestError(f"there is no policy {name}", field=name, limit=", ".join(sorted(kinds)))
    return found


def flat(policies: Policies) -> dict[str, PolicyValue]:
    """Return policies by name, in the form that ``check_policies`` takes."""
    kinds = _OF_NAMESPACES if isinstance(policies, NamespacePolicies) else _OF_TOPICS
    copies = policies.persistence
    values: dict[str, PolicyValue] = {name: getattr(policies, name) for name in kinds if name not in COPIES}
    return {**values, **{name: getattr(copies, name) for name in COPIES}}


def _check_number(name: str, value: int) -> None:
    if name in COPIES:
        return  # checked together
    lowest = _LOWEST.get(name, min(0, int(getattr(_DEFAULTS, name))))
    highest = _HIGHEST.get(name)
    if value < lowest or (highest is not None and value > highest):
        limit = f"{lowest} or more" if highest is None else f"{lowest} to {highest}"
        raise BadRequestError(f"{name} is {value}", field=name, limit=limit)
