"""``secure = true``: one word for the settings by which a cluster keeps everyone out who may not come in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from heliograph.base.errors import InvalidConfigError

_TRUE = ("true", "1", "yes", "on")


def is_set(value: Any) -> bool:
    """Return whether a value of a yes-or-no setting, perhaps a text of the environment, says yes."""
    return str(value).strip().lower() in _TRUE


def with_security(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a ``ClusterConfig`` with the values that ``secure`` implies; others are unchanged.

    Callers are authenticated, every listener speaks TLS and none is plain, by certificates of the cluster's own unless
    files are named. A cluster with authentication has an audit log, and every cluster has a secret and limits anyway.

    Raises:
        InvalidConfigError: a setting says the contrary; names it.
    """
    if not is_set(values.get("secure", False)):
        return dict(values)
    sections = values.get("sections", {})
    auth = sections.get("auth", {})
    contrary = {
        "auth.enabled": not is_set(auth.get("enabled", True)),
        "auth.anonymous_role": bool(auth.get("anonymous_role")),
        "insecure": is_set(values.get("insecure", False)),
        "tls_only": not is_set(values.get("tls_only", True)),
        "gateway_tls": not is_set(values.get("gateway_tls", True)),
    }
    if found := [name for name, is_contrary in contrary.items() if is_contrary]:
        raise InvalidConfigError(
            f"secure is set, and {found[0]} says the contrary: leave one of them out", field=f"secure,{found[0]}"
        )
    inner, outer = (values.get(f"{kind}tls_certificate_file") is not None for kind in ("internal_", ""))
    if values.get("tls") == "files" and not inner:
        raise InvalidConfigError(
            'secure is set, and tls = "files" without internal_tls_certificate_file leaves bookies and the metadata '
            "store without TLS: name the files, or leave tls out",
            field="secure,tls",
        )
    return {
        **values,
        "tls": values.get("tls", "auto" if not outer else "files" if inner else "parts"),
        "tls_only": True,
        "gateway_tls": True,
        "sections": {**sections, "auth": {**auth, "enabled": True}},
    }
