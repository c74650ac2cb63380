"""The operations on brokers and bundles: ownership, load, unloading, splitting, draining.

``BrokerAdminService`` answers on any broker and asks the broker that is concerned, which runs its ``BrokerDuties``.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, fields, is_dataclass
from typing import Any

from typing_extensions import override

from heliograph.actors.broker.admin.stored_message import followed_here
from heliograph.actors.broker.balance.bundle_changes import BundleChanges
from heliograph.actors.broker.balance.leader import BrokerApi, Leader
from heliograph.actors.broker.balance.load_report import read_loads
from heliograph.actors.broker.broker_context import BrokerContext
from heliograph.actors.broker.namespaces.bundles import (
    Bundle,
    boundaries,
    bundle_names,
    has_bundle,
    range_name,
    range_of,
)
from heliograph.actors.broker.namespaces.catalog import Catalog
from heliograph.actors.broker.namespaces.ownership import Ownership
from heliograph.actors.broker.namespaces.records import probe_of
from heliograph.actors.broker.namespaces.session_guard import needs_session
from heliograph.actors.broker.topic.series import TopicSeries
from heliograph.base.completion import all_ended
from heliograph.base.errors import BadRequestError, HeliographError, NotFoundError, ServiceNotReadyError
from heliograph.metadata import codec, paths
from heliograph.metadata.errors import NoNodeError
from heliograph.metadata.model import BrokerRegistration, BundleOwner
from heliograph.metadata.store import MetadataStore
from heliograph.operations.brokers import BrokerOperations

ASKED_AT_ONCE_MAX = 16  # bundles of one namespace that are being unloaded
TOPICS_BETWEEN_TURNS = 1_000  # that are named in one turn of the loop
NAMED_MAX = 10  # brokers or topics that an error names  # I15

Json = dict[str, Any]


class BrokerDuties:
    """Operations that this broker carries out itself for another broker or an operator."""

    def __init__(self, context: BrokerContext, leader: Leader, changes: BundleChanges) -> None:
        self._context = context
        self._topics = context.topics
        self._ownership = context.ownership
        self._leader = leader
        self._changes = changes
        self._series = TopicSeries()
        self._methods: dict[str, Callable[..., Awaitable[Any]]] = {
            "assign_bundle": self._assign,
            "unload_bundle": self._changes.unload,
            "split_bundle": self._split,
            "set_draining": self._set_draining,
            "owned": self._owned,
            "topics": self._loaded,
            "configuration": self._configuration,
            "check_quotas": self._check_quotas,
            "metrics": self._metrics,
            "audit": self._audit,
            "followed": self._followed,
            "history": self._history,
        }

    async def run(self, method: str, arguments: Json) -> Any:
        """Run a duty by its name.

        Raises:
            BadRequestError: there is no such duty, or it takes other arguments. Only a broker of another version asks
                for it.
        """
        duty = self._methods.get(method)
        if duty is None:
            raise BadRequestError(f"there is no {method}", field="method", limit=", ".join(sorted(self._methods)))
        try:
            inspect.signature(duty).bind(**arguments)
        except TypeError as error:
            raise BadRequestError(f"{method}: {error}", field="arguments") from error
        return await duty(**arguments)

    async def _followed(self, trace_id: str) -> list[Json]:
        return followed_here(trace_id)

    async def _assign(self, path: str) -> str | None:
        if not self._leader.is_leader:
            raise ServiceNotReadyError("this broker does not lead")
        return await self._leader.assign(path, {broker.broker_id: broker for broker in await self._ownership.brokers()})

    async def _split(self, namespace: str, name: str, at: int | None) -> list[str]:
        return list(await self._changes.split(namespace, name, at))

    async def _set_draining(self, is_draining: bool) -> int:
        await self._ownership.set_draining(is_draining)
        return await self._changes.unload_all() if is_draining else 0

    async def _owned(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for path in sorted(self._ownership.owned):
            parent = path.rpartition("/")[0]
            namespace = f"{paths.last_part(parent.rpartition('/')[0])}/{paths.last_part(parent)}"
            found.setdefault(namespace, []).append(paths.last_part(path))
        return found

    async def _loaded(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for number, topic in enumerate(self._topics.loaded):
            if number % TOPICS_BETWEEN_TURNS == 0:
                await asyncio.sleep(0)
            found[str(topic.name)] = paths.last_part(topic.bundle)
        return found

    async def _metrics(self) -> dict[str, Any]:
        rows, hidden = await self._series.rows(self._topics.loaded, self._context.config.watched)
        return {"series": rows, "topics_hidden": hidden}

    async def _audit(self) -> dict[str, Any]:
        audit = self._context.audit
        return {"is_kept": audit.is_enabled, "lines": list(audit.recent)}

    async def _history(self) -> dict[str, Any]:
        return self._topics.history.of_broker()

    async def _configuration(self) -> dict[str, str]:
        return shown_settings(self._context.config)

    async def _check_quotas(self) -> int:
        checked, failed = 0, dict[str, BaseException]()
        for topic in self._topics.loaded:
            if topic.is_open:
                try:
                    await topic.admission.check_quota()
                    checked += 1
                except HeliographError as error:
                    failed[str(topic.name)] = error
        _require_checked(checked, failed)
        return checked


class BrokerAdminService(BrokerOperations):
    """The operations on brokers and bundles, the same on every broker."""

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

    @override
    async def list(self) -> tuple[Json, ...]:
        with needs_session():
            leader = await self._leader.leader_id()
            return tuple(
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
            )

    @override
    async def loads(self) -> tuple[Json, ...]:
        with needs_session():
            return tuple(asdict(report) for _, report in sorted((await read_loads(self._store)).items()))

    @override
    async def bundles(self, namespace: str) -> Json:
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

    @override
    async def unload_bundle(self, namespace: str, bundle: str) -> bool:
        name = probe_of(namespace)
        short = range_name(*range_of(bundle))
        if not has_bundle(await self._catalog.policies(name), short):
            raise NotFoundError(f"{namespace} has no bundle {bundle}", field="bundle")
        path = paths.bundle(name.tenant, name.namespace_name, short)
        with needs_session():
            owner = await self._owner(path)
        if owner is None:
            return False
        return bool(await self._ask(owner.broker_id, owner.actor_name, "unload_bundle", {"path": path}))

    @override
    async def unload_namespace(self, namespace: str) -> int:
        limit = asyncio.Semaphore(ASKED_AT_ONCE_MAX)

        async def unload(name: str) -> bool:
            async with limit:
                with contextlib.suppress(NotFoundError):  # it was split meanwhile; its owner serves the halves
                    return await self.unload_bundle(namespace, name)
                return False

        names = bundle_names(await self._catalog.policies(probe_of(namespace)))
        return sum(await all_ended(unload(name) for name in names))

    @override
    async def split_bundle(self, namespace: str, bundle: str, boundary: str | int | None = None) -> tuple[str, ...]:
        name = probe_of(namespace)
        low, high = range_of(bundle)
        found = await self._catalog.namespace_of(name)
        if not has_bundle(found.record, bundle):
            raise NotFoundError(f"{namespace} has no bundle {bundle}", field="bundle")
        arguments = {"namespace": namespace, "name": range_name(low, high), "at": _hash_of(boundary)}
        path = paths.bundle(name.tenant, name.namespace_name, range_name(low, high))
        with needs_session():
            owner = await self._owner(path)
        if owner is None:  # unowned: take it, as the first lookup would
            node = paths.namespace(name.tenant, name.namespace_name)
            await self._ownership.take(Bundle(path, node, found.version))
            halves = await self._duties.run("split_bundle", arguments)
        else:
            halves = await self._ask(owner.broker_id, owner.actor_name, "split_bundle", arguments)
        return tuple(halves)

    @override
    async def owned(self, broker_id: str) -> dict[str, tuple[str, ...]]:
        found = await self._ask_live(broker_id, "owned", {})
        return {namespace: tuple(names) for namespace, names in found.items()}

    @override
    async def topics(self, broker_id: str) -> dict[str, str]:
        return dict(await self._ask_live(broker_id, "topics", {}))

    @override
    async def configuration(self, broker_id: str) -> dict[str, str]:
        return dict(await self._ask_live(broker_id, "configuration", {}))

    @override
    async def followed(self, trace_id: str) -> tuple[Json, ...]:
        ours: tuple[Json, ...] = tuple(await self._duties.run("followed", {"trace_id": trace_id}))
        with needs_session():
            live = await self._ownership.brokers()

        async def asked(broker: BrokerRegistration) -> tuple[Json, ...]:
            with contextlib.suppress(BadRequestError, ServiceNotReadyError):  # of another version, or it has just died
                return tuple(await self._ask(broker.broker_id, broker.actor_name, "followed", {"trace_id": trace_id}))
            return ()

        us = self._ownership.registration.broker_id
        found = await asyncio.gather(*(asked(broker) for broker in live if broker.broker_id != us))
        return sum(found, start=ours)

    @override
    async def check_quotas(self) -> int:
        with needs_session():
            live = await self._ownership.brokers()
        asked = [self._ask(broker.broker_id, broker.actor_name, "check_quotas", {}) for broker in live]
        outcomes = await asyncio.gather(*asked, return_exceptions=True)
        checked: int = sum(one for one in outcomes if not isinstance(one, BaseException))
        ids = [broker.broker_id for broker in live]
        _require_checked(checked, {at: one for at, one in zip(ids, outcomes, strict=True) if not isinstance(one, int)})
        return checked

    @override
    async def drain(self, broker_id: str) -> int:
        return int(await self._set_draining(broker_id, True))

    @override
    async def undrain(self, broker_id: str) -> None:
        await self._set_draining(broker_id, False)

    async def _set_draining(self, broker_id: str, is_draining: bool) -> Any:
        return await self._ask_live(broker_id, "set_draining", {"is_draining": is_draining})

    async def _ask_live(self, broker_id: str, method: str, arguments: Json) -> Any:
        with needs_session():
            live = {broker.broker_id: broker for broker in await self._ownership.brokers()}
        broker: BrokerRegistration | None = live.get(broker_id)
        if broker is None:
            raise NotFoundError(f"there is no live broker {broker_id}", field="broker", limit=", ".join(sorted(live)))
        return await self._ask(broker_id, broker.actor_name, method, arguments)

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
            raise ServiceNotReadyError(f"{broker_id} has to be asked, and this broker cannot reach it")
        return await self._peer(actor_name).asked(method, arguments)


def _require_checked(checked: int, failed: Mapping[str, BaseException]) -> None:
    """Check that no check of quotas failed, after all of them were tried.

    Raises:
        ServiceNotReadyError: some did; names them, with the first reason.
    """
    for error in failed.values():
        if not isinstance(error, HeliographError):
            raise error
        names = ", ".join(list(failed)[:NAMED_MAX])
        raise ServiceNotReadyError(f"{checked} topics were checked, and not all of {names}: {error}") from error


def _hash_of(boundary: str | int | None) -> int | None:
    if boundary is None or isinstance(boundary, int):
        return boundary
    try:
        return int(boundary, 0)
    except ValueError:
        raise BadRequestError(f"{boundary!r} is no boundary", field="boundary", limit="such as 0x60000000") from None


def shown_settings(config: Any, before: str = "") -> dict[str, str]:
    """Return the fields of a configuration as text, nested ones as ``part.field``. Secrets are left out."""
    shown: dict[str, str] = {}
    for each in fields(config):
        value = getattr(config, each.name)
        if not each.repr:
            continue
        if is_dataclass(value):
            shown |= shown_settings(value, f"{before}{each.name}.")
        elif isinstance(value, bool):
            shown[before + each.name] = str(value).lower()
        else:
            shown[before + each.name] = "" if value is None else str(value)
    return shown
