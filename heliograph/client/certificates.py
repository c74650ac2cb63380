"""The TLS files that a client uses where its user names none: those of the environment, or those of this machine."""

from __future__ import annotations

import os
from typing import Any

from heliograph.client import discovery

CA_VARIABLE = "HELIOGRAPH_CLIENT_CA_FILE"
CERTIFICATE_VARIABLE = "HELIOGRAPH_CLIENT_CERTIFICATE_FILE"
KEY_VARIABLE = "HELIOGRAPH_CLIENT_KEY_FILE"
_VARIABLES = {
    "tls_ca_file": CA_VARIABLE,
    "tls_certificate_file": CERTIFICATE_VARIABLE,
    "tls_key_file": KEY_VARIABLE,
}


def asks_for_tls(options: dict[str, Any]) -> bool:
    """Return whether options of a client ask for TLS: by ``tls_enabled``, or because they name a file of it."""
    return bool(options.get("tls_enabled")) or any(options.get(name) for name in _VARIABLES)


def tls_options(namespace: str | None) -> dict[str, str]:
    """Return the options of a client that name files of TLS, for addresses of TLS.

    Args:
        namespace: of a cluster whose files ``helio up`` noted on this machine, which are used where the variables
            HELIOGRAPH_CLIENT_CA_FILE, HELIOGRAPH_CLIENT_CERTIFICATE_FILE and HELIOGRAPH_CLIENT_KEY_FILE name none;
            None: only the variables count.
    """
    named = {option: os.environ[variable] for option, variable in _VARIABLES.items() if os.environ.get(variable)}
    if named or namespace is None:
        return named
    state = discovery.noted_state(namespace)
    if state is None or state.namespace != namespace:
        return {}
    return {option: noted for option in _VARIABLES if (noted := getattr(state, option))}
