"""The password of a metadata URL: taken from the environment if the URL has a user only, never shown or stored."""

from __future__ import annotations

import os
from urllib.parse import quote, unquote, urlsplit

from heliograph.base.guard.handshake import secrets_in

SECRET_USER = "cluster"  # of an embedded store's URL, before its secrets
PASSWORD_VARIABLE = "HELIOGRAPH_METADATA_PASSWORD"


def credentials_of(user_part: str) -> tuple[str, str]:
    """Return user and password before the ``@`` of a URL, both still percent-encoded.

    A missing password is taken from HELIOGRAPH_METADATA_PASSWORD, and is empty if that is not set.
    """
    user, has_password, password = user_part.partition(":")
    if user and not has_password:
        password = quote(os.environ.get(PASSWORD_VARIABLE, ""), safe="")
    return user, password


def secrets_of_url(url: str) -> str | None:
    """Return the secrets in the URL of an embedded store, or in the environment; None if there are none."""
    password = urlsplit(url).password
    return unquote(password) if password else secrets_in()


def with_secrets(url: str, secret: str | None) -> str:
    """Return the URL of an embedded store with the cluster's secrets added; other URLs are unchanged."""
    scheme, separator, rest = url.partition("://")
    if scheme not in ("embedded", "embeddeds") or not secret or "@" in rest:
        return url
    return f"{scheme}{separator}{SECRET_USER}:{quote(secret, safe='')}@{rest}"


def without_password(url: str) -> str:
    """Return the URL without its password, for logs and records."""
    scheme, separator, rest = url.partition("://")
    authority, slash, tail = rest.partition("/")
    user_part, at, hosts = authority.rpartition("@")
    return f"{scheme}{separator}{user_part.partition(':')[0]}{at}{hosts}{slash}{tail}"


def with_password(url: str, password: str) -> str:
    """Return the URL with the password of its user; unchanged if it names no user."""
    scheme, separator, rest = without_password(url).partition("://")
    user, at, tail = rest.partition("@")
    return f"{scheme}{separator}{user}:{quote(password, safe='')}@{tail}" if at else url
