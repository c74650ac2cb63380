"""The administration that every broker serves, the operations of ``heliograph/operations``.

Operations that need a topic's owner are forwarded to it.

All answers are plain data (JSON, and bytes for payloads). A call that raises an error with advice RETRY or REFRESH may
be repeated where the operation is repeatable.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

from typing_extensions import override

from heliograph.actors.broker.admin.bookies import BookieAdminService
from heliograph.actors.broker.admin.brokers import BrokerAdminService, BrokerDuties
from heliograph.actors.broker.admin.cursors import CursorAdminService
from heliograph.actors.broker.admin.forwarding import OwnerCalls, PeerOf
from heliograph.actors.broker.admin.namespaces import NamespaceAdminService
from heliograph.actors.broker.admin.permissions import PermissionAdminService
from heliograph.actors.broker.admin.read_access import read_access
from heliograph.actors.broker.admin.records import stored_record
from heliograph.actors.broker.admin.schemas import SchemaAdminService
from heliograph.actors.broker.admin.settings import SettingAdminService
from heliograph.actors.broker.admin.stored_message import masked
from heliograph.actors.broker.admin.topics import OwnedTopics
from heliograph.actors.broker.broker_context import BrokerContext
from heliograph.actors.broker.dynamic.live_config import LiveConfig
from heliograph.actors.broker.limits.answers import LISTS, LISTS_AT_ONCE_MAX, SHOWN, SHOWN_AT_ONCE_MAX, turns
from heliograph.actors.broker.listeners import AdvertisedListener, listener_of
from heliograph.actors.broker.namespaces.bundles import bundle_path
from heliograph.actors.broker.namespaces.listing import listed
from heliograph.actors.broker.namespaces.session_guard import needs_session
from heliograph.actors.broker.namespaces.topic_properties import TopicProperties
from heliograph.actors.broker.records.ledgers import LedgersPort
from heliograph.actors.broker.records.properties import changed_properties
from heliograph.actors.broker.subscription.subscription import OWN_PROPERTIES
from heliograph.actors.broker.topic.publishing import PartitionRouter, check_payloads
from heliograph.actors.broker.topic.stats import merged_stats
from heliograph.auth.principal import INTERNAL, Principal
from heliograph.base.errors import (
    BadRequestError,
    HeliographError,
    InvalidQuorumError,
    NamespaceNotFoundError,
    PolicyLimitError,
    SubscriptionExistsError,
    TopicBusyError,
    TopicNotFoundError,
)
from heliograph.metadata import paths
from heliograph.metadata.errors import SessionExpiredError
from heliograph.metadata.model import Persistence
from heliograph.metadata.store import MetadataStore
from heliograph.operations.admin import AdminOperations
from heliograph.operations.cursors import MASKED
from heliograph.operations.table import (
    INTEGER_MAX,
    LEDGERS_PAGE_MAX,
    OPERATIONS,
    PARTITIONS_MAX,
    TOPICS_LISTED_MAX,
    Right,
    Scope,
)
from heliograph.protocol.topic_name import DOMAINS, TopicName
from heliograph.tracing.context import TRACEPARENT

Json = dict[str, Any]
READS_PER_SECOND_MAX = 200  # of records while deletions are looked for that did not end
FINISH_SECONDS_MAX = 600.0  # of one such deletion, in which others wait
MASKABLE = frozenset(f"cursors.{name}" for name in ("peek", "examine", "message", "find"))

log = logging.getLogger(__name__)


class AdminService(AdminOperations):
    """The operations on topics, and the services of the other groups.

    Operations that are not overridden here run at the topic's owner.

    Args:
        peer: finds another broker by its actor name.
    """

    def __init__(
        self,
        context: BrokerContext,
        store: MetadataStore,
        ledgers: LedgersPort,
        brokers: BrokerAdminService,
        duties: BrokerDuties,
        live: LiveConfig,
        peer: PeerOf | None = None,
    ) -> None:
        self._context = context
        self._catalog = context.catalog
        self._properties = TopicProperties(context.catalog, store)
        self._store = store
        self._ledgers = ledgers
        self._duties = duties
        self._router = PartitionRouter()
        self._unfinished: set[str] = set()  # deletions that the latest look for them found
        self._owned = OwnedTopics(context, store, ledgers)
        self._owners = OwnerCalls(context, self._owned, peer)
        self.call = self._owners.call
        self._turns = turns([f"cursors.{name}" for name in SHOWN], SHOWN_AT_ONCE_MAX) | turns(LISTS, LISTS_AT_ONCE_MAX)
        self.brokers: BrokerAdminService = brokers
        self.namespaces: NamespaceAdminService = NamespaceAdminService(
            store, context.catalog, ledgers.placements, self.delete_topic, ledgers.shortage
        )
        self.bookies: BookieAdminService = BookieAdminService(store)
        self.settings: SettingAdminService = SettingAdminService(live)
        self.schemas: SchemaAdminService = SchemaAdminService(context)
        self.permissions: PermissionAdminService = PermissionAdminService(
            store, context.catalog, is_enforced=context.config.auth.enabled
        )
        self.cursors: CursorAdminService = CursorAdminService(self._owners, context.catalog)

    async def run(self, name: str, arguments: Json, principal: Principal = INTERNAL, peer: str = "") -> Any:
        """Run an operation by its name in the table, if the caller has the right that its entry asks for.

        Args:
            peer: address of the caller, for the audit log.

        Raises:
            NotPermittedError: the caller does not have it; nothing was done.
            BadRequestError: there is no such operation, or an argument is unknown, of another type or out of bounds.
        """
        operation = OPERATIONS.get(name)
        if operation is None:
            raise BadRequestError(f"there is no operation {name}", field="operation", limit=", ".join(OPERATIONS))
        try:
            bound = operation.bind(**arguments)
        except TypeError as error:
            raise BadRequestError(f"{name}: {error}", field="arguments") from error
        operation.check(bound)
        began, failure = time.monotonic(), None
        try:
            await self._context.authorizer.check_operation(principal, operation, bound)
            is_masked = name in MASKABLE and await self._is_masked(bound, principal)
            async with self._turns.get(name) or contextlib.nullcontext():
                found = await attrgetter(name)(self)(**bound)
            return [masked(one) for one in found] if is_masked else found
        except BaseException as error:
            failure = error
            raise
        finally:
            seconds = time.monotonic() - began
            self._context.audit.operation(principal, operation, bound, failure, peer=peer, seconds=seconds)

    async def _is_masked(self, bound: Json, principal: Principal) -> bool:
        """Return whether a policy hides the contents of a topic's messages from the caller.

        Raises:
            PolicyLimitError: the caller looks for a value that it is not shown.
        """
        if await self._context.authorizer.permits(principal, Right.SUPERUSER, Scope.CLUSTER, ""):
            return False
        topic = TopicName.parse(bound["topic"])
        catalog = self._context.catalog
        own = (await catalog.topic_policies(topic)).overrides
        if not own.get("payloads_masked", (await catalog.policies(topic)).payloads_masked):
            return False
        if bound.get("property_name", TRACEPARENT) != TRACEPARENT:
            raise PolicyLimitError(f"values of properties of {topic} are {MASKED}", field="payloads_masked")
        return "property_name" not in bound

    async def forwarded(self, method: str, arguments: Json) -> Any:
        """Run a method for another broker; see ``AdminApi``."""
        return await self._owners.run_here(method, arguments)

    async def asked(self, method: str, arguments: Json) -> Any:
        """Run a duty for another broker; see ``AdminApi``."""
        return await self._duties.run(method, arguments)

    # -- topics

    @override
    async def lookup(self, topic: str, listener: str = "") -> dict[str, str]:
        owner = await self._context.ownership.resolve(TopicName.parse(topic))
        addresses = AdvertisedListener(owner.service_url, owner.service_url_tls)
        if listener:
            addresses = listener_of(owner.listeners, listener, owner.broker_id)
        return {
            "broker_id": owner.broker_id,
            "service_url": addresses.url,
            "service_url_tls": addresses.url_tls,
            "actor_name": owner.actor_name,
        }

    @override
    async def bundle_of(self, topic: str) -> str:
        name = TopicName.parse(topic)
        return paths.last_part(bundle_path(name, await self._catalog.policies(name)))

    @override
    async def create_topic(
        self,
        topic: str,
        partitions: int = 0,
        persistence: Mapping[str, int] | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        attached = changed_properties({}, properties) if properties else {}
        name = TopicName.parse(topic)
        _check_partitions(partitions, 0)
        if name.partition >= 0:
            await self._check_partition(name, partitions)
        known = await self._catalog.namespace_and_partitions(name)
        numbers = _persistence(persistence, known[0].record.persistence)
        if name.is_persistent:
            await self._check_bookies(numbers.ack_quorum)
        await self._catalog.create(name, partitions, numbers if persistence else None, attached, known)

    async def _check_bookies(self, copies: int) -> None:
        with needs_session():
            if (error := await self._ledgers.shortage(copies)) is None:
                return
            # Watches may tell late of a bookie that has come, and one that failed a moment ago may be back.
            bookies = len(await self._store.children(paths.BOOKIES_AVAILABLE))
        if bookies < copies:
            error.field, error.limit = "ack_quorum", f"{bookies} bookies"
            raise error

    async def _check_partition(self, name: TopicName, partitions: int) -> None:
        if partitions:
            raise BadRequestError("a partition cannot have partitions", field="partitions")
        whole = name.partitioned_name
        if name.partition >= await self._catalog.partitions(TopicName.parse(whole)):
            raise BadRequestError(
                f"{name} is the name of a partition: create {whole} with partitions, or choose a name that does not "
                "end in -partition- and a number",
                field="topic",
            )

    @override
    async def topic_properties(self, topic: str) -> dict[str, str]:
        return await self._properties.of(TopicName.parse(topic))

    @override
    async def update_topic_properties(self, topic: str, properties: Mapping[str, str]) -> None:
        await self._change_properties(topic, changed_properties({}, properties))

    @override
    async def remove_topic_properties(self, topic: str, names: Sequence[str]) -> None:
        await self._change_properties(topic, dict.fromkeys(names))

    async def _change_properties(self, topic: str, changes: Mapping[str, str | None]) -> None:
        name = TopicName.parse(topic)
        if not name.is_persistent or await self._catalog.partitions(name):
            await self._properties.change(name, changes)
        else:
            await self._owners.at(name, "change_properties", changes=dict(changes))

    @override
    async def topic_record(self, topic: str) -> Json:
        return await stored_record(self._store, TopicName.parse(topic))

    @override
    async def trim_topic(self, topic: str) -> int:
        return sum((await self._owners.at_each("trim_topic", topic)).values())

    @override
    async def truncate_topic(self, topic: str) -> int:
        return sum((await self._owners.at_each("truncate_topic", topic)).values())

    @override
    async def delete_topic(self, topic: str, force: bool = False) -> None:
        name = TopicName.parse(topic)
        whole = await self._catalog.partitioned(name)
        if whole is None:
            await self._owners.at(name, "delete_topic", force=force)
            if name.partition < 0:
                await self.forget_topic(name)
            return
        force = force or whole.is_deleting  # by a deletion that did not finish
        if force:  # first, or connected clients would create its partitions again
            await self._catalog.mark_deleting(name)
        for partition in await self._catalog.partitions_left(name):
            with contextlib.suppress(TopicNotFoundError):
                await self._owners.at(partition, "delete_topic", force=force)
        if not await self.forget_without_partitions(name):
            raise TopicBusyError(f"a partition of {name} is used again: try again, or force it", field="topic")

    async def forget_without_partitions(self, name: TopicName) -> bool:
        """Delete a partitioned topic without partitions, so that its name is free. Return False if it has one.

        Args:
            name: of the topic, or of a partition.
        """
        name = TopicName.parse(name.partitioned_name)
        if not await self._catalog.mark_deleting(name, if_empty=True):
            return await self._catalog.partitioned(name) is None  # another broker finished
        await self.forget_topic(name)
        await self._catalog.forget_partitioned(name)  # last: until then any broker can go on
        return True

    async def finish_deletions(self) -> None:
        """Finish the deletions of namespaces and partitioned topics that a broker which is gone began.

        A deletion under way has until the next call to end: two brokers that finish it could delete what is created
        under its name as soon as one of them is done.
        """
        marked: set[str] = set()
        for namespace in await self.namespaces.list():
            with contextlib.suppress(NamespaceNotFoundError):
                if await self.namespaces.is_being_deleted(namespace):
                    marked.add(namespace)
                async for topic in self._catalog.all_partitioned(*namespace.split("/")):
                    await asyncio.sleep(1 / READS_PER_SECOND_MAX)
                    record = await self._catalog.partitioned(topic)
                    if record is not None and record.is_deleting:
                        marked.add(str(topic))
        due, self._unfinished = sorted(marked & self._unfinished), marked
        for name in due:
            try:
                async with asyncio.timeout(FINISH_SECONDS_MAX):
                    await (self.delete_topic(name) if "://" in name else self.namespaces.finish_deletion(name))
            except SessionExpiredError:
                raise
            except (HeliographError, TimeoutError) as error:
                log.warning("the deletion of %s is not finished: %s", name, error or "it takes too long")

    async def forget_topic(self, name: TopicName) -> None:
        """Delete the schemas, policies and grants of a deleted topic; its partitions have none of their own."""
        await self._context.schemas.forget(name)
        await self._catalog.forget_topic_policies(name)
        await self.permissions.forget(name)

    @override
    async def list_topics(
        self, namespace: str = "public/default", after: str = "", limit: int = 0, prefix: str = "", domain: str = ""
    ) -> list[Json]:
        tenant, separator, rest = namespace.partition("/")
        if not separator or not tenant or not rest or "/" in rest:
            raise BadRequestError(f"{namespace!r} is no tenant/namespace", field="namespace")
        if domain not in ("", *DOMAINS):
            raise BadRequestError(f"there is no domain {domain!r:.80}", field="domain", limit=", ".join(DOMAINS))
        if after:
            last = TopicName.parse(after)
            if last.partition >= 0 and await self._catalog.partitions(whole := TopicName.parse(last.partitioned_name)):
                last = whole  # which is listed once, and whose partitions are not
            after = str(last)
        page: list[Json] = []
        for each in (domain,) if domain else sorted(DOMAINS):
            probe = TopicName(each, tenant, rest, "any", -1)
            await self._catalog.policies(probe)
            async for name, partitions in listed(self._catalog, probe, after, prefix):
                if not limit and len(page) == TOPICS_LISTED_MAX:  # I15
                    raise BadRequestError(
                        f"{namespace} has more topics than one list: ask for pages, by limit and after",
                        field="limit", limit=f"1..{TOPICS_LISTED_MAX} topics",
                    )  # fmt: skip
                page.append({"name": str(name), "partitions": partitions})
                if len(page) == limit:
                    return page
        return page

    @override
    async def partitions(self, topic: str, may_create: bool = False) -> int:
        name = TopicName.parse(topic)
        if may_create:
            return await self._catalog.auto_partitions(name, may_create=True)
        count = await self._catalog.partitions(name)
        if not count and not await self._catalog.exists(name):
            raise TopicNotFoundError(f"there is no topic {name}", field="topic")
        return count

    @override
    async def update_partitions(self, topic: str, partitions: int) -> None:
        name = TopicName.parse(topic)
        _check_partitions(partitions, 1)
        present = await self._catalog.partitions(name)
        if partitions <= present or not present:
            await self._catalog.set_partitions(name, partitions)  # changes nothing, or raises the error that fits
            return
        await self._catalog.create_missing_partitions(name, present, partitions)
        names: set[str] = set()
        for part in name.partitions(present):
            names.update(await self._owners.at(part, "subscriptions", is_lasting=True))
        for part in name.partitions(partitions)[present:]:
            for subscription in sorted(names):
                with contextlib.suppress(SubscriptionExistsError):
                    await self._owners.at(part, "create_subscription", name=subscription, position="earliest")
        await self._catalog.set_partitions(name, partitions)

    @override
    async def create_missing_partitions(self, topic: str) -> int:
        return await self._catalog.create_missing_partitions(TopicName.parse(topic))

    @override
    async def topic_stats(self, topic: str) -> Json:
        name = TopicName.parse(topic)
        partitions = await self._catalog.partitions(name)
        if partitions:
            return merged_stats(await self._owners.at_once("topic_stats", name, partitions))
        stats: Json = await self._owners.at(name, "topic_stats")
        return stats

    @override
    async def topic_internal_stats(self, topic: str) -> Json:
        name = TopicName.parse(topic)
        partitions = await self._catalog.partitions(name)
        if partitions:
            parts = await self._owners.at_once("topic_internal_stats", name, partitions)
            return {"metadata": {"partitions": partitions}, "partitions": parts}
        stats: Json = await self._owners.at(name, "topic_internal_stats")
        return stats

    @override
    async def subscriptions(self, topic: str) -> list[str]:
        return sorted(set().union(*(await self._owners.at_each("subscriptions", topic)).values()))

    @override
    async def create_subscription(
        self, topic: str, name: str, position: str = "latest", properties: Mapping[str, str] | None = None
    ) -> None:
        if not name:
            raise BadRequestError("a subscription needs a name", field="subscription")
        attached = changed_properties({}, properties or {}, OWN_PROPERTIES)
        await self._owners.at_each("create_subscription", topic, name=name, position=position, properties=attached)

    @override
    async def delete_subscription(self, topic: str, name: str, force: bool = False) -> None:
        await self._owners.at_each_that_has_it("delete_subscription", topic, name=name, force=force)

    @override
    async def terminate_topic(self, topic: str) -> dict[str, str]:
        return await self._owners.at_each("terminate_topic", topic)

    @override
    async def topic_history(self, topic: str) -> Json:
        found: list[Json] = list((await self._owners.at_each("topic_history", topic)).values())
        series = [row for told in found for row in told["series"]]
        return {**found[0], "age_seconds": max(told["age_seconds"] for told in found), "series": series}

    @override
    async def compaction_status(self, topic: str) -> Json:
        found: list[Json] = list((await self._owners.at_each("compaction_status", topic)).values())
        order = ("ERROR", "RUNNING", "NOT_RUN", "SUCCESS")
        return min(found, key=lambda status: order.index(status["status"]))

    @override
    async def read_access(self, topic: str, ledger_ids: Sequence[int]) -> Json:
        name = TopicName.parse(topic)
        if await self._catalog.partitions(name):
            raise BadRequestError(f"{name} is partitioned: ask for one of its partitions", field="topic")
        return await read_access(self._store, name, ledger_ids, self._owned.bookies)

    @override
    async def read_plan(
        self, topic: str, first: Mapping[str, int] | None = None, last: Mapping[str, int] | None = None
    ) -> list[Json]:
        name, starts, ends = TopicName.parse(topic), _ledger_ids(first, "first"), _ledger_ids(last, "last")

        def bounds(part: TopicName) -> Json:
            after, last = starts.get(str(part.partition), 0) - 1, ends.get(str(part.partition))
            return {"after": after, "last": last, "rows_max": rows_max}

        rows_max = LEDGERS_PAGE_MAX
        if self._owners.serves(name):
            return [await self._owned.run("read_plan", name, bounds(name))]
        partitions = await self._catalog.partitions(name)
        rows_max = max(1, LEDGERS_PAGE_MAX // max(1, partitions))  # I15: the answer is as large as that of one topic
        return [*(await self._owners.at_once("read_plan", name, partitions, bounds)).values()]

    async def visit_topic(self, topic: str) -> None:
        """Open a topic at its owner, so that its policies are applied; it is closed again when it is idle."""
        await self._owners.at(TopicName.parse(topic), "visit_topic")

    @override
    async def publish(
        self, topic: str, payloads: Sequence[bytes], keys: Sequence[str | None] | None = None
    ) -> list[str]:
        name = TopicName.parse(topic)
        check_payloads(payloads, keys or None, self._context.config.max_message_bytes)
        partitions = await self._catalog.partitions(name)
        ids = [""] * len(payloads)
        for part, places in self._router.route(name, partitions, len(payloads), keys or None):
            answers = await self._owners.at(
                part,
                "publish",
                payloads=[payloads[place] for place in places],
                keys=[keys[place] for place in places] if keys else None,
            )
            for place, answer in zip(places, answers, strict=True):
                ids[place] = answer
        return ids


def _ledger_ids(given: Mapping[str, int] | None, field: str) -> Mapping[str, int]:
    found = given or {}
    if not all(type(one) is int and 0 <= one <= INTEGER_MAX for one in found.values()):
        raise BadRequestError("these are no ledger ids", field=field, limit=f"0 to {INTEGER_MAX}")
    return found


def _check_partitions(partitions: int, least: int) -> None:
    if not isinstance(partitions, int) or not least <= partitions <= PARTITIONS_MAX:
        raise BadRequestError(
            f"{partitions!r} is no number of partitions", field="partitions", limit=f"{least} to {PARTITIONS_MAX}"
        )


def _persistence(wanted: Mapping[str, int] | None, default: Persistence) -> Persistence:
    if not wanted:
        return default
    fields = ("ensemble_size", "write_quorum", "ack_quorum")
    unknown = set(wanted) - set(fields)
    if unknown:
        raise BadRequestError(
            f"persistence has no {sorted(unknown)[0]!r}", field="persistence", limit=", ".join(fields)
        )
    numbers = [wanted.get(field, getattr(default, field)) for field in fields]
    if not all(isinstance(number, int) and not isinstance(number, bool) for number in numbers):
        raise InvalidQuorumError("the numbers of copies are integers", field="persistence")
    return Persistence(*numbers)
