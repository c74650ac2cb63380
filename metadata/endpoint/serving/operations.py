"""The operations of one connection: each turns a request into the body of its answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from heliograph.base.errors import HeliographError
from heliograph.metadata.endpoint.serving.reads import NodeReads
from heliograph.metadata.endpoint.serving.writes import Guard, Result, Writes
from heliograph.metadata.endpoint.session.acl_directory import AclDirectory
from heliograph.metadata.endpoint.session.caller import EndpointCaller
from heliograph.metadata.endpoint.session.session import WireSession
from heliograph.metadata.endpoint.wire import jute, replies
from heliograph.metadata.endpoint.wire.acl import DIGEST
from heliograph.metadata.endpoint.wire.codes import ErrorCode, OpCode, WireError, code_of
from heliograph.metadata.endpoint.wire.requests import (
    AddWatch,
    Body,
    CreateNode,
    EndpointRequest,
    Multi,
    OnPath,
    Read,
    SetAcl,
    SetAuth,
    SetData,
    SetWatches,
    VersionedRequest,
    WatchQuery,
)
from heliograph.metadata.errors import (
    ConnectionLossError,
    InvalidPathError,
    MetadataError,
    NoNodeError,
    SessionExpiredError,
)
from heliograph.metadata.store import Stat

_ENDS_CONNECTION = (ConnectionLossError, SessionExpiredError)
_OVERLAPPING = frozenset({OpCode.CREATE, OpCode.SET_DATA, OpCode.DELETE, OpCode.MULTI})
_Handler = Callable[[Body], Awaitable[bytes]]


class Operations:
    """The operations that a client may request. The connection itself handles the closing of the session."""

    def __init__(self, session: WireSession, directory: AclDirectory, caller: EndpointCaller, peer: str) -> None:
        self._session = session
        self._peer = peer
        self.guard = Guard(session, directory, caller)
        self._reads = NodeReads(self.guard)
        self._writes = Writes(self.guard)
        self._handlers: dict[OpCode, _Handler] = {
            OpCode.PING: self._ping,
            OpCode.CREATE: self._create,
            OpCode.CREATE2: partial(self._create2, OpCode.CREATE2),
            OpCode.CREATE_CONTAINER: partial(self._create2, OpCode.CREATE_CONTAINER),
            OpCode.CREATE_TTL: partial(self._create2, OpCode.CREATE_TTL),
            OpCode.DELETE: self._delete,
            OpCode.EXISTS: self._exists,
            OpCode.GET_DATA: self._get_data,
            OpCode.SET_DATA: self._set_data,
            OpCode.GET_ACL: self._get_acl,
            OpCode.SET_ACL: self._set_acl,
            OpCode.GET_CHILDREN: self._get_children,
            OpCode.GET_CHILDREN2: self._get_children2,
            OpCode.SYNC: self._sync,
            OpCode.MULTI: self._multi,
            OpCode.MULTI_READ: self._multi_read,
            OpCode.CHECK_WATCHES: self._check_watches,
            OpCode.REMOVE_WATCHES: self._remove_watches,
            OpCode.AUTH: self._auth,
            OpCode.SET_WATCHES: self._set_watches,
            OpCode.SET_WATCHES2: self._set_watches,
            OpCode.ADD_WATCH: self._add_watch,
            OpCode.GET_EPHEMERALS: self._get_ephemerals,
            OpCode.GET_ALL_CHILDREN_NUMBER: self._get_all_children_number,
            OpCode.WHO_AM_I: self._who_am_i,
            OpCode.RECONFIG: self._reconfig,
            OpCode.SASL: self._sasl,
        }

    def may_overlap(self, request: EndpointRequest) -> bool:
        """Return whether the request may begin while other such requests are in progress.

        Pings may, and writes that call the store once, before they wait for anything: the store then gets the writes in
        the order of the requests.
        """
        if request.op is OpCode.PING:
            return True
        return request.op in _OVERLAPPING and request.body is not None and self._writes.is_one_call(request.body)

    async def run(self, request: EndpointRequest) -> bytes:
        """Run a request and return the body of its answer.

        Raises:
            ConnectionLossError, SessionExpiredError: the connection must end without an answer.
            HeliographError: the answer is the error's ``code_of``.
        """
        handler = self._handlers.get(request.op) if request.op is not None else None
        if handler is None:
            raise WireError(f"operation {request.op} is not supported", ErrorCode.UNIMPLEMENTED)
        if request.body is None:
            raise WireError(f"the arguments of {request.op} are malformed", ErrorCode.MARSHALLING_ERROR)
        try:
            return await handler(request.body)
        except InvalidPathError as error:
            # As in ZooKeeper, which checks paths where it creates nodes, and exists for this one character.
            if isinstance(request.body, Read) and not (request.op is OpCode.EXISTS and "\0" in request.body.path):
                raise NoNodeError(str(error)) from error
            raise

    async def _ping(self, body: Body) -> bytes:
        return b""

    async def _create(self, body: Body) -> bytes:
        assert isinstance(body, CreateNode)
        return jute.string(await self._writes.create(OpCode.CREATE, body))

    async def _create2(self, op: OpCode, body: Body) -> bytes:
        assert isinstance(body, CreateNode)
        return await self._created(await self._writes.create(op, body), body)

    async def _created(self, path: str, body: CreateNode) -> bytes:
        """Return path and stat of a node that was just created."""
        # The present stat or, when the node is already deleted, the stat that it had when it was created.
        stat = await self._session.store.exists(path)
        if stat is None:
            zxid = self._session.zxid
            stat = Stat(zxid, zxid, 0, 0, 0, len(body.value or b""), 0, zxid)
        return jute.string(path) + replies.stat(self._session.saw(stat))

    async def _delete(self, body: Body) -> bytes:
        assert isinstance(body, VersionedRequest)
        await self._writes.delete(body)
        return b""

    async def _exists(self, body: Body) -> bytes:
        assert isinstance(body, Read)
        stat = await self._reads.exists(body.path, body.watch)
        if stat is None:
            raise WireError(f"no node {body.path}", ErrorCode.NO_NODE)
        return await self._stat(body.path, stat)

    async def _get_data(self, body: Body) -> bytes:
        assert isinstance(body, Read)
        value, stat = await self._reads.get(body.path, body.watch)
        return jute.buffer(value) + await self._stat(body.path, stat)

    async def _set_data(self, body: Body) -> bytes:
        assert isinstance(body, SetData)
        stat = await self._writes.set(body)
        return await self._stat(body.path, self._session.saw(stat))

    async def _get_acl(self, body: Body) -> bytes:
        assert isinstance(body, OnPath)
        acl, version, stat = await self._reads.acl(body.path)
        return replies.acl(acl) + replies.stat(stat, version)

    async def _set_acl(self, body: Body) -> bytes:
        assert isinstance(body, SetAcl)
        stat, version = await self._writes.set_acl(body)
        return replies.stat(self._session.saw(stat), version)

    async def _get_children(self, body: Body) -> bytes:
        assert isinstance(body, Read)
        if not body.watch:
            return replies.strings(await self._reads.names(body.path))
        # The stat is not sent, but the client counts as having seen it.
        names, _ = await self._reads.children(body.path, watch=True)
        return replies.strings(names)

    async def _get_children2(self, body: Body) -> bytes:
        assert isinstance(body, Read)
        names, stat = await self._reads.children(body.path, body.watch)
        return replies.strings(names) + await self._stat(body.path, stat)

    async def _stat(self, path: str, stat: Stat) -> bytes:
        return replies.stat(stat, await self._reads.acl_version(path))

    async def _sync(self, body: Body) -> bytes:
        assert isinstance(body, OnPath)
        await self._reads.sync(body.path)
        return jute.string(body.path)

    async def _multi(self, body: Body) -> bytes:
        assert isinstance(body, Multi)
        try:
            results = await self._writes.multi(body.operations)
        except _ENDS_CONNECTION:
            raise
        except MetadataError as error:
            if error.operation_index is None:
                raise
            return replies.multi(_failed(len(body.operations), error.operation_index, code_of(error)))
        found = zip(body.operations, results, strict=True)
        return replies.multi([await self._multi_result(op, operation, result) for (op, operation), result in found])

    async def _multi_result(self, op: OpCode, operation: Body, result: Result) -> tuple[OpCode, bytes]:
        if isinstance(result, Stat):
            return op, replies.stat(self._session.saw(result))
        if isinstance(result, str) and op is OpCode.CREATE:
            return op, jute.string(result)
        if isinstance(result, str):  # as ZooKeeper 3.9 answers it; 3.8 left the stat out
            assert isinstance(operation, CreateNode), "a path is the result of a create"
            return OpCode.CREATE2, await self._created(result, operation)
        return op, b""

    async def _multi_read(self, body: Body) -> bytes:
        assert isinstance(body, Multi)
        results: list[tuple[OpCode, bytes]] = []
        for op, operation in body.operations:
            try:
                if op not in (OpCode.GET_DATA, OpCode.GET_CHILDREN):
                    raise WireError(f"{op.name} cannot be part of a multi of reads", ErrorCode.UNIMPLEMENTED)
                results.append((op, await self._handlers[op](operation)))
            except _ENDS_CONNECTION:
                raise
            except HeliographError as error:
                results.append((OpCode.ERROR, jute.int32(code_of(error))))
        return replies.multi(results)

    async def _check_watches(self, body: Body) -> bytes:
        assert isinstance(body, WatchQuery)
        if not self._reads.has_watch(body.path, body.type):
            raise WireError(f"no such watch on {body.path}", ErrorCode.NO_WATCHER)
        return b""

    async def _remove_watches(self, body: Body) -> bytes:
        assert isinstance(body, WatchQuery)
        if not self._reads.remove_watches(body.path, body.type):
            raise WireError(f"no such watch on {body.path}", ErrorCode.NO_WATCHER)
        return b""

    async def _auth(self, body: Body) -> bytes:
        assert isinstance(body, SetAuth)
        await self.guard.caller.show(body.scheme, body.credential)
        return b""

    async def _set_watches(self, body: Body) -> bytes:
        assert isinstance(body, SetWatches)
        await self._reads.reset_watches(body)
        return b""

    async def _add_watch(self, body: Body) -> bytes:
        assert isinstance(body, AddWatch)
        await self._reads.add_watch(body.path, body.mode)
        return jute.int32(ErrorCode.OK)

    async def _get_ephemerals(self, body: Body) -> bytes:
        assert isinstance(body, OnPath)
        return replies.strings(await self._reads.ephemerals(body.path))

    async def _get_all_children_number(self, body: Body) -> bytes:
        assert isinstance(body, OnPath)
        return jute.int32(await self._reads.count_descendants(body.path))

    async def _who_am_i(self, body: Body) -> bytes:
        users = [("ip", self._peer)]
        for scheme, name in sorted(self.guard.caller.identities):
            users.append((scheme, name.partition(":")[0] if scheme == DIGEST else name))
        return jute.vector(jute.string(scheme) + jute.string(user) for scheme, user in users)

    async def _reconfig(self, body: Body) -> bytes:
        raise WireError("there is no ensemble to configure", ErrorCode.RECONFIG_DISABLED)

    async def _sasl(self, body: Body) -> bytes:
        return jute.buffer(None)  # as a ZooKeeper that no login was configured for: the client's login fails


def _failed(count: int, index: int, code: ErrorCode) -> Sequence[tuple[OpCode, bytes]]:
    """Return the result of each operation of a multi in which the one at ``index`` failed with ``code``."""
    codes = [ErrorCode.OK] * index + [code] + [ErrorCode.RUNTIME_INCONSISTENCY] * (count - index - 1)
    return [(OpCode.ERROR, jute.int32(code)) for code in codes]
