"""A long transcript of requests in ZooKeeper's protocol, so that the answers of two servers can be compared."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from heliograph.metadata.endpoint.wire.codes import OpCode as O
from heliograph.metadata.endpoint.wire.jute import JuteReader, int64, string
from tests.contracts.endpoint.wire.client import (
    OPEN,
    Event,
    Reply,
    Stat,
    WireClient,
    add_watch,
    auth,
    create,
    multi,
    path_and_version,
    path_and_watch,
    set_acl,
    set_data,
    set_watches,
    watch_query,
)

AUTH_ACL = [(31, "auth", "")]
Line = tuple[Any, ...]


class Transcript:
    """The requests and answers of two clients below ``root``, without the parts that differ from run to run."""

    def __init__(self, address: str, root: str) -> None:
        self._address = address
        self._root = root
        self.lines: list[Line] = []

    async def run(self) -> list[Line]:
        """Send all requests and return the transcript."""
        one, other = await WireClient.begin(self._address), await WireClient.begin(self._address)
        await self._say(one, "root", O.CREATE, create(self._root, b"x"))
        await self._paths(one)
        await self._nodes(one)
        await self._one_shot_watches(one)
        await self._standing_watches(one)
        await self._multis(one)
        await self._own_nodes()
        await self._refusals(one)
        await self._acls(one, other)
        await self._watches_again(one)
        await self._sessions(one, other)
        return self.lines

    async def _say(self, client: WireClient, what: str, op: O, body: bytes = b"", xid: int | None = None) -> None:
        before = len(client.heard)
        reply = await client.call(op, body, xid)
        events = [(heard.type, heard.state, heard.path) for heard in client.heard[before:] if isinstance(heard, Event)]
        self._write(what, op.name, reply.error, _shown(op, reply), events)

    def _write(self, *line: Any) -> None:
        self.lines.append(_without(self._root, line))

    async def _paths(self, one: WireClient) -> None:
        for path in ("a", "//", "/.", "/..", "/a\0"):
            await self._say(one, f"create {path!r}", O.CREATE, create(path))
            for op in (O.EXISTS, O.GET_DATA, O.GET_CHILDREN, O.GET_CHILDREN2):
                await self._say(one, repr(path), op, path_and_watch(path))
        for op, body in ((O.CREATE, create("/")), (O.DELETE, path_and_version("/")), (O.CREATE, create(""))):
            await self._say(one, "the root", op, body)

    async def _nodes(self, one: WireClient) -> None:
        r = self._root
        for what, op, body in (
            ("again", O.CREATE, create(r)),
            ("no such kind", O.CREATE, create(r + "/f", b"", 9)),
            ("with stat", O.CREATE2, create(r + "/c2", b"abc", 1)),
            ("below an ephemeral", O.CREATE, create(r + "/c2/x")),
            ("sequential", O.CREATE, create(r + "/s-", b"", 2)),
            ("sequential ephemeral", O.CREATE, create(r + "/s-", b"", 3)),
            ("sequential without a name", O.CREATE2, create(r + "/", b"", 2)),
            ("without a parent", O.CREATE, create(r + "/no/x")),
            ("all children", O.GET_CHILDREN2, path_and_watch(r)),
            ("value", O.GET_DATA, path_and_watch(r)),
            ("set", O.SET_DATA, set_data(r, b"yz", 0)),
            ("set an old version", O.SET_DATA, set_data(r, b"yz", 0)),
            ("set nothing", O.SET_DATA, set_data(r + "/no", b"")),
            ("stat", O.EXISTS, path_and_watch(r)),
            ("children of nothing", O.GET_CHILDREN, path_and_watch(r + "/no")),
            ("delete nothing", O.DELETE, path_and_version(r + "/no")),
            ("delete an old version", O.DELETE, path_and_version(r + "/c2", 3)),
            ("delete a full one", O.DELETE, path_and_version(r)),
            ("ephemerals", O.GET_EPHEMERALS, string("/")),
            ("ephemerals elsewhere", O.GET_EPHEMERALS, string(r + "/q")),
            ("descendants", O.GET_ALL_CHILDREN_NUMBER, string(r)),
            ("descendants of nothing", O.GET_ALL_CHILDREN_NUMBER, string(r + "/no")),
            ("sync", O.SYNC, string(r)),
            ("sync of nothing", O.SYNC, string(r + "/no")),
        ):
            await self._say(one, what, op, body)
        await self._say(one, "ping", O.PING, b"", -2)

    async def _one_shot_watches(self, one: WireClient) -> None:
        e, r = self._root + "/e", self._root
        for what, op, body in (
            ("exists, for nothing", O.EXISTS, path_and_watch(e, True)),
            ("get, for nothing", O.GET_DATA, path_and_watch(e + "2", True)),
            *((f"check {kind}", O.CHECK_WATCHES, watch_query(e, kind)) for kind in (1, 2, 3)),
            ("none is left by get", O.CHECK_WATCHES, watch_query(e + "2", 3)),
            ("create", O.CREATE, create(e)),
            ("it has fired", O.CHECK_WATCHES, watch_query(e, 3)),
            ("get", O.GET_DATA, path_and_watch(e, True)),
            ("get twice", O.GET_DATA, path_and_watch(e, True)),
            ("children", O.GET_CHILDREN, path_and_watch(e, True)),
            ("children of the parent", O.GET_CHILDREN, path_and_watch(r, True)),
            *((f"remove {kind}", O.REMOVE_WATCHES, watch_query(r, kind)) for kind in (2, 1, 3)),
            ("children of the parent again", O.GET_CHILDREN2, path_and_watch(r, True)),
            ("delete: one event for two watches", O.DELETE, path_and_version(e, 0)),
        ):
            await self._say(one, what, op, body)

    async def _standing_watches(self, one: WireClient) -> None:
        p, q = self._root + "/p", self._root + "/q"
        for what, op, body in (
            ("no such mode", O.ADD_WATCH, add_watch(p, 7)),
            ("persistent", O.ADD_WATCH, add_watch(p, 0)),
            ("check any", O.CHECK_WATCHES, watch_query(p, 3)),
            ("create", O.CREATE, create(p)),
            ("create a child", O.CREATE, create(p + "/x")),
            ("set", O.SET_DATA, set_data(p, b"1")),
            ("set the child", O.SET_DATA, set_data(p + "/x", b"1")),
            ("watch the child", O.GET_DATA, path_and_watch(p + "/x", True)),
            ("delete the child", O.DELETE, path_and_version(p + "/x")),
            ("delete", O.DELETE, path_and_version(p)),
            *(("remove any", O.REMOVE_WATCHES, watch_query(p, 3)) for _ in range(2)),
            ("create unseen", O.CREATE, create(p)),
            ("a node", O.CREATE, create(q)),
            ("recursive", O.ADD_WATCH, add_watch(q, 1)),
            ("check any", O.CHECK_WATCHES, watch_query(q, 3)),
            ("create below", O.CREATE, create(q + "/y")),
            ("watch below", O.GET_DATA, path_and_watch(q + "/y", True)),
            ("watch children", O.GET_CHILDREN, path_and_watch(q + "/y", True)),
            ("set below: one event for two watches", O.SET_DATA, set_data(q + "/y", b"1")),
            ("create deep below", O.CREATE, create(q + "/y/z")),
            ("delete deep below", O.DELETE, path_and_version(q + "/y/z")),
            ("delete below", O.DELETE, path_and_version(q + "/y")),
            ("remove", O.REMOVE_WATCHES, watch_query(q, 3)),
            ("set unseen", O.SET_DATA, set_data(q, b"1")),
        ):
            await self._say(one, what, op, body)

    async def _multis(self, one: WireClient) -> None:
        m, n = self._root + "/m", self._root + "/n"
        good = multi(
            (O.CREATE, create(m)), (O.CREATE, create(m + "/a", b"q", 1)), (O.SET_DATA, set_data(m, b"2", 0)),
            (O.CHECK, path_and_version(m, 1)), (O.CREATE, create(m + "/s-", b"", 2)),
            (O.DELETE, path_and_version(m + "/a")),
        )  # fmt: skip
        reads = multi(
            (O.GET_DATA, path_and_watch(m)), (O.GET_CHILDREN, path_and_watch(m)), (O.GET_DATA, path_and_watch(n))
        )
        for what, op, body in (
            ("all", O.MULTI, good),
            ("nothing", O.MULTI, multi()),
            ("the middle fails", O.MULTI, multi(
                (O.CREATE, create(n)), (O.SET_DATA, set_data(m, b"", 0)), (O.DELETE, path_and_version(m)))),
            ("a check fails", O.MULTI, multi((O.CHECK, path_and_version(m, 77)), (O.CREATE, create(n)))),
            ("a bad path", O.MULTI, multi((O.CREATE, create(n)), (O.CREATE, create(n + "/.")))),
            ("nothing has happened", O.EXISTS, path_and_watch(n)),
            ("reads", O.MULTI_READ, reads),
        ):  # fmt: skip
            await self._say(one, what, op, body)

    async def _own_nodes(self) -> None:
        one = await WireClient.begin(self._address)
        config, quota = "/zookeeper/config", "/zookeeper/quota"
        for what, op, body in (
            ("config", O.GET_DATA, path_and_watch(config)),
            ("its ACL", O.GET_ACL, string(config)),
            ("set config", O.SET_DATA, set_data(config, b"x")),
            ("below config", O.CREATE, create(config + "/x")),
            ("own nodes", O.GET_CHILDREN, path_and_watch("/zookeeper")),
            *(("delete", O.DELETE, path_and_version(path)) for path in (config, quota, "/zookeeper")),
            ("delete in a multi", O.MULTI, multi((O.DELETE, path_and_version(quota)))),
            ("reconfig", O.RECONFIG, string("") * 3 + int64(-1)),
            ("a user without a colon", O.AUTH, auth("digest", b"nocolon")),
        ):
            await self._say(one, what, op, body)
        await one.close()

    async def _refusals(self, one: WireClient) -> None:
        a = self._root + "/acl"
        for acl in ((), ((31, "foo", "bar"),), AUTH_ACL, ((31, "digest", "nocolon"),), ((31, "world", "x"),)):
            await self._say(one, f"ACL {acl}", O.CREATE, create(a, b"", 0, acl))
        await self._say(one, "ACL of nothing", O.GET_ACL, string(a))
        await self._say(one, "set the ACL of nothing", O.SET_ACL, set_acl(a, OPEN))
        await self._say(one, "the open ACL", O.GET_ACL, string(self._root))

    async def _acls(self, one: WireClient, other: WireClient) -> None:
        mine, shown = self._root + "/mine", self._root + "/shown"
        readable = [(1, "world", "anyone"), *AUTH_ACL]
        await self._say(one, "who", O.AUTH, auth("digest", b"u:p"), -4)
        await self._say(one, "mine", O.CREATE, create(mine, b"v", 0, [*AUTH_ACL, *AUTH_ACL]))
        await self._say(one, "shown", O.CREATE2, create(shown, b"v", 0, readable))
        await self._say(one, "sequential", O.CREATE, create(shown + "-", b"v", 2, AUTH_ACL))
        for path in (mine, shown):
            await self._say(one, "ACL", O.GET_ACL, string(path))
            for op, body in (
                (O.GET_ACL, string(path)),
                (O.GET_DATA, path_and_watch(path)),
                # Not exists: ZooKeeper 3.8 answers anyone, 3.9 those who may read the node, and so does the endpoint.
                (O.SET_DATA, set_data(path, b"")),
                (O.GET_CHILDREN, path_and_watch(path)),
                (O.GET_ALL_CHILDREN_NUMBER, string(path)),
                (O.CREATE, create(path + "/x")),
                (O.SET_ACL, set_acl(path, OPEN)),
                (O.MULTI, multi((O.CREATE, create(self._root + "/dm")), (O.SET_DATA, set_data(path, b"")))),
                (O.MULTI, multi((O.CHECK, path_and_version(path)))),
                (O.MULTI_READ, multi((O.GET_DATA, path_and_watch(path)))),
            ):
                await self._say(other, "a stranger", op, body)
        await self._say(one, "a wrong version", O.SET_ACL, set_acl(mine, OPEN, 5))
        await self._say(
            one, "give it away", O.SET_ACL, set_acl(mine, [(1, "world", "anyone"), (31, "digest", "u:x")], 0)
        )
        await self._say(one, "the value", O.GET_DATA, path_and_watch(mine))
        await self._say(one, "the masked ACL", O.GET_ACL, string(mine))
        await self._say(one, "it is gone", O.SET_ACL, set_acl(mine, OPEN))
        await self._say(other, "deleting asks the parent", O.DELETE, path_and_version(mine))
        await self._say(other, "created again", O.CREATE, create(mine))
        await self._say(other, "open now", O.GET_ACL, string(mine))
        for client in (one, other):
            await self._say(client, "who am I", O.WHO_AM_I)

    async def _watches_again(self, one: WireClient) -> None:
        r, later = self._root, self._root + "/later"
        old = set_watches(0, [r, later], [r, later], [r, later])
        new = set_watches(1 << 60, [r, r + "/m"], [later], [r], [r + "/pp"], [r + "/rr"])
        await self._say(one, "long ago", O.SET_WATCHES, old, -8)
        await self._say(one, "just now", O.SET_WATCHES2, new, -8)
        for path in (later, r + "/pp", r + "/rr", r + "/rr/x"):
            await self._say(one, "create", O.CREATE, create(path))

    async def _sessions(self, one: WireClient, other: WireClient) -> None:
        await self._say(one, "close", O.CLOSE_SESSION)
        self._write("closed", await one.rest())
        await self._say(other, "its ephemerals are gone", O.GET_CHILDREN, path_and_watch(self._root))
        await self._say(other, "no such scheme", O.AUTH, auth("foo", b"u:p"), -4)
        self._write("closed", await other.rest())
        for what, client, password in (
            ("a wrong password", other, bytes(16)),
            ("the session stands", other, other.password),
            ("the session is over", one, one.password),
        ):
            again = await WireClient.begin(self._address, client.session_id, password)
            self._write(what, again.timeout_ms, again.session_id == client.session_id)
            if not again.timeout_ms:
                self._write("nothing more", again.session_id, again.password, await again.rest())
            await again.close()
        await asyncio.gather(one.close(), other.close())


def _shown(op: O, reply: Reply) -> Any:
    if reply.error:
        return reply.body
    reader = JuteReader(reply.body)
    show = _SHOW.get(op)
    return reply.body if show is None else (show(reader), reader.remaining)


def _stat(reader: JuteReader) -> Any:
    stat = Stat.read(reader)
    return stat.version, stat.cversion, stat.aversion, stat.owner != 0, stat.length, stat.children


def _acl(reader: JuteReader) -> Any:
    return reader.vector(lambda entry: (entry.int32(), entry.string(), entry.string())), _stat(reader)


_SHOW: dict[int, Callable[[JuteReader], Any]] = {
    O.CREATE: JuteReader.string,
    O.CREATE2: lambda reader: (reader.string(), _stat(reader)),
    O.EXISTS: _stat,
    O.SET_DATA: _stat,
    O.SET_ACL: _stat,
    O.GET_ACL: _acl,
    O.GET_DATA: lambda reader: (reader.buffer(), _stat(reader)),
    O.GET_CHILDREN: lambda reader: sorted(reader.strings()),
    O.GET_CHILDREN2: lambda reader: (sorted(reader.strings()), _stat(reader)),
    O.GET_EPHEMERALS: lambda reader: sorted(reader.strings()),
    O.SYNC: JuteReader.string,
    O.ERROR: JuteReader.int32,
    O.DELETE: lambda _: None,
    O.CHECK: lambda _: None,
}


def _multi(reader: JuteReader) -> Any:
    results: list[Any] = []
    while True:
        op, done, error = reader.int32(), reader.boolean(), reader.int32()
        results.append((op, done, error, None if done else _SHOW[op](reader)))
        if done:
            return results


_SHOW[O.MULTI] = _SHOW[O.MULTI_READ] = _multi


def _without(root: str, value: Any) -> Any:
    """Return the text without the root's name, which differs from run to run."""
    if isinstance(value, str):
        return value.replace(root, "ROOT")
    if isinstance(value, bytes):
        return value.replace(root.encode(), b"ROOT")
    if isinstance(value, tuple | list):
        return type(value)(_without(root, item) for item in value)
    return value
