"""Synthetic metadata, written in bulk into the directory of a store that does not run.

Topics have no ledgers yet, so each can be opened, published to and consumed from. Ledgers are closed, and name three
bookies of ``BOOKIES`` and a topic. They have no time of creation, so no sweep takes them for orphans.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from heliograph.base.clock import wall_ms
from heliograph.metadata import paths
from heliograph.metadata.backends.embedded.server.nodes import StoredNodes
from heliograph.metadata.backends.embedded.server.record import STATE_KEY, encode_node, encode_state, node_key
from heliograph.metadata.backends.embedded.server.server import EmbeddedServer
from heliograph.metadata.backends.embedded.server.storage import TreeStorage
from heliograph.metadata.codec import encode
from heliograph.metadata.connect import connect_store
from heliograph.metadata.model import LedgerMetadata, LedgerState, Segment, TopicRecord
from heliograph.metadata.recipes.cluster_init import initialise
from heliograph.metadata.znode import ROOT, Znode, parent_of

NODES_AT_ONCE = 20_000  # of one write
STORE = "store"  # the database in the store's directory
TENANT, NAMESPACE = "public", "default"
BOOKIES = 1_000  # that the ledgers are spread over
COPIES = 3


def topic_name(number: int) -> str:
    """Return the local name of a synthetic topic."""
    return f"synthetic-{number:07d}"


def fill(directory: Path, *, topics: int = 0, ledgers: int = 0) -> None:
    """Make a store with so many topics in ``public/default`` and so many ledgers.

    Args:
        directory: of the store, which does not exist yet or does not run.
    """
    asyncio.run(_initialise(directory))
    storage = TreeStorage(directory / STORE)
    try:
        state = storage.load()
        nodes = StoredNodes(storage, state.nodes)
        zxid, parents = state.zxid + 1, Counter[str]()
        records = itertools.chain(_topics(topics), _ledgers(ledgers))
        while some := list(itertools.islice(records, NODES_AT_ONCE)):
            parents.update([parent_of(path) for path, _ in some])
            storage.write([_change(path, _node(value, zxid)) for path, value in some])
        pending, made = list(parents), set[str]()
        while pending:
            if (path := pending.pop()) not in made and nodes.get(path) is None:
                made.add(path)
                parents[parent_of(path)] += 1
                pending.append(parent_of(path))
        changes = []
        for path, created in parents.items():
            node = nodes.get(path) or _node(b"", zxid)
            if path != ROOT:
                changes.append(_change(path, replace(node, creations=node.creations + created, pzxid=zxid)))
        ids = nodes.get(paths.LEDGER_IDS)  # whose version is the last id that was given
        assert ids is not None, "the cluster is initialised"
        changes.append(_change(paths.LEDGER_IDS, replace(ids, version=ids.version + ledgers, mzxid=zxid)))
        storage.write([*changes, (STATE_KEY, encode_state(zxid))])
        storage.load()  # it makes the index of what was written without one
    finally:
        storage.close()


async def _initialise(directory: Path) -> None:
    server = EmbeddedServer(directory, "127.0.0.1")
    await server.start()
    try:
        store = await connect_store(f"embedded://{server.address}")
        try:
            await initialise(store)
        finally:
            await store.close()
    finally:
        await server.stop()


def _topics(count: int) -> Iterator[tuple[str, bytes]]:
    for number in range(count):
        name = topic_name(number)
        record = TopicRecord(f"persistent://{TENANT}/{NAMESPACE}/{name}", created_ms=wall_ms())
        yield paths.topic(TENANT, NAMESPACE, name), encode(record)


def _ledgers(count: int) -> Iterator[tuple[str, bytes]]:
    for number in range(1, count + 1):
        bookies = tuple(f"bookie-{(number + copy) % BOOKIES + 1}" for copy in range(COPIES))
        topic = f"persistent://{TENANT}/{NAMESPACE}/{topic_name(number)}"
        ledger = LedgerMetadata(
            number, COPIES, COPIES, 2, (Segment(0, bookies),), LedgerState.CLOSED, 9, 9_000, 0, f"{number:032x}",
            {"use": "topic", "topic": topic},
        )  # fmt: skip
        yield paths.ledger(number), encode(ledger)


def _node(value: bytes, zxid: int) -> Znode:
    now = wall_ms()
    return Znode(value, zxid, zxid, zxid, 0, 0, 0, now, now)


def _change(path: str, node: Znode) -> tuple[bytes, bytes | None]:
    key = node_key(path)
    return key, encode_node(key, node)
