"""Administration of brokers and bundles: ``admin.brokers``."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from heliograph.admin_schemas import Call

Answer = dict[str, Any]


class Brokers:
    """The async form. Bundles are named by their range, such as ``0x40000000_0x80000000``.

    Args:
        call: runs a method of the brokers' admin interface.
    """

    def __init__(self, call: Call) -> None:
        self._call = call

    async def list(self) -> tuple[Answer, ...]:
        """Every live broker: ``broker_id``, ``service_url``, ``service_url_tls``, ``is_leader``, ``is_draining``."""
        return tuple(await self._run("list"))

    async def loads(self) -> tuple[Answer, ...]:
        """The load report of each broker: shares of processor and memory, flows, its busiest bundles."""
        return tuple(await self._run("loads"))

    async def bundles(self, namespace: str) -> Answer:
        """``boundaries`` of a namespace's bundles, and of each its ``name``, ``owner`` and load.

        Raises:
            NamespaceNotFoundError.
        """
        return dict(await self._run("bundles", namespace=namespace))

    async def unload_bundle(self, namespace: str, bundle: str) -> bool:
        """Have its owner give a bundle away: clients look its topics up again. False when nobody owns it.

        Raises:
            NotFoundError: there is no such bundle.
        """
        return bool(await self._run("unload_bundle", namespace=namespace, bundle=bundle))

    async def unload_namespace(self, namespace: str) -> int:
        """Have all bundles of a namespace given away; returns how many were."""
        return int(await self._run("unload_namespace", namespace=namespace))

    async def split_bundle(self, namespace: str, bundle: str, boundary: str | int | None = None) -> tuple[str, ...]:
        """Cut a bundle in two; no client notices. Returns the names of the halves.

        Args:
            boundary: where the second half begins; None: between the topics, half of them on each side.

        Raises:
            NotFoundError: there is no such bundle.
            BadRequestError: the boundary is not inside of it.
        """
        return tuple(await self._run("split_bundle", namespace=namespace, bundle=bundle, boundary=boundary))

    async def drain(self, broker_id: str) -> int:
        """Have a broker give all its bundles away and take no more; returns how many it gave.

        Raises:
            NotFoundError: no live broker of that id.
        """
        return int(await self._run("drain", broker_id=broker_id))

    async def undrain(self, broker_id: str) -> None:
        """Let a broker take bundles again; raises as ``drain``."""
        await self._run("undrain", broker_id=broker_id)

    async def _run(self, method: str, **arguments: Any) -> Any:
        return await self._call("administer_brokers", method, arguments)


class BrokersSync:
    """The blocking form: the same methods, each run to its end."""

    def __init__(self, brokers: Brokers, run: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        self._brokers = brokers
        self._run = run

    def list(self) -> tuple[Answer, ...]:
        """As ``Brokers.list``."""
        return tuple(self._run(self._brokers.list()))

    def loads(self) -> tuple[Answer, ...]:
        """As ``Brokers.loads``."""
        return tuple(self._run(self._brokers.loads()))

    def bundles(self, namespace: str) -> Answer:
        """As ``Brokers.bundles``."""
        return dict(self._run(self._brokers.bundles(namespace)))

    def unload_bundle(self, namespace: str, bundle: str) -> bool:
        """As ``Brokers.unload_bundle``."""
        return bool(self._run(self._brokers.unload_bundle(namespace, bundle)))

    def unload_namespace(self, namespace: str) -> int:
        """As ``Brokers.unload_namespace``."""
        return int(self._run(self._brokers.unload_namespace(namespace)))

    def split_bundle(self, namespace: str, bundle: str, boundary: str | int | None = None) -> tuple[str, ...]:
        """As ``Brokers.split_bundle``."""
        return tuple(self._run(self._brokers.split_bundle(namespace, bundle, boundary)))

    def drain(self, broker_id: str) -> int:
        """As ``Brokers.drain``."""
        return int(self._run(self._brokers.drain(broker_id)))

    def undrain(self, broker_id: str) -> None:
        """As ``Brokers.undrain``."""
        self._run(self._brokers.undrain(broker_id))
