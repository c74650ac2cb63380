"""What nobody may cause from outside: records of errors in the log, and exceptions that reach the event loop."""

from __future__ import annotations

import asyncio
import gc
import logging
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from typing_extensions import override


class Alarms(logging.Handler):
    """The errors that were logged, and those that nobody handled."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    @override
    def emit(self, record: logging.LogRecord) -> None:
        text = f"{record.name}: {record.getMessage()}"
        if record.exc_info and record.exc_info[1] is not None:
            text += "\n" + "".join(traceback.format_exception(record.exc_info[1]))
        self.found.append(text)

    def on_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Note an exception of a callback, or of a task that was never retrieved."""
        error = context.get("exception")
        text = "event loop: " + str(context.get("message"))
        if error is not None:
            text += "\n" + "".join(traceback.format_exception(error))
        self.found.append(text)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Collect for the length of the block. The running loop's handler is replaced meanwhile."""
        root, loop = logging.getLogger(), asyncio.get_running_loop()
        before = loop.get_exception_handler()
        root.addHandler(self)
        loop.set_exception_handler(self.on_loop_error)
        try:
            yield
        finally:
            gc.collect()
            root.removeHandler(self)
            loop.set_exception_handler(before)
