"""The log of a part that this process hosts. A thread writes it, so that a slow disk does not stop the event loop.

Where several parts share a process, each has the lines of its own tasks. Lines of threads that belong to no part are in
the log of the process.
"""

from __future__ import annotations

import logging
import sys
import threading
from contextvars import ContextVar

from typing_extensions import override

from heliograph.base.guard.line_file import LineFile
from heliograph.base.home import make_private
from heliograph.cluster.logs.config import LogsConfig
from heliograph.cluster.logs.lines import LogLine, encoded, line_of

OURS = "heliograph"  # the logger above those of our modules
FLUSH_SECONDS = 2.0  # longest wait for the disk after a line that a process ends with
SUFFIX = ".log"
# The part of the shared process that a task works for; empty: the process has one part, or the task is of none.
shared_part: ContextVar[str] = ContextVar("shared_part", default="")


class PartLog(logging.Handler):
    """The handler that writes the log of one part."""

    def __init__(self, part: str, config: LogsConfig) -> None:
        """
        Args:
            part: name of the part, and of its file without ``.log``.
        """
        super().__init__()
        self.part = part
        self._format = config.format
        self._lost = 0
        self._counting = threading.Lock()
        self._file = LineFile(
            config.directory / f"{part}{SUFFIX}",
            bytes_max=config.file_bytes_max,
            files_max=config.files_max,
            lines_max=config.lines_max,
            on_lost=self._count_lost,
            on_failure=self._tell,
        )

    def start(self) -> None:
        """Make the directory, closed to others, and write from now on."""
        try:
            make_private(self._file.path.parent)
        except OSError as error:
            self._tell(error)
        self._file.start()

    def is_of(self, part: str, config: LogsConfig) -> bool:
        """Return whether this is the log that ``start_log`` would make."""
        return self.part == part and self._file.path.parent == config.directory

    @override
    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = line_of(record, self.part)
            if lost := self._take_lost():
                note = f"{lost} lines before this one are lost: the disk took none, or they came too fast"
                self._put(LogLine(line.time_ms, "WARNING", self.part, __name__, note), stands_for=lost)
            self._put(line)
        except Exception:
            self.handleError(record)
        if record.levelno >= logging.CRITICAL:
            self.flush()  # the process is about to end

    @override
    def flush(self) -> None:
        self._file.flush(FLUSH_SECONDS)

    @override
    def close(self) -> None:
        self._file.stop()
        super().close()

    def _put(self, line: LogLine, *, stands_for: int = 1) -> None:
        if not self._file.put(encoded(line, self._format)):
            self._count_lost(stands_for)

    def _count_lost(self, count: int) -> None:
        with self._counting:
            self._lost += count

    def _take_lost(self) -> int:
        with self._counting:
            lost, self._lost = self._lost, 0
        return lost

    def _tell(self, error: OSError) -> None:
        print(f"the log {self._file.path} cannot be written: {error}", file=sys.stderr, flush=True)


def start_log(part: str, config: LogsConfig) -> PartLog:
    """Write what this process logs to the part's file; warnings still go to stderr, which is Ray's log of the actor.

    A part may have several logs, in different directories. A directory that cannot be written is no reason not to
    start: stderr says so. In a shared process, the file has the lines of the context of this call.
    """
    root = logging.getLogger()
    if not root.handlers:  # Python's last resort ends with the first handler
        errors = logging.StreamHandler()
        errors.setLevel(logging.WARNING)
        root.addHandler(errors)
    for started in root.handlers:
        if isinstance(started, PartLog) and started.is_of(part, config):  # made again in a shared process
            return started
    handler = PartLog(part, config)
    owner = shared_part.get()
    handler.addFilter(lambda _: shared_part.get() == owner)
    handler.start()
    root.addHandler(handler)
    logging.getLogger(OURS).setLevel(config.level)
    return handler


def stop_log(part: str) -> None:
    """Write what a part has logged, and write no more for it. Do nothing if it has no log."""
    root = logging.getLogger()
    for handler in [each for each in root.handlers if isinstance(each, PartLog) and each.part == part]:
        root.removeHandler(handler)
        handler.close()
