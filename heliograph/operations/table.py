"""The definition of an administrative operation, and groups that declare operations as typed methods. No I/O.

A method of an ``OperationGroup`` that carries ``@operation`` is an entry of the table. Its signature and docstring are
the description of the operation; its body is derived: it hands the entry and the arguments to the group's ``call``.
A broker's services override the methods that have work to do; clients override nothing.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from types import NoneType, UnionType
from typing import Annotated, Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from heliograph.base.clock import as_number
from heliograph.base.errors import BadRequestError, HeliographError

Answer = dict[str, Any]
Method = TypeVar("Method", bound=Callable[..., Coroutine[Any, Any, Any]])


class Scope(Enum):
    """The thing that an operation acts on. The value is the argument that names it, unless the entry says another."""

    CLUSTER = ""
    TENANT = "tenant"
    NAMESPACE = "namespace"
    TOPIC = "topic"
    SUBSCRIPTION = "subscription"
    BUNDLE = "bundle"
    BROKER = "broker_id"


class Right(Enum):
    """The right that an operation needs if authentication is enabled (``heliograph/auth``).

    A superuser may run everything, and a tenant's admin everything in the tenant but what needs a superuser. Where the
    argument that names the scope is None, the operation acts on all of them and needs the right on what holds them:
    the topic for subscriptions, the cluster for tenants.
    """

    SUPERUSER = "superuser"
    TENANT_ADMIN = "tenant admin"
    PRODUCE = "produce"
    CONSUME = "consume"
    PRODUCE_OR_CONSUME = "produce or consume"


class Owner(Enum):
    """Whether an operation is forwarded to the broker that owns the topic."""

    NOT_NEEDED = "any broker answers by itself"
    OF_ONE = "the owner of the topic; a partitioned topic is refused"
    OF_EACH = "the owners of all partitions"


@dataclass(frozen=True, slots=True)
class IntegerRange:
    """The bounds of an integer argument, both included."""

    least: int
    most: int

    def check(self, name: str, value: Any) -> None:
        """Raise BadRequestError unless the value of the argument ``name`` is an integer within the bounds."""
        if not isinstance(value, int) or isinstance(value, bool) or not self.least <= value <= self.most:
            raise BadRequestError(f"{name} is {value!r}", field=name, limit=f"{self.least} to {self.most}")


@dataclass(frozen=True, slots=True)
class TextOf:
    """Marks a text argument. A time span becomes the text of its number, in the unit of the argument ``unit_of``."""

    unit_of: str  # another argument


INTEGER_MAX = (1 << 63) - 1
PEEK_MAX = 1_000  # messages of one answer
PARTITIONS_MAX = 10_000  # of one topic
READ_LEDGERS_MAX = 1_000  # of one answer of read_access
LEDGERS_PAGE_MAX = 1_000  # of one answer of topic_ledgers
TOPICS_PAGE = 1_000  # topics of one page of topic_pages
TOPICS_LISTED_MAX = 100_000  # topics of one answer of list_topics  # I15
LEDGER_RANGES_MAX = 10_000  # of one answer of ledger_ranges
Natural = Annotated[int, IntegerRange(0, INTEGER_MAX)]
Seconds = Annotated[int | timedelta, IntegerRange(0, INTEGER_MAX)]
TimeMs = Annotated[int | datetime, IntegerRange(0, INTEGER_MAX)]


@dataclass(slots=True, eq=False)
class AdminOperation:
    """One entry of the table.

    Attributes:
        method: the method that declares it. Its signature has the arguments with their types and defaults, and the
            type of the answer.
        scope: the kind of thing that the operation acts on.
        target: the argument that names its target; empty for the cluster.
        right: the right that the caller needs.
        owner: whether it is forwarded to the topic's owner.
        is_repeatable: doing it twice is the same as doing it once, so that it may be repeated after a lost answer.
        fulfilled_by: the error of a repetition that finds the work done; None if a repetition raises none.
        group: the attribute of the administration that has the method; empty for the administration itself.
    """

    method: Callable[..., Any]
    scope: Scope
    target: str
    right: Right
    owner: Owner
    is_repeatable: bool
    fulfilled_by: type[HeliographError] | None
    group: str = ""

    @property
    def method_name(self) -> str:
        """The name of the method, such as ``skip``."""
        return self.method.__name__

    @property
    def name(self) -> str:
        """The name of the operation in calls of brokers, such as ``cursors.skip``."""
        return f"{self.group}.{self.method.__name__}" if self.group else self.method.__name__

    @property
    def signature(self) -> inspect.Signature:
        """Arguments and answer, without ``self``."""
        return _described(self.method)[0]

    def bind(self, *positional: Any, **named: Any) -> dict[str, Any]:
        """Return all arguments by name, defaults included, with collections as plain lists and dictionaries.

        Times become numbers: a datetime ms since the epoch, a timedelta seconds, or ms where the name ends in it.

        Raises:
            TypeError: an argument is missing or unknown.
            BadRequestError: an integer is outside of its bounds, or a time has no time zone.
        """
        signature, marks = _described(self.method)
        bound = signature.bind(*positional, **named)
        bound.apply_defaults()
        plain = {
            name: value if type(value) in _ALREADY_PLAIN else _plain(name, value)
            for name, value in bound.arguments.items()
        }
        for name, mark in marks.items():
            if isinstance(mark, IntegerRange):
                mark.check(name, plain[name])
            elif isinstance(span := bound.arguments[name], timedelta):
                plain[name] = str(as_number(str(plain[mark.unit_of]), span))
        return plain

    def check(self, arguments: Mapping[str, Any]) -> None:
        """Raise BadRequestError if an argument, as ``bind`` returns it, is not of the type that it is declared with."""
        for name, hint in _hints(self.method).items():
            value = arguments[name]
            if type(value) is not hint and not _fits(value, hint):
                found = type(value).__name__
                told = inspect.formatannotation(hint).replace("collections.abc.", "").replace("typing.", "")
                raise BadRequestError(
                    f"{name} is of the type {found}, or has values of other types", field=name, limit=told
                )

    def sparse(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments that differ from their defaults: an older broker may not know the others."""
        parameters = self.signature.parameters
        return {
            name: value
            for name, value in arguments.items()
            if value is not (default := parameters[name].default) and value != _plain(name, default)
        }


Call = Callable[[AdminOperation, dict[str, Any]], Awaitable[Any]]

OPERATIONS: dict[str, AdminOperation] = {}  # the table, by name


class OperationGroup:
    """Methods that are operations. A class that is given a ``group`` adds its methods to the table.

    Attributes:
        call: runs an operation with its arguments by name; every method that a subclass does not override ends there.
    """

    call: Call

    def __init_subclass__(cls, group: str | None = None, **named: Any) -> None:
        super().__init_subclass__(**named)
        if group is None:
            return
        for method in vars(cls).values():
            entry = operation_of(method)
            if entry is not None:
                entry.group = group
                OPERATIONS[entry.name] = entry


def operation_of(method: Any) -> AdminOperation | None:
    """Return the entry that a method declares, or None for another attribute or an implementation."""
    return getattr(method, "__dict__", {}).get("operation")


def operation(
    scope: Scope,
    right: Right,
    *,
    target: str | None = None,
    owner: Owner = Owner.NOT_NEEDED,
    is_repeatable: bool = True,
    fulfilled_by: type[HeliographError] | None = None,
) -> Callable[[Method], Method]:
    """Declare a method as an operation; the arguments are the attributes of ``AdminOperation``."""

    def declare(method: Method) -> Method:
        entry = AdminOperation(
            method, scope, scope.value if target is None else target, right, owner, is_repeatable, fulfilled_by
        )

        @functools.wraps(method)
        async def call(self: OperationGroup, /, *positional: Any, **named: Any) -> Any:
            return await self.call(entry, entry.bind(*positional, **named))

        call.__dict__["operation"] = entry
        return cast(Method, call)

    return declare


@functools.cache
def _described(method: Callable[..., Any]) -> tuple[inspect.Signature, dict[str, IntegerRange | TextOf]]:
    signature = inspect.signature(method)
    own = [parameter for name, parameter in signature.parameters.items() if name != "self"]
    marks = {
        name: extra
        for name, hint in get_type_hints(method, include_extras=True).items()
        for extra in get_args(hint)[1:]
        if isinstance(extra, IntegerRange | TextOf)
    }
    return signature.replace(parameters=own), marks


@functools.cache
def _hints(method: Callable[..., Any]) -> dict[str, Any]:
    return {name: hint for name, hint in get_type_hints(method).items() if name != "return"}


def _fits(value: Any, hint: Any) -> bool:
    """Return whether a value is of a type of the table. Of a collection, one value of each type is looked at."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Union or origin is UnionType:
        if type(value) in inner:  # None and plain values, most of all
            return True
        return any(_fits(value, each) for each in inner)
    if origin is Mapping:
        return isinstance(value, dict) and _all_fit(value, inner[0]) and _all_fit(value.values(), inner[1])
    if origin is Sequence:
        return isinstance(value, list) and _all_fit(value, inner[0])
    if hint is bytes:
        return isinstance(value, bytes | bytearray | memoryview)
    return hint is Any or isinstance(value, (int, float) if hint is float else hint)


def _all_fit(values: Iterable[Any], hint: Any) -> bool:
    seen: set[type] = set()
    for value in values:
        if type(value) is not hint and type(value) not in seen:
            seen.add(type(value))
            if not _fits(value, hint):
                return False
    return True


_ALREADY_PLAIN = frozenset({str, int, float, bool, bytes, NoneType})  # these stay as they are


def _plain(name: str, value: Any) -> Any:
    if type(value) in (list, tuple):  # most of all; to ask whether these are mappings costs more than the rest
        return [*value]
    if isinstance(value, Mapping):
        return {key: as_number(key, each) for key, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray | memoryview):
        return list(value)
    return as_number(name, value)
