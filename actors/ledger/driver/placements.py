"""The placement policies of one process by their names: the built-in ones, and those of its configuration.

A name in a record or a request chooses among them and is never imported. Otherwise a caller who may write a record
could run any function of any module in every broker.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable

from heliograph.actors.ledger.placement.placement import Placement, RackAwarePlacement, RandomPlacement
from heliograph.base.errors import InvalidConfigError

PLACEMENT = "placement"  # property of a ledger whose placement policy is not the process's own
BUILT_IN: dict[str, Callable[[], Placement]] = {
    "random": RandomPlacement,
    "rack": RackAwarePlacement,
    "random-weighted": lambda: RandomPlacement(by_free_space=True),
    "rack-weighted": lambda: RackAwarePlacement(by_free_space=True),
}
_ENTRY = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]{0,63})=([A-Za-z_][\w.]*):([A-Za-z_]\w*)")


class PlacementRegistry:
    """The policies that this process has.

    Raises:
        InvalidConfigError: the setting is malformed, a name is given twice, or a class cannot be imported or made
            without arguments, or does not follow the interface.
    """

    def __init__(self, registered: str = "") -> None:
        """
        Args:
            registered: ``name=module:Class,...``, the setting ``placements``.
        """
        self._policies = {name: make() for name, make in BUILT_IN.items()}
        for entry in filter(None, (part.strip() for part in registered.split(","))):
            match = _ENTRY.fullmatch(entry)
            if match is None:
                raise InvalidConfigError(f"{entry!r} is not name=module:Class", field="placements")
            name, module, class_name = match.groups()
            if name in self._policies:
                raise InvalidConfigError(f"there are two placements named {name!r}", field="placements")
            self._policies[name] = _made(entry, module, class_name)

    @property
    def names(self) -> list[str]:
        """Return the names of all policies, sorted."""
        return sorted(self._policies)

    def get(self, name: str) -> Placement:
        """Return the policy of a name.

        Raises:
            InvalidConfigError: this process has no such policy.
        """
        policy = self._policies.get(name)
        if policy is None:
            known = ", ".join(self.names)
            raise InvalidConfigError(
                f"there is no placement {name[:80]!r}; this cluster has {known}", field="placement", limit=known
            )
        return policy


def _made(entry: str, module: str, class_name: str) -> Placement:
    try:
        made: Placement = getattr(importlib.import_module(module), class_name)()
    except Exception as error:  # a user's module and class may raise anything
        raise InvalidConfigError(
            f"placement {entry!r} cannot be imported and made without arguments: {type(error).__name__}: {error}",
            field="placements",
        ) from error
    for method in ("new_ensemble", "replacement"):
        if not callable(getattr(made, method, None)):
            raise InvalidConfigError(f"placement {entry!r} has no method {method}", field="placements")
    return made
