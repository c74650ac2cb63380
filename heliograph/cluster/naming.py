"""Names of actors, their kinds and their order. Pure."""

from __future__ import annotations

START_ORDER = ("metadata", "bookie", "broker", "auditor", "replicator", "gateway", "operator")
# Kinds that start together, because most of a start is loading Python; each group needs the ones before it.
START_GROUPS = (("metadata",), ("bookie", "broker", "auditor", "replicator"), ("gateway", "operator"))
CARDS = b"heliograph"  # space of Ray's key-value store with the card of each cluster, by its namespace


def kind_of(actor_name: str) -> str:
    """Return the kind of an actor: ``bookie`` for ``bookie-3``, ``gateway`` for ``gateway``."""
    return actor_name.partition("-")[0]


def sort_key(actor_name: str) -> tuple[int, int, str]:
    """Return the key that sorts actor names by start order, then by number."""
    kind, _, number = actor_name.partition("-")
    place = START_ORDER.index(kind) if kind in START_ORDER else len(START_ORDER)
    return place, int(number) if number.isdigit() else 0, actor_name


def stranger_note(name: str, namespace: str) -> str:
    return (
        f"an actor of another program has the name {name!r} in Ray namespace {namespace!r}: it is no part and is left "
        "alone; give it another name, or another namespace in ray.init"
    )
