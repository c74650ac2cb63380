"""Variables of the environment that are meant as settings and are none."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping

from heliograph.base.section import unknown_setting
from heliograph.cluster.settings.location import PREFIX

# Variables of ours that are no settings of the cluster.
OTHERS = frozenset(
    PREFIX + name
    for name in (
        "CLIENT_CA_FILE",
        "CLIENT_CERTIFICATE_FILE",
        "CLIENT_KEY_FILE",
        "DEBUG",
        "STATE_ROOT",
        "TOKEN",
        "TOKEN_FILE",
        "WATCHDOG_SECONDS",
    )
)
# Kubernetes sets variables in this form for each service, whatever programs expect.
_OF_SERVICES = re.compile(r"_SERVICE_HOST|_SERVICE_PORT(_\w+)?|_PORT_\d+_(TCP|UDP)(_\w+)?")
_NEAR = 0.85  # how alike a typing error and the name that was meant are


def check_environment(environment: Mapping[str, str], known: Collection[str]) -> None:
    """Check that no variable looks like a mistyped setting. Variables that resemble no setting belong to others.

    Variables of sections, which have two underscores, are checked when they are read.

    Args:
        known: the full names of all settings.

    Raises:
        InvalidConfigError: one does; names it and the nearest setting.
    """
    variables = {PREFIX + name.upper().replace(".", "__"): name for name in known}
    for variable, value in environment.items():
        is_ours = variable.startswith(PREFIX) and "__" not in variable
        if not is_ours or variable in variables or variable in OTHERS:
            continue
        if _OF_SERVICES.search(variable.removeprefix(PREFIX[:-1])) or value.startswith(("tcp://", "udp://")):
            continue
        if difflib.get_close_matches(variable, [*variables, *OTHERS], n=1, cutoff=_NEAR):
            raise unknown_setting(variable, [*variables, *OTHERS])
