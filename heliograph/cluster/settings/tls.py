"""The settings of TLS that need each other."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from heliograph.base.errors import InvalidConfigError
from heliograph.base.home import DEFAULT_NAMESPACE, ClusterHome, default_state_root
from heliograph.base.tls.authority import DIRECTORY as CERTIFICATES
from heliograph.base.tls.contexts import TlsFiles
from heliograph.cluster.settings.secure import is_set

INTERNAL_TLS = ("internal_tls_certificate_file", "internal_tls_key_file", "internal_tls_ca_file")
OUTER_TLS = ("tls_certificate_file", "tls_key_file", "tls_ca_file")


def with_own_certificates(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a ``ClusterConfig`` with the files that ``tls`` names; others are unchanged.

    Where callers are authenticated, new etcd members have certificates: nothing else keeps callers out of them.
    """
    home = values.get("home") or default_state_root() / str(values.get("namespace", DEFAULT_NAMESPACE))
    home = Path(home).expanduser().absolute()
    tls = values.get("tls", "files")
    if tls == "files" and _needs_certificates(values, home):
        tls = "parts"
    if tls not in ("auto", "parts"):
        return dict(values)
    names = ("parts.pem", "parts.key", "ca.pem")
    files = dict(zip(INTERNAL_TLS, names, strict=True))
    if tls == "auto":
        files |= dict(zip(OUTER_TLS, names, strict=True))
    made: dict[str, Any] = {setting: home / CERTIFICATES / name for setting, name in files.items()}
    is_https = tls == "auto" and values.get("gateway_tls_port") is None
    return made | ({"gateway_tls": True} if is_https else {}) | {**values, "tls": tls}


def _needs_certificates(values: Mapping[str, Any], home: Path) -> bool:
    """Return whether etcd members are run for a cluster that authenticates callers, and no certificates are named.

    Members that an earlier release started without certificates know each other by plain addresses, and go on.
    """
    return (
        values.get("metadata_kind") == "etcd"
        and is_set(values.get("sections", {}).get("auth", {}).get("enabled", False))
        and not any(values.get(name) for name in INTERNAL_TLS)
        and (not ClusterHome(home).members() or (home / CERTIFICATES).is_dir())
    )


def check_tls(config: Any) -> None:
    """Check that TLS files are given together, and that no setting is for a listener that does not exist.

    Args:
        config: a ``ClusterConfig``.

    Raises:
        InvalidConfigError: something is missing; names the settings.
    """
    if (config.tls_certificate_file is None) != (config.tls_key_file is None):
        raise InvalidConfigError(
            "a certificate needs its key: give tls_certificate_file and tls_key_file together",
            field="tls_certificate_file,tls_key_file",
        )
    if len({getattr(config, name) is None for name in INTERNAL_TLS}) > 1:
        raise InvalidConfigError(
            f"TLS between the parts needs a certificate, its key and the authority: give {', '.join(INTERNAL_TLS)} "
            "together",
            field=",".join(INTERNAL_TLS),
        )
    if config.serves_https and config.tls_certificate_file is None:
        raise InvalidConfigError(
            "https of the gateway needs tls_certificate_file and tls_key_file", field="tls_certificate_file"
        )
    if config.gateway_tls and config.gateway_tls_port is not None:
        raise InvalidConfigError(
            "gateway_tls closes the gateway's plain port, and gateway_tls_port opens one for https beside it: leave "
            "one of them out",
            field="gateway_tls,gateway_tls_port",
        )
    if config.tls_only and (config.tls_certificate_file is None or (config.gateway and not config.gateway_tls)):
        raise InvalidConfigError(
            "tls_only closes plain ports, and the brokers or the gateway would have no other: give "
            "tls_certificate_file and gateway_tls",
            field="tls_only",
        )
    if config.tls_require_client_certificate and config.tls_ca_file is None:
        raise InvalidConfigError(
            "tls_require_client_certificate needs tls_ca_file, which signs the certificates of clients",
            field="tls_ca_file",
        )


def outer_files(config: Any) -> TlsFiles | None:
    """Return the files of the listeners for clients that a ``ClusterConfig`` names; None without TLS."""
    if config.tls_certificate_file is None or config.tls_key_file is None:
        return None
    return TlsFiles(
        str(config.tls_certificate_file),
        str(config.tls_key_file),
        str(config.tls_ca_file or ""),
        config.tls_require_client_certificate,
    )


def gateway_files(outer: TlsFiles | None, authority: Path | None, *, is_served: bool) -> dict[str, Any]:
    """Return the gateway's settings of TLS: its listener's are the brokers', and it trusts and shows the same.

    Args:
        outer: files of listeners for clients; None without TLS.
        authority: that signs the brokers' certificate; None: an authority that the machine trusts.
        is_served: whether the gateway's own listener speaks TLS.
    """
    outer = outer or TlsFiles("", "")
    served = outer if is_served else TlsFiles("", "")
    return {
        "tls_certificate_file": served.certificate,
        "tls_key_file": served.key,
        "tls_ca_file": served.client_ca,
        "tls_require_client_certificate": served.is_client_certificate_required,
        "broker_tls_enabled": bool(outer.certificate),
        "broker_ca_file": str(authority or ""),
        "broker_certificate_file": outer.certificate,
        "broker_key_file": outer.key,
    }
