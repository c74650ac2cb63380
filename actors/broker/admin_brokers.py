"""Administration of brokers and bundles: who owns what, how busy everybody is, giving away, splitting, draining.

``BrokerAdmin`` answers on any broker and asks the one that is concerned; ``BrokerDuties`` is what that one does.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from actors.broker.bundle_changes import BundleChanges
from actors.broker.bundles import Bundle, boundaries, bundle_names, range_name, range_of
from actors.broker.catalog import Catalog
from actors.broker.leader import BrokerApi, Leader
from actors.broker.load_report import read_loads
from actors.broker.namespace_records import probe_of
from actors.broker.ownership import Ownership
from actors.broker.session_guard import needs_session
from heliograph.errors import BadRequestError, NotFoundError, ServiceNotReadyError
from metadata import codec, paths
from metadata.errors import NoNodeError
from metadata.model import BrokerRegistration, BundleOwner
from metadata.store import MetadataStore

ASKED_AT_ONCE_MAX = 16  # bundles of one namespace being unloaded

Json = dict[str, Any]


class BrokerDuties:
    """What this broker does when another one, or an operator through it, asks."""

    def __init__(self, ownership: Ownership, leader: Leader, changes: BundleChanges) -> None:
        self._ownership = ownership
        self._leader = leader
        self._changes = changes
        self._methods: dict[str, Callable[..., Awaitable[Any]]] = {
            "assign_bundle": self._assign,
            "unload_bundle": self._changes.unload,
            "split_bundle": self._split,
            "set_draining": self._set_draining,
        }

    async def run(self, method: str, arguments: Json) -> Any:
        """Run one of the methods by name.

        Raises:
            BadRequestError: there is no such method, which only a broker of another version would ask for.
        """
        return await run_method(self._methods, method, arguments)

    async def _assign(self, path: str) -> str | None:
        if not self._leader.is_leader:
            raise ServiceNotReadyError("this broker does not lead")
        return await self._leader.assign(path, {broker.broker_id: broker for broker in await self._ownership.brokers()})

    async def _split(self, namespace: str, name: str, at: int | None) -> list[str]:
        return list(await self._changes.split(namespace, name, at))

    async def _set_draining(self, is_draining: bool) -> int:
        await self._ownership.set_draining(is_draining)
        return await self._changes.unload_all() if is_draining else 0


class BrokerAdmin:
    """The same on every broker."""

    def __init__(
        self,
        store: MetadataStore,
        catalog: Catalog,
        ownership: Ownership,
        leader: Leader,
        duties: BrokerDuties,
        peer: Callable[[str], BrokerApi] | None,
    ) -> None:
        self._store = store
        self._catalog = catalog
        self._ownership = ownership
        self._leader = leader
        self._duties = duties
        self._peer = peer
        self._methods: dict[str, Callable[..., Awaitable[Any]]] = {
            "list": self.list,
            "loads": self.loads,
            "bundles": self.bundles,
            "unload_bundle": self.unload_bundle,
            "unload_namespace": self.unload_namespace,
            "split_bundle": self.split_bundle,
            "drain": self.drain,
            "undrain": self.undrain,
        }

    async def run(self, method: str, arguments: Json) -> Any:
        """Run one of the methods by name.

        Raises:
            BadRequestError: there is no such method, or it takes other arguments.
        """
        return await run_method(self._methods, method, arguments)

    async def list(self) -> Sequence[Json]:
        """Every live broker: its id, addresses, whether it leads, whether it drains."""
        with needs_session():
            leader = await self._leader.leader_id()
            return [
                {
                    "broker_id": broker.broker_id,
                    "service_url": broker.service_url,
                    "service_url_tls": broker.service_url_tls,
                    "actor_name": broker.actor_name,
                    "started_ms": broker.started_ms,
                    "is_leader": broker.broker_id == leader,
                    "is_draining": broker.is_draining,
                }
                for broker in sorted(await self._ownership.brokers(), key=lambda broker: broker.broker_id)
            ]

    async def loads(self) -> Sequence[Json]:
        """The load report of each broker, with its busiest bundles; see ``BrokerLoad``."""
        with needs_session():
            return [asdict(report) for _, report in sorted((await read_loads(self._store)).items())]

    async def bundles(self, namespace: str) -> Json:
        """The namespace's ``boundaries``, and its ``bundles``: name, owner (None: nobody needs it now), load.

        Raises:
            NamespaceNotFoundError.
        """
        name = probe_of(namespace)
        policies = await self._catalog.policies(name)
        with needs_session():
            loads = {
                bundle.path: (bundle.topics, bundle.messages_per_second, bundle.bytes_per_second)
                for report in (await read_loads(self._store)).values()
                for bundle in report.bundles
            }
            rows = []
            for short in bundle_names(policies):
                path = paths.bundle(name.tenant, name.namespace_name, short)
                topics, messages, size = loads.get(path, (0, 0.0, 0.0))
                owner = await self._owner(path)
                rows.append(
                    {
                        "name": short,
                        "owner": None if owner is None else owner.broker_id,
                        "topics": topics,
                        "messages_per_second": messages,
                        "bytes_per_second": size,
                    }
                )
        cuts = [f"0x{min(place, 0xFFFFFFFF):08x}" for place in boundaries(policies)]
        return {"boundaries": cuts, "bundles": rows}

    async def unload_bundle(self, namespace: str, bundle: str) -> bool:
        """Have its owner give a bundle away; False when nobody owns it.

        Raises:
            NotFoundError: the namespace has no such bundle.
        """
        name = probe_of(namespace)
        short = range_name(*range_of(bundle))
        if short not in bundle_names(await self._catalog.policies(name)):
            raise NotFoundError(f"{namespace} has no bundle {bundle}", field="bundle")
        path = paths.bundle(name.tenant, name.namespace_name, short)
        with needs_session():
            owner = await self._owner(path)
        if owner is None:
            return False
        return bool(await self._ask(owner.broker_id, owner.actor_name, "unload_bundle", {"path": path}))

    async def unload_namespace(self, namespace: str) -> int:
        """Have all its bundles given away; returns how many were."""
        limit = asyncio.Semaphore(ASKED_AT_ONCE_MAX)

        async def unload(name: str) -> bool:
            async with limit:
                with contextlib.suppress(NotFoundError):  # split in between: the halves count as given away
                    return await self.unload_bundle(namespace, name)
                return False

        names = bundle_names(await self._catalog.policies(probe_of(namespace)))
        return sum(await asyncio.gather(*(unload(name) for name in names)))

    async def split_bundle(self, namespace: str, bundle: str, boundary: str | int | None = None) -> Sequence[str]:
        """Cut a bundle in two at its owner, which goes on serving both halves; returns their names.

        Args:
            boundary: where the second half begins; None: so that half of the loaded topics are on each side.

        Raises:
            NotFoundError: there is no such bundle.
            BadRequestError: the boundary is not inside of it.
        """
        name = probe_of(namespace)
        low, high = range_of(bundle)
        found = await self._catalog.namespace_of(name)
        if range_name(low, high) not in bundle_names(found.record):
            raise NotFoundError(f"{namespace} has no bundle {bundle}", field="bundle")
        arguments = {"namespace": namespace, "name": range_name(low, high), "at": _place(boundary)}
        path = paths.bundle(name.tenant, name.namespace_name, range_name(low, high))
        with needs_session():
            owner = await self._owner(path)
        if owner is None:  # nobody serves it: it becomes ours, as it would at the first lookup
            node = paths.namespace(name.tenant, name.namespace_name)
            await self._ownership.take(Bundle(path, node, found.version))
            halves: Sequence[str] = await self._duties.run("split_bundle", arguments)
        else:
            halves = await self._ask(owner.broker_id, owner.actor_name, "split_bundle", arguments)
        return halves

    async def drain(self, broker_id: str) -> int:
        """Have a broker give all its bundles away and take no more; returns how many it gave.

        Raises:
            NotFoundError: no live broker of that id.
        """
        return int(await self._set_draining(broker_id, True))

    async def undrain(self, broker_id: str) -> None:
        """Let a broker take bundles again; raises as ``drain``."""
        await self._set_draining(broker_id, False)

    async def _set_draining(self, broker_id: str, is_draining: bool) -> Any:
        with needs_session():
            live = {broker.broker_id: broker for broker in await self._ownership.brokers()}
        broker: BrokerRegistration | None = live.get(broker_id)
        if broker is None:
            raise NotFoundError(f"there is no live broker {broker_id}", field="broker", limit=", ".join(sorted(live)))
        return await self._ask(broker_id, broker.actor_name, "set_draining", {"is_draining": is_draining})

    async def _owner(self, path: str) -> BundleOwner | None:
        try:
            value, _ = await self._store.get(path)
        except NoNodeError:
            return None
        return codec.decode(BundleOwner, value)

    async def _ask(self, broker_id: str, actor_name: str, method: str, arguments: Json) -> Any:
        if broker_id == self._ownership.registration.broker_id:
            return await self._duties.run(method, arguments)
        if self._peer is None:
            raise ServiceNotReadyError(f"{broker_id} has to be asked, and there is no way to it from here")
        return await self._peer(actor_name).asked(method, arguments)


async def run_method(methods: Mapping[str, Callable[..., Awaitable[Any]]], method: str, arguments: Json) -> Any:
    """Call one of several methods by its name.

    Raises:
        BadRequestError: there is no such method, or it takes other arguments.
    """
    found = methods.get(method)
    if found is None:
        raise BadRequestError(f"there is no {method}", field="method", limit=", ".join(sorted(methods)))
    try:
        inspect.signature(found).bind(**arguments)
    except TypeError as error:
        raise BadRequestError(f"{method}: {error}", field="arguments") from error
    return await found(**arguments)


def _place(boundary: str | int | None) -> int | None:
    if boundary is None or isinstance(boundary, int):
        return boundary
    try:
        return int(boundary, 0)
    except ValueError:
        raise BadRequestError(f"{boundary!r} is no place", field="boundary", limit="such as 0x60000000") from None
