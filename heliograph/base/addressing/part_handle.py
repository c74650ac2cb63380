"""Handles of parts by name, and the descriptions of the parts that share a process.

Other programs name actors in the same Ray, also in the cluster's namespace. An actor there is a part if it has the name
of one and the methods that every part has. Both are known without a call, so an actor that hangs or raises is told
apart, too. An actor of another program that has a part's name is a **stranger**: it is reported, and never called.

A part that shares a process has no actor. Its description is in the key-value store of Ray's GCS, where the actor of
the shared process reads it whenever Ray starts it, so a part lasts exactly as long as an actor would. Ray is imported
when a function needs it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from heliograph.ray import gcs

SHARED_PROCESS = "shared-process"  # name of the actor
MARK = frozenset(("log_chunk", "part_facts"))  # methods of the actor of every part, of all releases
SHARED_MARK = frozenset(("begin", "call", "end"))  # of the actor of the shared process
_PART_NAME = re.compile(r"auditor|gateway|metadata|operator|shared-process|(bookie|broker|metadata|replicator)-[0-9]+")
_SPACE = b"heliograph"  # of keys
_NO_CLASS = object()  # in place of an actor that Ray knows by its name alone


class NamedActors(NamedTuple):
    """The actors of a namespace that have names of parts.

    Attributes:
        parts: names of the cluster's parts that run or are started again, with those that share a process.
        strangers: names of parts that actors of other programs have.
    """

    parts: frozenset[str]
    strangers: frozenset[str]


class SharedPart:
    """A part in the shared process, called as the handle of an actor is: ``handle.method.remote(arguments)``.

    Attributes:
        process: the actor of the shared process.
        name: of the part.
        namespace: of the cluster.
    """

    def __init__(self, process: Any, name: str, namespace: str) -> None:
        self.process = process
        self.name = name
        self.namespace = namespace

    def __getattr__(self, method: str) -> SharedMethod:
        if method.startswith("_"):
            raise AttributeError(method)
        return SharedMethod(self.process, self.name, method)

    def __repr__(self) -> str:
        return f"SharedPart({self.name})"

    def __reduce__(self) -> tuple[Any, ...]:
        return SharedPart, (self.process, self.name, self.namespace)


class SharedMethod:
    """One method of a part in the shared process."""

    def __init__(self, process: Any, part: str, method: str) -> None:
        self._process = process
        self._part = part
        self._method = method

    def remote(self, *arguments: Any, **options: Any) -> Any:
        return self._process.call.remote(self._part, self._method, arguments, options)


def find_part(name: str, namespace: str) -> Any:
    """Return the handle of a part.

    Raises:
        ValueError: Ray knows no such part; another program may have an actor of this name.
    """
    found = _own_actor(name, namespace)
    if found is not None:
        return found
    process = find_shared_process(namespace)
    if process is None or description(name, namespace) is None:
        raise ValueError(f"no part {name!r} is in Ray namespace {namespace!r}")
    return SharedPart(process, name, namespace)


def answers_of(calls: Mapping[str, Any], seconds: float) -> tuple[dict[str, Any], dict[str, Exception]]:
    """Wait for calls that were sent to parts or nodes, and return what each answered and why the others did not.

    Args:
        calls: references to the answers, by names that the results have, too.
        seconds: for all of them. Calls that are late go on.

    Returns:
        the answers, and the errors: Ray's, with the error of a method as cause, and TimeoutError.
    """
    import ray
    import ray.exceptions

    names = {call: name for name, call in calls.items()}
    done, late = ray.wait(list(names), num_returns=len(names), timeout=seconds) if names else ([], [])
    found: dict[str, Any] = {}
    failed: dict[str, Exception] = {names[call]: TimeoutError(f"no answer in {seconds:.0f} s") for call in late}
    for call in done:
        try:
            found[names[call]] = call.future().result()  # in an async actor, ``ray.get`` would warn, on any thread
        except ray.exceptions.RayError as error:
            failed[names[call]] = error
    return found, failed


def find_shared_process(namespace: str) -> Any | None:
    """Return the actor of the process that parts share; None if there is none."""
    return _own_actor(SHARED_PROCESS, namespace)


def has_part_name(name: str) -> bool:
    return _PART_NAME.fullmatch(name) is not None


def is_part(handle: Any, name: str) -> bool:
    """Return whether the handle of an actor with a part's name is of a part. Nothing is called."""
    return (SHARED_MARK if name == SHARED_PROCESS else MARK) <= set(dir(handle))


def is_stranger(name: str, namespace: str) -> bool:
    """Return whether an actor of another program has a part's name."""
    actor = _actor(name, namespace)
    return actor is not None and not is_part(actor, name)


def named_actors(namespace: str, known: Collection[str] = ()) -> NamedActors:
    """Return the parts that run or are started again, whether they serve or not, and the strangers.

    Args:
        known: names of actors that are parts and are not looked at again, because they answered as such lately.
    """
    import ray.util

    listed = ray.util.list_named_actors(all_namespaces=True)
    named = {entry["name"] for entry in listed if entry["namespace"] == namespace}
    actors = {name: _actor(name, namespace) for name in named if has_part_name(name) and name not in known}
    found = {name: is_part(actor, name) for name, actor in actors.items() if actor is not None}
    parts = {name for name, is_own in found.items() if is_own} | named.intersection(known)
    if SHARED_PROCESS in parts:
        parts = (parts - {SHARED_PROCESS}) | described(namespace)
    return NamedActors(frozenset(parts), frozenset(name for name, is_own in found.items() if not is_own))


def part_names(namespace: str) -> frozenset[str]:
    """Return the names of all parts that run or are started again, whether they serve or not."""
    return named_actors(namespace).parts


def shared_parts(namespace: str) -> set[str]:
    return set() if find_shared_process(namespace) is None else described(namespace)


def described(namespace: str) -> set[str]:
    """Return the names of the parts that are described for the shared process."""
    return {key.decode().rpartition("/")[2] for key in gcs.keys(_key("", namespace), _SPACE)}


def description(name: str, namespace: str) -> bytes | None:
    """Return the description of a part of the shared process; None if there is no such part."""
    return gcs.value(_key(name, namespace), _SPACE)


def describe(name: str, namespace: str, made_of: bytes) -> None:
    """Have the shared process make a part at each of its starts."""
    gcs.keep(_key(name, namespace), made_of, _SPACE)


def forget(name: str, namespace: str) -> None:
    """Have the shared process make a part no more."""
    gcs.forget(_key(name, namespace), _SPACE)


def _own_actor(name: str, namespace: str) -> Any | None:
    """Return the actor of a part; None if Ray knows none of this name, or only one of another program."""
    actor = _actor(name, namespace)
    return actor if actor is not None and is_part(actor, name) else None


def _actor(name: str, namespace: str) -> Any | None:
    """Return the actor of this name, of any program; None if there is none."""
    import ray
    import ray.exceptions

    try:
        return ray.get_actor(name, namespace=namespace)
    except ValueError:
        return None
    except (ray.exceptions.RayError, ConnectionError, RuntimeError):  # Ray does not answer
        raise
    except Exception:  # Ray has the class of this actor no more, and raises what comes; it keeps those of our parts
        return _NO_CLASS


def _key(name: str, namespace: str) -> bytes:
    return f"{namespace}/parts/{name}".encode()
