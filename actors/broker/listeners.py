"""Advertised listeners: further names and addresses of a broker, for clients that cannot reach its own address (pure).

They are written ``name=address``, joined by commas; a name may have one address of each scheme. A colon may stand for
the first equals sign, as in Pulsar. An address may contain ``{broker_id}``, ``{host}``, ``{port}`` and ``{tls_port}``,
so that one setting serves all brokers of a cluster.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from heliograph.base.errors import InvalidConfigError, UnsupportedError

LISTENERS_MAX = 20  # of one broker

_ENTRY = re.compile(r"([-.\w]+)[=:](pulsar(?:\+ssl)?)://([-.\w]+|\[[0-9a-fA-F:]+\]):([0-9]{1,5})")
_FORM = "name=pulsar://host:port or name=pulsar+ssl://host:port, joined by commas"


@dataclass(frozen=True, slots=True)
class AdvertisedListener:
    """The addresses of one name; either may be empty."""

    url: str = ""
    url_tls: str = ""


def filled_in(text: str, *, broker_id: str, host: str, port: int | None, tls_port: int | None) -> str:
    """Return the setting with the values of one broker in place of the names in braces."""
    assert port is not None or tls_port is not None, "a broker has a port"
    values = {
        "broker_id": broker_id,
        "host": host,
        "port": tls_port if port is None else port,
        "tls_port": port if tls_port is None else tls_port,
    }
    for name, value in values.items():
        text = text.replace(f"{{{name}}}", str(value))
    return text


def parse_listeners(text: str) -> dict[str, AdvertisedListener]:
    """Return the listeners by name.

    Raises:
        InvalidConfigError: the text has another form, repeats a name, or has more than LISTENERS_MAX names.
    """
    found: dict[str, AdvertisedListener] = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        match = _ENTRY.fullmatch(entry)
        if match is None or not 0 < int(match[4]) <= 65_535:
            raise InvalidConfigError(f"{entry!r} is no listener", field="advertised_listeners", limit=_FORM)
        name, is_tls, address = match[1], match[2] == "pulsar+ssl", f"{match[2]}://{match[3]}:{match[4]}"
        listener = found.get(name, AdvertisedListener())
        if listener.url_tls if is_tls else listener.url:
            raise InvalidConfigError(f"{name} has two addresses of one scheme", field="advertised_listeners")
        found[name] = replace(listener, url_tls=address) if is_tls else replace(listener, url=address)
    if len(found) > LISTENERS_MAX:
        raise InvalidConfigError(
            f"there are {len(found)} listeners", field="advertised_listeners", limit=f"{LISTENERS_MAX} listeners"
        )
    return found


def check_listeners(text: str, internal: str, *, tls_only: bool = False) -> None:
    """Raise InvalidConfigError unless the text can be used and the internal listener, if one is named, is among it.

    Args:
        tls_only: the broker has no plain port, so no listener may name one.
    """
    found = parse_listeners(filled_in(text, broker_id="b", host="localhost", port=1, tls_port=1))
    if tls_only and (plain := [name for name, listener in found.items() if listener.url]):
        raise InvalidConfigError(
            f"the broker has no plain port, and the listener {plain[0]} has an address of one",
            field="advertised_listeners",
            limit="name=pulsar+ssl://host:port",
        )
    if internal and internal not in found:
        raise InvalidConfigError(
            f"{internal} is none of the advertised listeners",
            field="internal_listener_name",
            limit=", ".join(found) or "there are none",
        )


def listener_of(text: str, name: str, broker_id: str) -> AdvertisedListener:
    """Return the listener that a client asks for by name; raise UnsupportedError if the broker does not have it."""
    found = parse_listeners(text)
    if name not in found:
        raise UnsupportedError(
            f"broker {broker_id} has no listener named {name}: it has {', '.join(found) or 'none'}",
            field="listenerName",
        )
    return found[name]
