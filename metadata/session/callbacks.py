"""Calls of the user's watchers and listeners."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def run_callback(name: str, callback: Callable[[T], None], argument: T) -> None:
    """Call a user's function on the event loop. The loop's exception handler is told when it fails."""
    try:
        callback(argument)
    except Exception as error:
        context = {"message": f"a metadata {name} failed", "exception": error}
        asyncio.get_running_loop().call_exception_handler(context)
