"""The interceptors of one handle, called in their order; a failing interceptor is logged and skipped."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Generic, TypeVar

from heliograph.base.guard.quiet_log import SparseLog

One = TypeVar("One")
_Seen = TypeVar("_Seen")


class InterceptorChain(Generic[One]):
    """The base of producers' and consumers' interceptors.

    Args:
        log: the logger of failures.
    """

    def __init__(self, interceptors: Sequence[One], log: logging.Logger) -> None:
        self._interceptors = tuple(interceptors)
        self._log = SparseLog(log)

    def _passed(self, method: str, seen: _Seen, kind: type[_Seen], otherwise: str) -> _Seen:
        """Return the message as the last interceptor leaves it.

        Args:
            kind: what each has to return.
            otherwise: text for the log if the interceptor fails.
        """
        for one in self._interceptors:
            try:
                found = getattr(one, method)(seen)
                if not isinstance(found, kind):
                    raise TypeError(f"{method} returned {type(found).__name__}")
                seen = found
            except Exception:
                self._failed(one, method, otherwise)
        return seen

    def _tell(self, method: str, *what: object) -> None:
        for one in self._interceptors:
            try:
                getattr(one, method)(*what)
            except Exception:
                self._failed(one, method)

    def _failed(self, one: One, method: str, otherwise: str = "") -> None:
        named = f"{type(one).__name__}.{method}"
        self._log.warning(named, "%s failed%s", named, otherwise, with_traceback=True)
