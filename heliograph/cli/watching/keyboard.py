"""The keys that are pressed while a command shows something again and again."""

from __future__ import annotations

import contextlib
import os
import re
import select
import sys
import time
from collections.abc import Callable, Iterator

LEFT, RIGHT, TAB, END = "left", "right", "tab", "end"
# What terminals send for them, in both of their modes for arrows.
_NAMED = {b"\x1b[D": LEFT, b"\x1bOD": LEFT, b"\x1b[C": RIGHT, b"\x1bOC": RIGHT, b"\t": TAB, b"\x04": END, b"": END}
KEY_BYTES_MAX = 15  # read at once: one key, once or again and again, or what was pasted, of which nothing is made
_REPEATED = re.compile(rb"(.+?)\1*", re.DOTALL)

Wait = Callable[[float], str]  # waits up to so many seconds for a key, and returns it; empty: none was pressed


def has_keyboard() -> bool:
    """Return whether input and output are a terminal."""
    return sys.stdin.isatty() and sys.stdout.isatty()


@contextlib.contextmanager
def keyboard() -> Iterator[Wait]:
    """Yield what waits for keys: a character, or one of the names above.

    Ctrl-C goes on to end the program. The terminal is as before after the block. Where nobody can press keys, because
    input or output is no terminal, it only waits.
    """
    if not has_keyboard():
        yield _slept
        return
    import termios  # of Unix alone, as terminals are
    import tty

    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    tty.setcbreak(terminal)
    try:
        yield lambda seconds: _pressed(terminal, seconds)
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def _pressed(terminal: int, seconds: float) -> str:
    ready, _, _ = select.select([terminal], [], [], seconds)
    if not ready:
        return ""
    sent = os.read(terminal, KEY_BYTES_MAX)
    if repeated := _REPEATED.fullmatch(sent):
        sent = repeated[1]
    return _NAMED.get(sent, sent.decode("ascii", "replace") if len(sent) == 1 else "")


def _slept(seconds: float) -> str:
    time.sleep(seconds)
    return ""
