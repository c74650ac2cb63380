"""Administration through the brokers' actors: the operations of ``heliograph/operations``, async and blocking.

Any broker serves any operation (it forwards to the topic's owner where needed), so a call goes to one of them and, when
that one cannot be reached, to another.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import random
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from typing_extensions import override

from heliograph.base.errors import (
    ClusterNotFoundError,
    ConnectionLostError,
    HeliographError,
    RequestTimeoutError,
)
from heliograph.base.home import DEFAULT_NAMESPACE
from heliograph.client import discovery
from heliograph.client.admin.local_socket import ask
from heliograph.client.admin.over_http import GatewayAwayError, GatewayCalls
from heliograph.client.admin.repeating import answered
from heliograph.client.identity import Identity
from heliograph.operations.admin import AdminOperations
from heliograph.operations.bookies import BookieOperations
from heliograph.operations.brokers import BrokerOperations
from heliograph.operations.cursors import CursorOperations
from heliograph.operations.namespaces import NamespaceOperations
from heliograph.operations.permissions import PermissionOperations
from heliograph.operations.schemas import SchemaOperations
from heliograph.operations.settings import SettingOperations
from heliograph.operations.table import AdminOperation, OperationGroup
from heliograph.operations.topics import TopicOperations

T = TypeVar("T")
P = ParamSpec("P")

CALL_TIMEOUT_SECONDS = 30.0  # one attempt at one broker
ATTEMPTS_MAX = 8
RETRY_PAUSE_SECONDS = 0.5  # a killed broker is back, or its topics are elsewhere, in about 2 s


class Admin(AdminOperations):
    """The async form: the methods of ``TopicOperations``, and the other groups as attributes.

    It is not bound to an event loop, and needs a process that is in Ray or can join it.

    Args:
        namespace: Ray namespace of the cluster.
        identity: who the caller says it is; None takes HELIOGRAPH_TOKEN or HELIOGRAPH_TOKEN_FILE, if one is set.
        gateway: asked instead of brokers while it answers, so that the process need not join Ray.

    Every method raises ClusterNotFoundError when there is no cluster, ConnectionLostError when no broker of it answers
    in any attempt, RequestTimeoutError when the outcome is unknown after all attempts, AuthenticationError when the
    caller's credentials are refused, NotPermittedError when the caller lacks the right to the operation, and otherwise
    what the operation raises.
    """

    def __init__(
        self,
        namespace: str = DEFAULT_NAMESPACE,
        identity: Identity | None = None,
        gateway: GatewayCalls | None = None,
    ) -> None:
        self._namespace = namespace
        self._gateway = gateway
        self._identity = Identity.from_environment() if identity is None else identity
        self._address = ""  # of the caller, if it is not this process
        self._preferred: str | None = None  # the broker that answered last
        self.run_through(self._run)

    def speaking_for(self, role: str) -> Admin:
        """Return an administration whose calls name ``role`` as their caller; only a proxy role may do so."""
        return self._with(identity=dataclasses.replace(self._identity, original_principal=role))

    @override
    def called_from(self, address: str) -> Admin:
        return self._with(address=address)

    def _with(self, identity: Identity | None = None, address: str = "") -> Admin:
        made = Admin(self._namespace, identity or self._identity, self._gateway)
        made._address = address or self._address
        made._preferred = self._preferred
        return made

    async def _run(self, operation: AdminOperation, arguments: dict[str, Any]) -> Any:
        return await answered(
            operation,
            self._choose,
            lambda name: self._remembered(name, operation, arguments),
            [RETRY_PAUSE_SECONDS] * (ATTEMPTS_MAX - 1),
        )

    async def _choose(self) -> str:
        if self._gateway is not None and not self._identity.original_principal:
            return self._gateway.url
        if self._preferred is not None:
            return self._preferred
        if own := await asyncio.to_thread(discovery.own_process_state, self._namespace):
            return own.admin_socket
        names = await asyncio.to_thread(discovery.broker_names, self._namespace)
        return random.choice(names)

    async def _remembered(self, name: str, operation: AdminOperation, arguments: dict[str, Any]) -> Any:
        """Ask one broker, and ask it first the next time if it has answered."""
        self._preferred = None
        answer = await self._ask(name, operation, arguments)
        self._preferred = name
        return answer

    async def _ask(self, name: str, operation: AdminOperation, arguments: dict[str, Any]) -> Any:
        if self._gateway is not None and name == self._gateway.url:
            try:
                return await self._gateway.run(operation, arguments, self._identity)
            except GatewayAwayError:
                self._gateway = None
                name = await self._choose()
        if name.startswith("/"):
            return await asyncio.wait_for(ask(name, operation, arguments, self._address), CALL_TIMEOUT_SECONDS)
        import ray.exceptions

        try:
            handle = await asyncio.to_thread(discovery.actor, name, self._namespace)
        except ClusterNotFoundError as error:
            raise ConnectionLostError(str(error)) from error  # this broker is gone; another may answer
        identity = self._identity
        credentials = await asyncio.to_thread(identity.present) if identity.blocks else identity.present()
        address = self._address or discovery.own_address()
        reference = handle.admin.remote(
            operation.name, operation.sparse(arguments), credentials, identity.original_principal or "", address
        )
        try:
            return await asyncio.wait_for(_awaited(reference), CALL_TIMEOUT_SECONDS)
        except TimeoutError:
            raise RequestTimeoutError(
                f"{name} did not answer {operation.name} within {CALL_TIMEOUT_SECONDS:.0f} s"
            ) from None
        except ray.exceptions.RayError as error:
            raise unwrapped(error, name) from error


class RunBlocking(Protocol):
    """Runs a coroutine to its end and returns its result."""

    def __call__(self, work: Coroutine[Any, Any, T], /) -> T: ...


def _run_blocking(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end, on a thread of its own where the caller's thread runs an event loop already."""
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


def _blocking(method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Any, P], T]:
    """Return the blocking form of an operation, with the same arguments, answer and errors."""

    @functools.wraps(method)
    def run(self: _BlockingGroup, /, *positional: P.args, **named: P.kwargs) -> T:
        call: Callable[P, Coroutine[Any, Any, T]] = getattr(self._operations, method.__name__)
        return self._run(call(*positional, **named))

    return run


class SchemasSync(_BlockingGroup):
    """The blocking form of ``admin.schemas``."""

    get = _blocking(SchemaOperations.get)
    versions = _blocking(SchemaOperations.versions)
    put = _blocking(SchemaOperations.put)
    check = _blocking(SchemaOperations.check)
    version_of = _blocking(SchemaOperations.version_of)
    delete = _blocking(SchemaOperations.delete)


class CursorsSync(_BlockingGroup):
    """The blocking form of ``admin.cursors``."""

    skip = _blocking(CursorOperations.skip)
    skip_all = _blocking(CursorOperations.skip_all)
    expire = _blocking(CursorOperations.expire)
    expire_to = _blocking(CursorOperations.expire_to)
    reset = _blocking(CursorOperations.reset)
    backlog_size = _blocking(CursorOperations.backlog_size)
    analyze_backlog = _blocking(CursorOperations.analyze_backlog)
    clear_namespace = _blocking(CursorOperations.clear_namespace)
    unsubscribe_namespace = _blocking(CursorOperations.unsubscribe_namespace)
    properties = _blocking(CursorOperations.properties)
    set_properties = _blocking(CursorOperations.set_properties)
    peek = _blocking(CursorOperations.peek)
    examine = _blocking(CursorOperations.examine)
    message = _blocking(CursorOperations.message)
    message_id_at = _blocking(CursorOperations.message_id_at)
    last_message_id = _blocking(CursorOperations.last_message_id)


class NamespacesSync(_BlockingGroup):
    """The blocking form of ``admin.namespaces``."""

    tenants = _blocking(NamespaceOperations.tenants)
    tenant = _blocking(NamespaceOperations.tenant)
    create_tenant = _blocking(NamespaceOperations.create_tenant)
    update_tenant = _blocking(NamespaceOperations.update_tenant)
    delete_tenant = _blocking(NamespaceOperations.delete_tenant)
    list = _blocking(NamespaceOperations.list)
    create = _blocking(NamespaceOperations.create)
    delete = _blocking(NamespaceOperations.delete)
    policies = _blocking(NamespaceOperations.policies)
    properties = _blocking(NamespaceOperations.properties)
    set_properties = _blocking(NamespaceOperations.set_properties)
    update_properties = _blocking(NamespaceOperations.update_properties)
    remove_properties = _blocking(NamespaceOperations.remove_properties)
    set_policies = _blocking(NamespaceOperations.set_policies)
    remove_policies = _blocking(NamespaceOperations.remove_policies)
    topic_policies = _blocking(NamespaceOperations.topic_policies)
    subscription_policies = _blocking(NamespaceOperations.subscription_policies)
    set_topic_policies = _blocking(NamespaceOperations.set_topic_policies)
    remove_topic_policies = _blocking(NamespaceOperations.remove_topic_policies)


class BrokersSync(_BlockingGroup):
    """The blocking form of ``admin.brokers``."""

    list = _blocking(BrokerOperations.list)
    loads = _blocking(BrokerOperations.loads)
    bundles = _blocking(BrokerOperations.bundles)
    unload_bundle = _blocking(BrokerOperations.unload_bundle)
    unload_namespace = _blocking(BrokerOperations.unload_namespace)
    split_bundle = _blocking(BrokerOperations.split_bundle)
    owned = _blocking(BrokerOperations.owned)
    topics = _blocking(BrokerOperations.topics)
    configuration = _blocking(BrokerOperations.configuration)
    check_quotas = _blocking(BrokerOperations.check_quotas)
    drain = _blocking(BrokerOperations.drain)
    undrain = _blocking(BrokerOperations.undrain)


class SettingsSync(_BlockingGroup):
    """The blocking form of ``admin.settings``."""

    live = _blocking(SettingOperations.live)
    set = _blocking(SettingOperations.set)
    unset = _blocking(SettingOperations.unset)


class BookiesSync(_BlockingGroup):
    """The blocking form of ``admin.bookies``."""

    racks = _blocking(BookieOperations.racks)
    set_rack = _blocking(BookieOperations.set_rack)
    remove_rack = _blocking(BookieOperations.remove_rack)


class PermissionsSync(_BlockingGroup):
    """The blocking form of ``admin.permissions``."""

    granted = _blocking(PermissionOperations.granted)
    of_namespace = _blocking(PermissionOperations.of_namespace)
    grant = _blocking(PermissionOperations.grant)
    revoke = _blocking(PermissionOperations.revoke)
    of_topic = _blocking(PermissionOperations.of_topic)
    grant_topic = _blocking(PermissionOperations.grant_topic)
    revoke_topic = _blocking(PermissionOperations.revoke_topic)
    of_subscriptions = _blocking(PermissionOperations.of_subscriptions)
    grant_subscription = _blocking(PermissionOperations.grant_subscription)
    revoke_subscription = _blocking(PermissionOperations.revoke_subscription)
    subscription_mode = _blocking(PermissionOperations.subscription_mode)
    set_subscription_mode = _blocking(PermissionOperations.set_subscription_mode)
    revoke_token = _blocking(PermissionOperations.revoke_token)
    revoked_tokens = _blocking(PermissionOperations.revoked_tokens)


class BlockingAdmin(_BlockingGroup):
    """The blocking form of an administration: the same methods. Safe to share between threads."""

    def __init__(self, admin: AdminOperations, run: RunBlocking = _run_blocking) -> None:
        super().__init__(admin, run)
        self.schemas = SchemasSync(admin.schemas, run)
        self.cursors = CursorsSync(admin.cursors, run)
        self.namespaces = NamespacesSync(admin.namespaces, run)
        self.brokers = BrokersSync(admin.brokers, run)
        self.settings = SettingsSync(admin.settings, run)
        self.bookies = BookiesSync(admin.bookies, run)
        self.permissions = PermissionsSync(admin.permissions, run)

    lookup = _blocking(TopicOperations.lookup)
    bundle_of = _blocking(TopicOperations.bundle_of)
    create_topic = _blocking(TopicOperations.create_topic)
    topic_properties = _blocking(TopicOperations.topic_properties)
    update_topic_properties = _blocking(TopicOperations.update_topic_properties)
    remove_topic_properties = _blocking(TopicOperations.remove_topic_properties)
    topic_record = _blocking(TopicOperations.topic_record)
    trim_topic = _blocking(TopicOperations.trim_topic)
    truncate_topic = _blocking(TopicOperations.truncate_topic)
    delete_topic = _blocking(TopicOperations.delete_topic)
    list_topics = _blocking(TopicOperations.list_topics)
    update_partitions = _blocking(TopicOperations.update_partitions)
    create_missing_partitions = _blocking(TopicOperations.create_missing_partitions)
    unload_topic = _blocking(TopicOperations.unload_topic)
    partitions = _blocking(TopicOperations.partitions)
    topic_stats = _blocking(TopicOperations.topic_stats)
    topic_internal_stats = _blocking(TopicOperations.topic_internal_stats)
    subscriptions = _blocking(TopicOperations.subscriptions)
    create_subscription = _blocking(TopicOperations.create_subscription)
    delete_subscription = _blocking(TopicOperations.delete_subscription)
    terminate_topic = _blocking(TopicOperations.terminate_topic)
    compact_topic = _blocking(TopicOperations.compact_topic)
    compaction_status = _blocking(TopicOperations.compaction_status)
    ledger_ranges = _blocking(TopicOperations.ledger_ranges)
    topic_ledgers = _blocking(TopicOperations.topic_ledgers)
    read_access = _blocking(TopicOperations.read_access)
    read_plan = _blocking(TopicOperations.read_plan)
    publish = _blocking(TopicOperations.publish)


class AdminSync(BlockingAdmin):
    """The blocking form of ``Admin``."""

    def __init__(
        self,
        namespace: str = DEFAULT_NAMESPACE,
        identity: Identity | None = None,
        gateway: GatewayCalls | None = None,
    ) -> None:
        super().__init__(Admin(namespace, identity, gateway))


def unwrapped(error: BaseException, name: str) -> HeliographError:
    """Return the error that an actor raised, without Ray's wrapping.

    Where Ray could not reach the actor, it is ConnectionLostError: the outcome of the call is unknown.
    """
    cause = getattr(error, "cause", None)
    if isinstance(cause, HeliographError):
        return cause
    text = (str(cause or error).strip() or type(error).__name__).splitlines()[0]
    if cause is not None:
        return HeliographError(f"{name} failed with {type(cause).__name__}: {text}")
    return ConnectionLostError(f"{name} cannot be reached now: {text}")


async def _awaited(reference: Any) -> Any:
    return await reference
