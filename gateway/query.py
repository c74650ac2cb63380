"""Query parameters of WebSocket URLs, each read once with its type; unknown parameters are ignored, as Pulsar does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from heliograph.errors import BadRequestError, UnsupportedError


class Query:
    """Typed access to the parameters of one URL. Every method raises BadRequestError naming the parameter."""

    def __init__(self, parameters: Mapping[str, str]) -> None:
        self._parameters = parameters

    def text(self, name: str) -> str | None:
        """The value, None when absent or empty."""
        return self._parameters.get(name) or None

    def integer(self, name: str, default: int, *, low: int = 0, high: int = 2**63 - 1) -> int:
        """A whole number between ``low`` and ``high``."""
        text = self.text(name)
        if text is None:
            return default
        try:
            value = int(text)
        except ValueError:
            raise BadRequestError(f"{name} is not a whole number: {text!r}", field=name) from None
        if not low <= value <= high:
            raise BadRequestError(f"{name} is {value}", field=name, limit=f"{low}..{high}")
        return value

    def boolean(self, name: str, default: bool) -> bool:
        """``true`` or ``false``, in any case."""
        text = self.text(name)
        if text is None:
            return default
        if text.lower() not in ("true", "false"):
            raise BadRequestError(f"{name} must be true or false, not {text!r}", field=name)
        return text.lower() == "true"

    def choice(self, name: str, values: Sequence[str], default: str) -> str:
        """One of the given words, exactly as written there."""
        text = self.text(name) or default
        if text not in values:
            raise BadRequestError(f"{name} is {text!r}, it must be one of {', '.join(values)}", field=name)
        return text

    def refuse(self, name: str, why: str, *, harmless: Sequence[str] = ()) -> None:
        """Refuse a parameter that would change the outcome and is not offered.

        Raises:
            UnsupportedError: it is given, and not one of the harmless values.
        """
        text = self.text(name)
        if text is not None and text not in harmless:
            raise UnsupportedError(f"{name} is not supported: {why}", field=name)
