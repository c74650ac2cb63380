"""Formats of the metadata store and its backups."""

from __future__ import annotations

import shutil
import tempfile
from abc import abstractmethod
from base64 import b64decode, b64encode
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import msgpack
from typing_extensions import override

from heliograph.base.errors import ResourceError
from heliograph.metadata import codec
from heliograph.metadata.backends.embedded.server import record as embedded
from heliograph.metadata.backends.embedded.server.nodes import StoredNodes
from heliograph.metadata.backends.embedded.server.storage import TreeStorage
from heliograph.metadata.backends.etcd.wire import record as etcd
from heliograph.metadata.backup.file import BackupSummary, BackupWriter, read_nodes, read_summary
from heliograph.metadata.backup.node import BackupNode
from heliograph.metadata.errors import MetadataError, RecordError
from heliograph.metadata.model import CursorRecord, NamespacePolicies, SchemaRecord, TopicRecord
from heliograph.metadata.tree import ZnodeTree
from heliograph.metadata.znode import Znode, check_path
from tests.cluster.support.bookie_folders import quick_folder
from tests.fuzz.formats.format import Form, Format

VALUE_BYTES = 20_000


def path_of(content: bytes) -> str:
    """Return the path of a node whose name is as much of a content as a name may be."""
    name = "".join(each for each in content.decode("latin-1") if each.isprintable() and each != "/")[:200]
    try:
        check_path(f"/{name}")
    except MetadataError:
        return "/~"
    return f"/{name}"


class RecordValues(Format):
    """Texts of clients in a record: names and properties."""

    form = Form.VALUE
    refusals = (RecordError,)

    @override
    def write(self, contents: Sequence[bytes], old: bytes) -> bytes:
        return codec.encode(self.record([content.decode("latin-1") for content in contents]))

    @override
    def read(self, image: bytes) -> list[bytes]:
        return [text.encode("latin-1") for text in self.texts(image)]

    @override
    def pieces(self) -> list[bytes]:
        return [b'","x":"', b'\\"}\nheliograph CursorRecord v1 00000000\n{', b"\0\x1f\x7f"]

    @abstractmethod
    def record(self, texts: Sequence[str]) -> Any:
        """Return a record with these texts."""

    @abstractmethod
    def texts(self, image: bytes) -> list[str]:
        """Return the texts of a value."""


def properties_of(texts: Sequence[str]) -> dict[str, str]:
    """Return properties whose names and values are these texts."""
    return {f"{place}{text}": text for place, text in enumerate(texts)}


def texts_in(properties: dict[str, str]) -> list[str]:
    assert all(name[1:] == text for name, text in properties.items())
    return list(properties.values())


class CursorRecords(RecordValues):
    """The record of a subscription: its name, and its properties."""

    name = "cursor records"
    headings = ("formats.md#Records in the metadata store", "formats-metadata.md#Records: versions and limits")

    @override
    def record(self, texts: Sequence[str]) -> CursorRecord:
        return CursorRecord(texts[0], (1, 2), 3, properties_of(texts))

    @override
    def texts(self, image: bytes) -> list[str]:
        found = codec.decode(CursorRecord, image)
        assert (found.mark_delete, found.cursor_ledger_id) == ((1, 2), 3)
        assert texts_in(found.properties)[0] == found.subscription
        return texts_in(found.properties)


class TopicRecords(RecordValues):
    """The record of a topic, with properties of the user beside those of the broker."""

    name = "topic records"
    headings = ("formats-broker.md#Topic record",)

    @override
    def record(self, texts: Sequence[str]) -> TopicRecord:
        own = {f"user.{name}": text for name, text in properties_of(texts).items()}
        return TopicRecord(f"persistent://a/b/{texts[0]}", properties={**own, "whole": "yes"})

    @override
    def texts(self, image: bytes) -> list[str]:
        found = codec.decode(TopicRecord, image)
        assert found.properties.pop("whole") == "yes"
        texts = texts_in({name.removeprefix("user."): text for name, text in found.properties.items()})
        assert found.name == f"persistent://a/b/{texts[0]}"
        return texts


class NamespaceRecords(RecordValues):
    """The policies of a namespace, with the user's notes."""

    name = "records of namespaces"
    headings = ("formats-broker.md#Tenants, namespaces, bundles",)

    @override
    def record(self, texts: Sequence[str]) -> NamespacePolicies:
        return NamespacePolicies(properties=properties_of(texts))

    @override
    def texts(self, image: bytes) -> list[str]:
        return texts_in(codec.decode(NamespacePolicies, image).properties)


class SchemaRecords(RecordValues):
    """The definition of a schema."""

    name = "schemas"
    headings = ("formats-broker.md#Schemas",)

    @override
    def record(self, texts: Sequence[str]) -> SchemaRecord:
        data = b64encode(texts[0].encode("latin-1")).decode()
        return SchemaRecord("JSON", data, texts[0], properties_of(texts))

    @override
    def texts(self, image: bytes) -> list[str]:
        found = codec.decode(SchemaRecord, image)
        texts = texts_in(found.properties)
        assert b64decode(found.data) == texts[0].encode("latin-1")
        assert (found.type, found.name) == ("JSON", texts[0])
        return texts


class EmbeddedStore(Format):
    """RocksDB's log below the embedded store: nodes whose names and values are a client's."""

    name = "embedded store"
    headings = ("formats-metadata.md#Keys and values in RocksDB",)
    form = Form.LOG
    refusals = (ResourceError, RecordError)

    @override
    def fit(self, content: bytes) -> bytes:
        """Let the log have many blocks: what is damaged ends one."""
        return content[:VALUE_BYTES]

    def __init__(self, random: Random) -> None:
        super().__init__(random)
        self._others: dict[str, bytes] = {}
        self._log = ""

    @override
    def write(self, contents: Sequence[bytes], old: bytes) -> bytes:
        with quick_folder() as folder:
            storage = TreeStorage(folder / "live")
            for number, content in enumerate(contents, 1):
                path = f"{path_of(content)}-{number}"
                key = embedded.node_key(path)
                value = embedded.encode_node(key, Znode(content, number, number, number, 0, 0, 0, 5, 5))
                storage.write([(key, value), (embedded.STATE_KEY, embedded.encode_state(number))])
            shutil.copytree(folder / "live", folder / "killed", ignore=shutil.ignore_patterns("LOCK"))
            storage.close()
            self._others = {path.name: path.read_bytes() for path in (folder / "killed").iterdir()}
        (self._log,) = [name for name in self._others if name.endswith(".log")]
        return self._others.pop(self._log)

    @override
    def read(self, image: bytes) -> list[bytes]:
        with quick_folder() as folder:
            for name, content in {**self._others, self._log: image}.items():
                (folder / name).write_bytes(content)
            storage = TreeStorage(folder)
            try:
                state = storage.load()
                tree = ZnodeTree(StoredNodes(storage, state.nodes))
                read = [(f"/{name}", tree.node(f"/{name}")) for name in tree.children("/")]
            finally:
                storage.close()
        nodes = sorted((node.czxid, path, node.value) for path, node in read)
        found = []
        for place, (zxid, path, value) in enumerate(nodes, 1):
            assert value is not None
            assert (zxid, path) == (place, f"{path_of(value)}-{place}")
            found.append(value)
        return found


class BackupFile(Format):
    """A backup of nodes whose names, values and ACLs are a client's."""

    name = "backup"
    headings = ("formats-metadata.md#The file of a backup",)
    form = Form.VALUE
    refusals = (RecordError,)

    @override
    def write(self, contents: Sequence[bytes], old: bytes) -> bytes:
        with tempfile.TemporaryDirectory() as folder, BackupWriter(Path(folder) / "backup") as writer:
            for place, content in enumerate(contents):
                writer.add(BackupNode(f"{path_of(content)}-{place}", content, acl=content or None))
            digest = writer.digest
            writer.finish(BackupSummary("i", 1, digest.nodes, digest.value(), 0, contents[0], None, 0, writer.acls))
            return (Path(folder) / "backup").read_bytes()

    @override
    def read(self, image: bytes) -> list[bytes]:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "backup"
            path.write_bytes(image)
            read_summary(path)  # first, as a restore does
            found = []
            for place, node in enumerate(read_nodes(path)):
                assert node.value is not None
                assert (node.path, node.acl) == (f"{path_of(node.value)}-{place}", node.value or None)
                found.append(node.value)
            return found

    @override
    def pieces(self) -> list[bytes]:
        return [msgpack.packb([1, "/forged", b"", 0, 0, None]), b"heliograph backup v1\n"]


class EtcdNodes(Format):
    """The value of a node's key in etcd."""

    name = "etcd backend"
    headings = ("formats-metadata.md#The etcd backend",)
    form = Form.VALUE
    refusals = (RecordError,)
    contents_max = 1
    KEY = b"p:tn0001/node"

    @override
    def write(self, contents: Sequence[bytes], old: bytes) -> bytes:
        kind = self.random.choice((0, -(1 << 63)))
        return etcd.encode_node(self.KEY, etcd.NodeHead(1, 2, 3, 4, kind), contents[0])

    @override
    def read(self, image: bytes) -> list[bytes]:
        head, value = etcd.decode_node(self.KEY, image)
        assert value is not None
        assert (head.czxid, head.version, head.created_ms, head.modified_ms) == (1, 2, 3, 4)
        return [value]
