"""What each call comes to in each situation, and the table of it in docs/python.md.

``python -m tests.cluster.calls.table`` writes the table; ``test_calls.py`` compares cells and docstrings with it.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path

import heliograph

PAGE = Path(__file__).resolve().parents[3] / "docs" / "python.md"
BEGIN, END = "<!-- calls: made by `make docs` -->\n", "<!-- end of calls -->\n"
KINDS = ("sync", "async")

# By call: the classes that have it, and the method of each.
CALLS: Mapping[str, tuple[type, str, type, str]] = {
    "send": (heliograph.Producer, "send", heliograph.AsyncProducer, "send"),
    "send_async": (heliograph.Producer, "send_async", heliograph.AsyncProducer, "enqueue"),
    "send_many": (heliograph.Producer, "send_many", heliograph.AsyncProducer, "send_many"),
    "flush": (heliograph.Producer, "flush", heliograph.AsyncProducer, "flush"),
    "close of a producer": (heliograph.Producer, "close", heliograph.AsyncProducer, "close"),
    "receive": (heliograph.Consumer, "receive", heliograph.AsyncConsumer, "receive"),
    "receive_many": (heliograph.Consumer, "receive_many", heliograph.AsyncConsumer, "receive_many"),
    "iteration": (heliograph.Consumer, "receive", heliograph.AsyncConsumer, "receive"),
    "acknowledge": (heliograph.Consumer, "ack", heliograph.AsyncConsumer, "ack"),
    "nack": (heliograph.Consumer, "nack", heliograph.AsyncConsumer, "nack"),
    "seek": (heliograph.Consumer, "seek", heliograph.AsyncConsumer, "seek"),
    "close of a consumer": (heliograph.Consumer, "close", heliograph.AsyncConsumer, "close"),
}
SITUATIONS: Mapping[str, str] = {
    "not open": "the handle was not opened before",
    "opening": "another call is opening it",
    "window full": (
        "the producer has as much unconfirmed as it may; the consumer's queue is full, and its acknowledgements wait"
    ),
    "server away": "no broker answers until the time limit of the call is over",
    "server restarting": "the broker is back before",
    "interrupted by an exception": "a signal handler raises one; async: `asyncio.timeout`",
    "cancelled": "Ctrl-C; async: the task is cancelled",
    "after exit hooks": (
        "the call is made by an exit hook that runs after the library's own; async: in an event loop made there"
    ),
    "forked": "the handle is open in the parent, and the child calls",
    "from the loop's own thread": "in a callback on the thread of the library; async: in the event loop",
}
WORDS: Mapping[str, str] = {
    "done": "the call returns, and the broker has what it says",
    "nothing": "it returns an empty list",
    "waits": "it has no time limit, and goes on when a broker is back",
    "interrupted": (
        "the exception leaves the call at once and nothing is lost: what was sent may be stored, once; what came "
        "meanwhile is received by the next call; a closing goes on; the handle is as usable as before"
    ),
    "StopIteration": "the loop ends, as that over a closed consumer does",
}
_FAILED_SENDS = dict.fromkeys(("send", "send_async", "send_many"), "RequestTimeoutError")


def _row(every: str, **other: str) -> dict[str, str]:
    return {call: other.get(call.replace(" ", "_"), every) for call in CALLS}


# By situation and call: the outcome, or those of sync and async handles.
_AWAY = _row(
    "done",
    **_FAILED_SENDS,
    receive="ReceiveTimeoutError",
    receive_many="nothing",
    iteration="waits",
    acknowledge="RequestTimeoutError",
    seek="ConnectionLostError",
)
_ENDING = _row("AlreadyClosedError", iteration="StopIteration", close_of_a_producer="done", close_of_a_consumer="done")
EXPECTED: Mapping[str, Mapping[str, Mapping[str, str]]] = {
    "not open": {"sync": _row("done"), "async": _row("done")},
    "opening": {"sync": _row("done"), "async": _row("done")},
    "window full": {"sync": _row("done"), "async": _row("done")},
    "server away": {"sync": _AWAY, "async": _AWAY},
    "server restarting": {"sync": _row("done"), "async": _row("done")},
    "interrupted by an exception": {
        "sync": _row("interrupted", nack="done"),
        "async": _row("interrupted", nack="done"),
    },
    "cancelled": {"sync": _row("interrupted", nack="done"), "async": _row("interrupted", nack="done")},
    "after exit hooks": {"sync": _ENDING, "async": _row("done")},
    "forked": {"sync": _row("done"), "async": _row("WrongLoopError")},
    "from the loop's own thread": {"sync": _row("RunningLoopError", send_async="done"), "async": _row("done")},
}


def documented(call: str, kind: str) -> str:
    """Return the docstrings of a call's method and of the classes that have it."""
    sync, sync_name, asynchronous, async_name = CALLS[call]
    owner, name = (sync, sync_name) if kind == "sync" else (asynchronous, async_name)
    texts = [inspect.getdoc(getattr(owner, name)) or ""]
    texts += [vars(base).get("__doc__") or "" for base in owner.__mro__ if base.__module__.startswith("heliograph")]
    if name in ("send_async", "enqueue"):
        texts.append(inspect.getdoc(owner.send) or "")  # type: ignore[attr-defined]  # "arguments and errors are those"
    return "\n".join(texts)


def table() -> str:
    """Return the table, and what its words mean."""
    heads = [name if "close" in name else f"`{name}`" for name in CALLS]
    heads[heads.index("`send_async`")] = "`send_async`, `enqueue`"
    heads[heads.index("`acknowledge`")] = "`ack`"
    heads[heads.index("`iteration`")] = "iteration"
    lines = [f"| {' | '.join(['situation', *heads])} |", "|" + "---|" * (len(heads) + 1)]
    for situation, meaning in SITUATIONS.items():
        cells = []
        for call in CALLS:
            sync, asynchronous = (EXPECTED[situation][kind][call] for kind in KINDS)
            cells.append(_shown(sync) if sync == asynchronous else f"{_shown(sync)}; async: {_shown(asynchronous)}")
        lines.append(f"| **{situation}**: {meaning} | {' | '.join(cells)} |")
    lines += ["", *(f"- {_shown(word)}: {meaning}." for word, meaning in WORDS.items())]
    return "\n".join(lines) + "\n"


def _shown(outcome: str) -> str:
    return f"`{outcome}`" if outcome[0].isupper() else outcome


def page() -> str:
    """Return docs/python.md with the table of now."""
    head, rest = PAGE.read_text().split(BEGIN)
    return f"{head}{BEGIN}\n{table()}\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    PAGE.write_text(page())
