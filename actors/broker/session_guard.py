"""What a request is told when this broker's metadata session ends under it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from heliograph.errors import ServiceNotReadyError
from metadata.errors import SessionExpiredError


@contextmanager
def needs_session() -> Iterator[None]:
    """Turn the end of our session into advice for the caller: look the topic up again, at another broker (I13)."""
    try:
        yield
    except SessionExpiredError as error:
        raise ServiceNotReadyError(f"this broker lost its session: {error}") from error
