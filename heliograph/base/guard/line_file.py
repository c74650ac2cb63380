"""A file of lines that is rotated at a size. Its own thread writes it, so a slow disk delays no caller."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path

BATCH_LINES_MAX = 500  # written at once # I15
FAILURES_TOLD_SECONDS = 5.0  # between two reports that the disk takes nothing
FILE_MODE = 0o600
DIRECTORY_MODE = 0o700


class LineFile:
    """Appends lines to ``path`` and rotates it: ``path``, ``path.1``, ... ``path.<files_max - 1>``.

    The file is opened for each batch, so that it may be moved or deleted meanwhile.
    """

    def __init__(
        self,
        path: Path,
        *,
        bytes_max: int,
        files_max: int,
        lines_max: int,
        on_lost: Callable[[int], None],
        on_failure: Callable[[OSError], None],
    ) -> None:
        """
        Args:
            bytes_max: size above which the file is rotated, unless one batch alone is larger.
            files_max: files that are kept, the current one counted.
            lines_max: lines that wait for the thread.
            on_lost: called on the thread with the number of lines that the disk did not take.
            on_failure: called on the thread with the reason, every 5 s at most.
        """
        self._path = path
        self._bytes_max = bytes_max
        self._files_max = files_max
        self._waiting: queue.Queue[bytes | threading.Event | None] = queue.Queue(lines_max)
        self._on_lost = on_lost
        self._on_failure = on_failure
        self._thread: threading.Thread | None = None
        self._told_at = -FAILURES_TOLD_SECONDS

    @property
    def path(self) -> Path:
        return self._path

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name=f"write-{self._path.name}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Write what waits, then end the thread. Blocks. Idempotent."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._waiting.put(None)
            thread.join()

    def put(self, line: bytes) -> bool:
        """Give a line, without its end, to the thread. Return False if too many wait: the line is lost."""
        try:
            self._waiting.put_nowait(line)
        except queue.Full:
            return False
        return True

    def flush(self, timeout_seconds: float) -> bool:
        """Wait until the lines of earlier calls were given to the disk. Return False if the time was too short."""
        if self._thread is None or self._thread is threading.current_thread():
            return False
        deadline = time.monotonic() + timeout_seconds
        reached = threading.Event()
        try:
            self._waiting.put(reached, timeout=timeout_seconds)
        except queue.Full:
            return False
        return reached.wait(max(0.0, deadline - time.monotonic()))

    def _run(self) -> None:
        while True:
            taken = [self._waiting.get()]
            while len(taken) < BATCH_LINES_MAX and not self._waiting.empty():
                taken.append(self._waiting.get())
            self._try_to_write([each for each in taken if isinstance(each, bytes)])
            for each in taken:
                if isinstance(each, threading.Event):
                    each.set()
            if None in taken:
                return

    def _try_to_write(self, lines: list[bytes]) -> None:
        try:
            self._write(lines)
        except OSError as error:
            self._on_lost(len(lines))
            if time.monotonic() - self._told_at >= FAILURES_TOLD_SECONDS:
                self._told_at = time.monotonic()
                self._on_failure(error)

    def _write(self, lines: list[bytes]) -> None:
        if not lines:
            return
        self._path.parent.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
        data = b"\n".join(lines) + b"\n"
        with contextlib.suppress(FileNotFoundError):
            if self._path.stat().st_size + len(data) > self._bytes_max:
                self._rotate()
        descriptor = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        with open(descriptor, "ab") as file:
            size = os.fstat(descriptor).st_size
            if size and os.pread(descriptor, 1, size - 1) != b"\n":  # a crash or a full disk cut the last line off
                data = b"\n" + data
            file.write(data)

    def _rotate(self) -> None:
        for number in range(self._files_max - 1, 0, -1):
            with contextlib.suppress(FileNotFoundError):
                rotated(self._path, number - 1).replace(rotated(self._path, number))
        self._path.unlink(missing_ok=True)  # where one file is all there may be


def rotated(path: Path, number: int) -> Path:
    """Return the file that ``path`` became ``number`` rotations ago."""
    return path if number == 0 else path.with_name(f"{path.name}.{number}")
