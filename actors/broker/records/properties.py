"""Names and properties that users give to topics, subscriptions, consumers and namespaces (pure)."""

from __future__ import annotations

from collections.abc import Mapping

from heliograph.base.errors import BadRequestError
from heliograph.protocol.topic_name import LOCAL_NAME_BYTES_MAX

NAME_BYTES_MAX = LOCAL_NAME_BYTES_MAX  # of a new tenant, namespace or topic, each of its partitions included
SUBSCRIPTION_BYTES_MAX = 512  # of the name of a new subscription
PROPERTIES_BYTES_MAX = 64 << 10  # of one thing, names and values in UTF-8


def check_new_name(name: str, field: str, bytes_max: int = NAME_BYTES_MAX) -> None:
    """Raise BadRequestError if a name is too long to be stored. It becomes part of a path of the metadata store, where
    each byte that is no letter or digit of ASCII takes three, and all names of a kind are read at once. Longer names,
    which older versions took, can be used and deleted."""
    size = len(name.encode())
    if size > bytes_max:
        raise BadRequestError(f"the name has {size} bytes", field=field, limit=f"{bytes_max} bytes")


def changed_properties(
    present: Mapping[str, str], changes: Mapping[str, str | None], reserved: str = ""
) -> dict[str, str]:
    """Return the properties of a thing after a change, in which None removes one.

    Args:
        reserved: how names begin that are the broker's own; empty: no name is.

    Raises:
        BadRequestError: they are no text, reserved, or too large together.
    """
    if not isinstance(changes, Mapping):
        raise BadRequestError("properties are names and values", field="properties")
    kept = {name: value for name, value in {**present, **changes}.items() if value is not None}
    size = 0
    for name, value in kept.items():
        if not name or not isinstance(name, str) or not isinstance(value, str):
            raise BadRequestError(f"{name!r} is no property: names and values are text", field="properties")
        if reserved and name.startswith(reserved):
            raise BadRequestError(
                f"{name!r} is no property: names that begin with {reserved} are the broker's", field="properties"
            )
        try:
            size += len(name.encode()) + len(value.encode())
        except UnicodeEncodeError:
            raise BadRequestError(f"{name!r} is no property: it is not Unicode", field="properties") from None
    if size > PROPERTIES_BYTES_MAX:
        raise BadRequestError(
            f"the properties have {size} bytes", field="properties", limit=f"{PROPERTIES_BYTES_MAX} bytes"
        )
    return kept
