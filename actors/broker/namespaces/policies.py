"""The policies of a topic: its namespace's, with the topic's own overrides (pure).

Policies have the names of the fields of ``Policies``. ``persistence`` there is three policies here: ``COPIES``.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from typing_extensions import override

from heliograph.actors.broker.policy_defaults import (
    DELETE_MODES,
    PARTITIONS_MAX,
    QUOTA_ACTIONS,
    SCHEMA_COMPATIBILITIES,
)
from heliograph.base.errors import BadRequestError
from heliograph.metadata.model import NamespacePolicies, Persistence, Policies, PolicyValue

COPIES = ("ensemble_size", "write_quorum", "ack_quorum")
RETENTION = frozenset(("retention_seconds", "retention_bytes"))

SUBSCRIPTION_TYPES = ("Exclusive", "Shared", "Failover", "Key_Shared")

_CHOICES = {
    "backlog_quota_action": QUOTA_ACTIONS,
    "batching": ("", "by_key", "none"),
    "backlog_quota_seconds_action": ("", *QUOTA_ACTIONS),
    "inactive_delete_mode": DELETE_MODES,
    "schema_compatibility": SCHEMA_COMPATIBILITIES,
}
_LOWEST = {
    "ledger_entries_max": 1,
    "ledger_bytes_max": 1,
    "ledger_age_seconds_max": 1,
    "deduplication_seconds": -1,
    "deduplication_snapshot_seconds": 1,
    "dispatch_period_seconds": 1,
    "subscription_dispatch_period_seconds": 1,
    "subscribe_period_seconds": 1,
}
_HIGHEST = {"auto_create_partitions": PARTITIONS_MAX}
OF_SUBSCRIPTIONS = tuple(field.name for field in fields(Policies) if field.name.startswith("subscription_dispatch_"))
NEAR_MAX = 4  # names that an error about a name lists
_RATES = frozenset(field.name for field in fields(Policies) if field.name.endswith("s_per_second"))  # also fractions
_DEFAULTS = NamespacePolicies()
_OF_TOPICS: dict[str, type] = {field.name: type(field.default) for field in fields(Policies)}
del _OF_TOPICS["persistence"]
_OF_TOPICS |= dict.fromkeys(COPIES, int)
_OF_NAMESPACES: dict[str, type] = {
    **_OF_TOPICS, "auto_create_topics": bool, "auto_create_partitions": int, "max_topics": int,
    "allows_cluster": bool,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class AppliedPolicies(Policies):
    """The policies of a topic, and the rates of single subscriptions.

    Args:
        subscriptions: the policies that each overrides, by the subscription's name.
    """

    subscriptions: Mapping[str, Mapping[str, PolicyValue]] = field(default_factory=dict)

    @override
    def of_subscription(self, name: str) -> Policies:
        own: dict[str, Any] = {
            policy: value for policy, value in self.subscriptions.get(name, {}).items() if policy in OF_SUBSCRIPTIONS
        }
        return replace(self, **own) if own else self


def effective(
    namespace: NamespacePolicies,
    overrides: Mapping[str, PolicyValue],
    created_with: Persistence | None = None,
    subscriptions: Mapping[str, Mapping[str, PolicyValue]] | None = None,
) -> Policies:
    """Return the policies of a topic. Overrides that this version does not know, of a newer version, are ignored.

    Args:
        created_with: the copies asked for when the topic was created; they override the namespace's.
        subscriptions: what single subscriptions override.
    """
    known: dict[str, Any] = {name: value for name, value in overrides.items() if name in _OF_TOPICS}
    copies = [known.pop(name, None) for name in COPIES]
    values: dict[str, Any] = {field.name: getattr(namespace, field.name) for field in fields(Policies)}
    if None not in copies:
        values["persistence"] = Persistence(*copies)
    elif created_with is not None:
        values["persistence"] = created_with
    return AppliedPolicies(**(values | known), subscriptions=subscriptions or {})


def check_policies(values: Mapping[str, PolicyValue], *, of_namespace: bool = False) -> None:
    """Raise BadRequestError, naming field and limit, unless the values are valid policies."""
    kinds = _OF_NAMESPACES if of_namespace else _OF_TOPICS
    for name, value in values.items():
        if name not in kinds:
            raise _unknown(name, kinds)
        _check_policy(name, value, kinds[name])
    given = [name for name in COPIES if name in values]
    if given and len(given) < len(COPIES):
        raise BadRequestError(f"{', '.join(COPIES)} are set together", field=given[0])
    if given:
        Persistence(*(int(values[name]) for name in COPIES))


def _unknown(name: str, kinds: Collection[str]) -> BadRequestError:
    near = difflib.get_close_matches(name, kinds) or [each for each in kinds if name in each][:NEAR_MAX]
    nearest = ", ".join(sorted(near))
    meant = f": did you mean {nearest}?" if near else ""
    return BadRequestError(f"there is no policy {name}{meant}", field=name, limit=nearest or ", ".join(sorted(kinds)))


def _check_policy(name: str, value: PolicyValue, kind: type) -> None:
    if name in _RATES and isinstance(value, float):
        if not math.isfinite(value) or value < 0:
            raise BadRequestError(f"{name} is {value!r}", field=name, limit="0 or more")
    elif type(value) is not kind:
        raise BadRequestError(f"{name} is {value!r}", field=name, limit=f"a value of type {kind.__name__}")
    if isinstance(value, str) and value not in _CHOICES.get(name, (value,)):
        raise BadRequestError(f"{name} is {value!r}", field=name, limit=", ".join(_CHOICES[name]))
    if name == "subscription_types":
        _check_types(str(value))
    if kind is int and isinstance(value, int):
        _check_number(name, value)


def with_policies(namespace: NamespacePolicies, values: Mapping[str, PolicyValue]) -> NamespacePolicies:
    """Return a namespace's record with some policies set. The values have passed ``check_policies``."""
    changes: dict[str, Any] = dict(values)
    copies = [changes.pop(name, None) for name in COPIES]
    if None not in copies:
        changes["persistence"] = Persistence(*copies)
    return replace(namespace, **changes, own=tuple(sorted({*own_policies(namespace), *values})))


def without_policies(namespace: NamespacePolicies, names: Iterable[str]) -> NamespacePolicies:
    """Return a namespace's record with some policies reset to their defaults. The numbers of copies go together."""
    removed = set(names)
    if removed & set(COPIES):
        removed |= set(COPIES)
    changed = {"persistence" if name in COPIES else name for name in removed}
    own = tuple(name for name in own_policies(namespace) if name not in removed)
    return replace(namespace, **{name: getattr(_DEFAULTS, name) for name in changed}, own=own)


def own_policies(namespace: NamespacePolicies) -> list[str]:
    """Return the names of the policies that were set for a namespace itself, sorted."""
    if namespace.own is not None:
        return sorted(namespace.own)
    defaults = flat(_DEFAULTS)
    return sorted(name for name, value in flat(namespace).items() if value != defaults[name])


def with_defaults(namespace: NamespacePolicies, defaults: Mapping[str, Any]) -> NamespacePolicies:
    """Return a namespace's record with the cluster's values of the policies that the namespace does not set.

    Args:
        defaults: by the names of the fields of ``NamespacePolicies``. The two of retention go together.
    """
    own = own_policies(namespace)
    if namespace.own is None and namespace.persistence == defaults.get("persistence"):
        own = [name for name in own if name not in COPIES]  # of an older release, which wrote the cluster's into it
    kept = {*own, "persistence"} if namespace.has_own_copies else {*own}
    if kept & RETENTION:
        kept |= RETENTION
    return replace(namespace, own=tuple(own), **{name: value for name, value in defaults.items() if name not in kept})


def check_of_subscription(names: Iterable[str]) -> None:
    """Raise BadRequestError unless a single subscription can override all these policies."""
    for name in names:
        if name not in OF_SUBSCRIPTIONS:
            raise BadRequestError(
                f"{name} is no policy of a single subscription", field=name, limit=", ".join(OF_SUBSCRIPTIONS)
            )


def known_policies(names: Iterable[str], *, of_namespace: bool = False) -> list[str]:
    """Return the names as a list.

    Raises:
        BadRequestError: there is no policy of a name.
    """
    kinds = _OF_NAMESPACES if of_namespace else _OF_TOPICS
    found = list(names)
    for name in found:
        if name not in kinds:
            near = difflib.get_close_matches(name, kinds) or [each for each in kinds if name in each][:NEAR_MAX]
            nearest = ", ".join(sorted(near))
            meant = f": did you mean {nearest}?" if near else ""
            limit = nearest or ", ".join(sorted(kinds))
            raise BadRequestError(f"there is no policy {name}{meant}", field=name, limit=limit)
    return found


def flat(policies: Policies) -> dict[str, PolicyValue]:
    """Return policies by name, in the form that ``check_policies`` takes."""
    kinds = _OF_NAMESPACES if isinstance(policies, NamespacePolicies) else _OF_TOPICS
    copies = policies.persistence
    values: dict[str, PolicyValue] = {name: getattr(policies, name) for name in kinds if name not in COPIES}
    return {**values, **{name: getattr(copies, name) for name in COPIES}}


def _check_types(names: str) -> None:
    unknown = [name for name in names.split(",") if names and name not in SUBSCRIPTION_TYPES]
    if unknown:
        raise BadRequestError(
            f"{unknown[0]!r} is no subscription type", field="subscription_types", limit=", ".join(SUBSCRIPTION_TYPES)
        )


def _check_number(name: str, value: int) -> None:
    if name in COPIES:
        return  # checked together
    lowest = _LOWEST.get(name, min(0, int(getattr(_DEFAULTS, name))))
    highest = _HIGHEST.get(name)
    if value < lowest or (highest is not None and value > highest):
        limit = f"{lowest} or more" if highest is None else f"{lowest} to {highest}"
        raise BadRequestError(f"{name} is {value}", field=name, limit=limit)
