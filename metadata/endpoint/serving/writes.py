"""The writes of one connection: nodes and their ACLs are created, changed and deleted, alone or in a multi.

Each client operation becomes one operation of the store, and a second one in the same transaction if the record of an
ACL changes too. If another endpoint changed the record, it is read again and the transaction is repeated.

The path of a sequential node is not known before it exists, so its ACL, unless open, is stored right after it: in
between, the node is open to other clients.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

from heliograph.metadata.endpoint.session.acl_directory import SAME_TRANSACTION, AclDirectory, NodeAcl
from heliograph.metadata.endpoint.session.caller import EndpointCaller
from heliograph.metadata.endpoint.session.session import WireSession
from heliograph.metadata.endpoint.wire.acl import OPEN_ACL, Acl, resolved
from heliograph.metadata.endpoint.wire.codes import CreateFlags, ErrorCode, OpCode, Permission, WireError
from heliograph.metadata.endpoint.wire.requests import Body, CreateNode, Multi, SetAcl, SetData, VersionedRequest
from heliograph.metadata.errors import BadVersionError, MetadataError, NodeExistsError, NoNodeError
from heliograph.metadata.paths import ENDPOINT_ACLS, ZOOKEEPER, ZOOKEEPER_CONFIG, ZOOKEEPER_QUOTA, endpoint_acl
from heliograph.metadata.store import ANY_VERSION, Check, Create, Delete, Operation, Set, Stat
from heliograph.metadata.znode import CONTAINER, TTL_MS_MAX, check_path, parent_of, ttl_kind

RECORD_ATTEMPTS_MAX = 5  # of one transaction whose ACL records others change
_SEQUENTIAL = (CreateFlags.PERSISTENT_SEQUENTIAL, CreateFlags.EPHEMERAL_SEQUENTIAL, CreateFlags.TTL_SEQUENTIAL)
_TTL = (CreateFlags.TTL, CreateFlags.TTL_SEQUENTIAL)
_CREATES = (OpCode.CREATE, OpCode.CREATE2, OpCode.CREATE_CONTAINER, OpCode.CREATE_TTL)
_SPECIAL = (ZOOKEEPER, ZOOKEEPER_CONFIG, ZOOKEEPER_QUOTA)
_EPHEMERAL = (CreateFlags.EPHEMERAL, CreateFlags.EPHEMERAL_SEQUENTIAL)

Result = str | Stat | None


@dataclass(frozen=True, slots=True)
class _Step:
    """One operation of a client, and the operation on its ACL record."""

    operation: Operation
    record: Operation | None = None
    later_acl: Acl | None = None  # of a sequential node


class Guard:
    """The check of a client's permissions."""

    def __init__(self, session: WireSession, directory: AclDirectory, caller: EndpointCaller) -> None:
        self.session = session
        self.directory = directory
        self.caller = caller

    async def require(self, path: str, wanted: Permission) -> None:
        """Raise WireError NO_AUTH unless the client has any permission of ``wanted`` on the node."""
        self.caller.require_visible(path)
        if self.directory.is_open(path):
            return
        acl, _ = await self.directory.of(path, self.session.store)
        if not self.caller.passes(acl, wanted):
            raise WireError(f"the client has no permission {wanted.name} on {path}", ErrorCode.NO_AUTH)

    def may_watch(self, path: str) -> bool:
        """Return whether the client may get events of a node. Only known ACLs are consulted, not the store."""
        stored = self.directory.find(path)
        return self.caller.may_watch(path, None if stored is None else stored.acl)


class Writes:
    """The writes of one connection. A write that is not a single call of the store must run alone."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._session = guard.session
        self._directory = guard.directory

    def is_one_call(self, body: Body) -> bool:
        """Return whether the write becomes one call of the store, made without waiting for anything first.

        It does if no ACL has to be checked or stored. The answer holds only for a write that begins immediately.
        """
        is_open = self._directory.is_open
        match body:
            case CreateNode():
                return body.acl == OPEN_ACL and is_open(parent_of(body.path))
            case SetData():
                return is_open(body.path)
            case VersionedRequest():  # a deletion needs the parent's ACL, a check the node's own
                return is_open(body.path) and is_open(parent_of(body.path))
            case Multi():
                # create2 and its like are answered with a stat, which is read after the transaction.
                return all(
                    self.is_one_call(operation) and (op is OpCode.CREATE or op not in _CREATES)
                    for op, operation in body.operations
                )
        return False

    async def create(self, op: OpCode, body: CreateNode) -> str:
        step = await self._create_step(op, body)
        operation = step.operation
        assert isinstance(operation, Create), "a create"
        if step.record is None and not operation.kind:
            path = await self._session.store.create(
                operation.path, operation.value, ephemeral=operation.ephemeral, sequence=operation.sequence
            )
            self._note(operation, path)
        else:
            (result,) = await self._run([(op, body)])
            assert isinstance(result, str), "create answers with a path"
            return result
        if step.later_acl is not None:
            await self._store_acl(path, step.later_acl)
        return path

    async def set(self, body: SetData) -> Stat:
        await self._guard.require(body.path, Permission.WRITE)
        return await self._session.store.set(body.path, body.value, body.version)

    async def delete(self, body: VersionedRequest) -> None:
        """Delete a node, and its ACL with it."""
        step = await self._delete_step(body)
        if step.record is not None:
            await self._run([(OpCode.DELETE, body)])
            return
        await self._session.store.delete(body.path, body.version)
        self._session.deleted(body.path)

    async def set_acl(self, body: SetAcl) -> tuple[Stat, int]:
        """Replace an ACL. Return the node's stat and the ACL's new version."""
        store = self._session.store
        acl = resolved(body.acl, self._guard.caller.identities)
        for _ in range(RECORD_ATTEMPTS_MAX):
            await self._guard.require(body.path, Permission.ADMIN)
            stat = await store.exists(body.path)
            if stat is None:
                raise NoNodeError(f"no node {body.path}")
            _, version = await self._directory.of(body.path, store)
            if body.version not in (ANY_VERSION, version):
                raise BadVersionError(f"the ACL of {body.path} has version {version}, not {body.version}")
            record = NodeAcl.of(body.path, stat.czxid, version + 1, acl)
            is_own = stat.ephemeral_owner == store.session_id
            step = _Step(Check(body.path), self._record_operation(record, ephemeral=is_own))
            if await self._attempt([step]) is not None:
                return stat, version + 1
        raise WireError(f"the ACL of {body.path} changes too fast", ErrorCode.SYSTEM_ERROR)

    async def multi(self, operations: Sequence[tuple[OpCode, Body]]) -> list[Result]:
        """Run all operations or none. Return a created path, a new stat or None for each.

        Raises:
            MetadataError: with the ``operation_index`` of the first operation that failed.
        """
        return await self._run(operations)

    async def _run(self, operations: Sequence[tuple[OpCode, Body]]) -> list[Result]:
        for _ in range(RECORD_ATTEMPTS_MAX):
            steps: list[_Step] = []
            for index, (op, body) in enumerate(operations):
                try:
                    steps.append(await self._step(op, body))
                except MetadataError as error:
                    error.operation_index = index
                    raise
            results = await self._attempt(steps)
            if results is None:
                continue
            for step, result in zip(steps, results, strict=True):
                if step.later_acl is not None and isinstance(result, str):
                    await self._store_acl(result, step.later_acl)
            return results
        raise WireError("the ACLs of these nodes change too fast", ErrorCode.SYSTEM_ERROR)

    async def _attempt(self, steps: Sequence[_Step]) -> list[Result] | None:
        """Run the steps in one transaction. Return None if a record was not as expected, after reading it again."""
        operations: list[Operation] = []
        owners: list[tuple[int, bool]] = []  # of each operation: its step, and whether it is on a record
        for index, step in enumerate(steps):
            operations.append(step.operation)
            owners.append((index, False))
            if step.record is not None:
                operations.append(step.record)
                owners.append((index, True))
        try:
            results = await self._session.store.multi(operations)
        except MetadataError as error:
            if error.operation_index is None:
                raise
            index, is_record = owners[error.operation_index]
            if not is_record:
                error.operation_index = index
                raise
            await self._reload_record(steps[index], error)
            return None
        mine = [result for result, (_, is_record) in zip(results, owners, strict=True) if not is_record]
        for step, result in zip(steps, mine, strict=True):
            self._note(step.operation, result)
            if step.record is not None:
                await self._directory.refresh(step.operation.path, self._session.store)
        return mine

    async def _reload_record(self, step: _Step, error: MetadataError) -> None:
        if isinstance(step.record, Create) and isinstance(error, NoNodeError):
            with contextlib.suppress(NodeExistsError):
                await self._session.store.create(ENDPOINT_ACLS)
            self._directory.parent_exists = True
        elif isinstance(error, NoNodeError | NodeExistsError | BadVersionError):
            await self._directory.refresh(step.operation.path, self._session.store)
        else:
            raise WireError(f"an ACL cannot be stored: {error}", ErrorCode.SYSTEM_ERROR) from error

    async def _step(self, op: OpCode, body: Body) -> _Step:
        match body:
            case CreateNode() if op in _CREATES:
                return await self._create_step(op, body)
            case SetData():
                check_path(body.path)
                await self._guard.require(body.path, Permission.WRITE)
                return _Step(Set(body.path, body.value, body.version))
            case VersionedRequest() if op is OpCode.DELETE:
                return await self._delete_step(body)
            case VersionedRequest():
                check_path(body.path)
                await self._guard.require(body.path, Permission.READ)
                return _Step(Check(body.path, body.version))
        raise WireError(f"{op.name} is not supported in a multi", ErrorCode.UNIMPLEMENTED)

    async def _create_step(self, op: OpCode, body: CreateNode) -> _Step:
        if body.flags not in CreateFlags.__members__.values():
            raise WireError(f"unknown kind of node {body.flags}", ErrorCode.BAD_ARGUMENTS)
        kind = _kind(op, body)
        sequential = body.flags in _SEQUENTIAL
        check_path(body.path + "0" if sequential else body.path)
        self._guard.caller.require_visible(body.path)
        await self._guard.require(parent_of(body.path), Permission.CREATE)
        acl = resolved(body.acl, self._guard.caller.identities)
        operation = Create(body.path, body.value, body.flags in _EPHEMERAL and not kind, sequential, kind)
        if acl == OPEN_ACL:
            return _Step(operation)
        if self._directory.find(body.path) is None:
            self._directory.check_room()
        if sequential:
            return _Step(operation, later_acl=acl)
        record = NodeAcl.of(body.path, SAME_TRANSACTION, 0, acl)
        return _Step(operation, self._record_operation(record, ephemeral=operation.ephemeral))

    async def _delete_step(self, body: VersionedRequest) -> _Step:
        check_path(body.path)
        self._guard.caller.require_visible(body.path)
        if body.path in _SPECIAL:
            raise WireError(f"{body.path} cannot be deleted", ErrorCode.BAD_ARGUMENTS)
        await self._guard.require(parent_of(body.path), Permission.DELETE)
        operation = Delete(body.path, body.version)
        if self._directory.find(body.path) is None:
            return _Step(operation)
        return _Step(operation, Delete(endpoint_acl(body.path)))

    def _record_operation(self, record: NodeAcl, *, ephemeral: bool) -> Operation:
        """Return the operation that stores an ACL record. The record of an ephemeral is an ephemeral of the same
        session."""
        stored = self._directory.find(record.path)
        if stored is None:
            return Create(endpoint_acl(record.path), record.encode(), ephemeral)
        return Set(endpoint_acl(record.path), record.encode(), stored.stat.version)

    async def _store_acl(self, path: str, acl: Acl) -> None:
        """Store the ACL of a sequential node that was just created, unless it is already deleted."""
        store = self._session.store
        for _ in range(RECORD_ATTEMPTS_MAX):
            stat = await store.exists(path)
            if stat is None:
                return
            record = NodeAcl.of(path, stat.czxid, 0, acl)
            step = _Step(
                Check(path), self._record_operation(record, ephemeral=stat.ephemeral_owner == store.session_id)
            )
            try:
                if await self._attempt([step]) is not None:
                    return
            except NoNodeError:
                return
        raise WireError(f"the ACL of {path} could not be stored", ErrorCode.SYSTEM_ERROR)

    def _note(self, operation: Operation, result: Result) -> None:
        if isinstance(operation, Delete):
            self._session.deleted(operation.path)
        elif isinstance(operation, Create) and operation.ephemeral and isinstance(result, str):
            self._session.made_ephemeral(result)


def _kind(op: OpCode, body: CreateNode) -> int:
    """Return the requested kind of node; as in ZooKeeper, the operation takes precedence over the flags.

    Raises:
        WireError: BAD_ARGUMENTS, a time to live without its flag, the flag without a time, or a time out of range.
    """
    has_ttl = op is OpCode.CREATE_TTL
    if has_ttl != (body.flags in _TTL) or (has_ttl and not 0 < body.ttl_ms <= TTL_MS_MAX):
        raise WireError(f"the time to live {body.ttl_ms} does not fit flags {body.flags}", ErrorCode.BAD_ARGUMENTS)
    if op is OpCode.CREATE_CONTAINER:
        return CONTAINER
    return ttl_kind(body.ttl_ms) if has_ttl else 0
