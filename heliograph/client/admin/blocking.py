"""The blocking form of the administration, made of the table of operations.

``blocking.pyi`` has the signatures for type checkers; ``make handles`` writes it.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Protocol, TypeVar

from heliograph.operations.admin import GROUPS, AdminOperations
from heliograph.operations.table import TOPICS_PAGE, Answer, OperationGroup, operation_of
from heliograph.operations.topics import TopicOperations, topics_page

T = TypeVar("T")


class RunBlocking(Protocol):
    """Runs a coroutine to its end and returns its result."""

    def __call__(self, work: Coroutine[Any, Any, T], /) -> T: ...


def run_blocking(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end; on another thread if the caller's thread runs an event loop already."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    outcome: list[T] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            outcome.append(asyncio.run(work))
        except BaseException as error:  # carried over to the caller's thread
            failure.append(error)

    thread = threading.Thread(target=run, name="heliograph-admin")
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
    return outcome[0]


class _BlockingGroup:
    """A group of operations as blocking methods. Safe to share between threads."""

    def __init__(self, operations: OperationGroup, run: RunBlocking) -> None:
        self._operations = operations
        self._run = run


def _blocking(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return the blocking form of an operation, with the same arguments, answer and errors."""

    @functools.wraps(method)
    def run(self: _BlockingGroup, /, *positional: Any, **named: Any) -> Any:
        return self._run(getattr(self._operations, method.__name__)(*positional, **named))

    return run


def _form(name: str, group: type[OperationGroup]) -> Any:
    methods = {each: _blocking(method) for each, method in vars(group).items() if operation_of(method) is not None}
    return type(name, (_BlockingGroup,), {"__doc__": f"The blocking form of ``{group.__name__}``.", **methods})


FORMS = {name: _form(f"{name.capitalize()}Sync", group) for name, group in GROUPS.items()}


class BlockingAdmin(_form("TopicsSync", TopicOperations)):
    """The blocking form of an administration: the same methods. Safe to share between threads."""

    def __init__(self, admin: AdminOperations, run: RunBlocking = run_blocking) -> None:
        super().__init__(admin, run)
        for name, form in FORMS.items():
            setattr(self, name, form(getattr(admin, name), run))

    def topic_pages(
        self,
        namespace: str = "public/default",
        prefix: str = "",
        domain: str = "",
        after: str = "",
        limit: int = TOPICS_PAGE,
    ) -> Iterator[list[Answer]]:
        """Return the pages of ``TopicOperations.topic_pages``."""
        is_last = False
        while not is_last:
            page, is_last = self._run(topics_page(self._operations, namespace, prefix, domain, after, limit))
            if page:
                yield page
                after = str(page[-1]["name"])
