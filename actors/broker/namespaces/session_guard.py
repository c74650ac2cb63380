"""The error of requests during which this broker's metadata session ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from heliograph.base.errors import ServiceNotReadyError
from heliograph.metadata.errors import SessionExpiredError


@contextmanager
def needs_session() -> Iterator[None]:
    """Raise ServiceNotReadyError when the session ends, so that the client looks the topic up again (I13)."""
    try:
        yield
    except SessionExpiredError as error:
        raise ServiceNotReadyError(f"this broker lost its session: {error}") from error
