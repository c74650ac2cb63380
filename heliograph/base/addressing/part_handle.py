"""Handles of parts by name, and the descriptions of the parts that share a process.

A part that shares a process has no actor. What it is made of is in the key-value store of Ray's GCS, where the actor of
the shared process reads it whenever Ray starts it, so a part lasts exactly as long as an actor would. Ray is imported
when a function needs it.
"""

from __future__ import annotations

from typing import Any

SHARED_PROCESS = "shared-process"  # name of the actor
_SPACE = b"heliograph"  # of keys


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
        """Call the method, and return the reference of its answer, as a method of an actor does."""
        return self._process.call.remote(self._part, self._method, arguments, options)


def find_part(name: str, namespace: str) -> Any:
    """Return the handle of a part.

    Raises:
        ValueError: Ray knows no such part.
    """
    import ray

    try:
        return ray.get_actor(name, namespace=namespace)
    except ValueError:
        process = find_shared_process(namespace)
        if process is None or description(name, namespace) is None:
            raise
        return SharedPart(process, name, namespace)


def find_shared_process(namespace: str) -> Any | None:
    """Return the actor of the process that parts share; None if there is none."""
    import ray

    try:
        return ray.get_actor(SHARED_PROCESS, namespace=namespace)
    except ValueError:
        return None


def part_names(namespace: str) -> set[str]:
    """Return the names of all parts that run or are started again, whether they serve or not."""
    import ray.util

    listed = ray.util.list_named_actors(all_namespaces=True)
    names = {entry["name"] for entry in listed if entry["namespace"] == namespace}
    if SHARED_PROCESS not in names:
        return names
    return (names - {SHARED_PROCESS}) | described(namespace)


def shared_parts(namespace: str) -> set[str]:
    """Return the names of the parts that share a process."""
    return set() if find_shared_process(namespace) is None else described(namespace)


def described(namespace: str) -> set[str]:
    """Return the names of the parts that are described for the shared process."""
    keys = _store()._internal_kv_list(_key("", namespace), namespace=_SPACE)
    return {key.decode().rpartition("/")[2] for key in keys}


def description(name: str, namespace: str) -> bytes | None:
    """Return what a part of the shared process is made of; None if there is no such part."""
    found: bytes | None = _store()._internal_kv_get(_key(name, namespace), namespace=_SPACE)
    return found


def describe(name: str, namespace: str, made_of: bytes) -> None:
    """Have the shared process make a part at each of its starts."""
    _store()._internal_kv_put(_key(name, namespace), made_of, overwrite=True, namespace=_SPACE)


def forget(name: str, namespace: str) -> None:
    """Have the shared process make a part no more."""
    _store()._internal_kv_del(_key(name, namespace), namespace=_SPACE)


def _key(name: str, namespace: str) -> bytes:
    return f"{namespace}/parts/{name}".encode()


def _store() -> Any:
    from ray.experimental import internal_kv

    return internal_kv
