"""The versions of every topic's schema, kept in metadata: a history that changes by compare-and-set (I9), and one node
for each definition, written together with the history that names it.

The partitions of a topic share one schema. Any broker may read and write it; nothing here needs ownership.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from actors.broker.schema_compatibility import check_compatible, check_definition
from actors.broker.session_guard import needs_session
from actors.broker.topic_record import now_ms
from heliograph.errors import IncompatibleSchemaError, NotFoundError, QuotaExceededError, ServiceNotReadyError
from heliograph.protocol.schema import SchemaInfo, SchemaType
from heliograph.protocol.topic_name import TopicName
from metadata import codec, paths
from metadata.errors import BadVersionError, ConnectionLossError, NodeExistsError, NoNodeError
from metadata.model import Policies, SchemaHistory, SchemaRecord, SchemaVersion, Versioned
from metadata.store import Create, Delete, MetadataStore, Set
from metadata.update_loop import read

VERSIONS_MAX = 1_000  # of one topic's schema
ROUNDS_MAX = 20  # of one change, against others that change the same history

_JSON_TYPES = {SchemaType.AVRO, SchemaType.JSON, SchemaType.PROTOBUF, SchemaType.PROTOBUF_NATIVE}


class SchemaNotFoundError(NotFoundError):
    """The topic has no schema, or not that version of it."""


@dataclass(frozen=True, slots=True)
class StoredSchema:
    """One version of a topic's schema."""

    version: int
    schema: SchemaInfo
    created_ms: int


class SchemaRegistry:
    """All calls on one event loop."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def add(self, topic: TopicName, schema: SchemaInfo, policies: Policies, *, is_admin: bool = False) -> int:
        """The version of a schema, which becomes the newest where the topic did not have it yet.

        A lost call may have added it; the same call finds it then.

        Args:
            is_admin: an operator's word counts where producers may not add versions.

        Raises:
            IncompatibleSchemaError: it is malformed, must not follow what is there, or producers may not add any.
            QuotaExceededError: the topic has VERSIONS_MAX versions.
            ServiceNotReadyError: others keep changing it, or the session is over; try again.
        """
        check_definition(schema)
        digest = digest_of(schema)
        for _ in range(ROUNDS_MAX):
            found = await self._history(topic)
            living = _living(found.record.versions)
            for line in living:
                if line.digest == digest:
                    return line.version
            if not (is_admin or policies.schema_auto_update) and living:
                raise IncompatibleSchemaError(f"producers may not change the schema of {topic}", field="schema")
            if len(found.record.versions) >= VERSIONS_MAX:
                raise QuotaExceededError(f"{topic} has {VERSIONS_MAX} versions of its schema", field="schema")
            check_compatible(schema, await self._definitions(topic, living), policies.schema_compatibility)
            line = SchemaVersion(_next_version(found.record), digest, now_ms())
            if await self._append(topic, found, line, schema):
                return line.version
        raise ServiceNotReadyError(f"the schema of {topic} keeps changing")

    async def check_consumer(self, topic: TopicName, schema: SchemaInfo, policies: Policies) -> None:
        """Raise IncompatibleSchemaError unless a consumer with this schema can read the topic."""
        check_definition(schema)
        living = _living((await self._history(topic)).record.versions)
        if not living:
            raise IncompatibleSchemaError(f"{topic} has no schema to read by", field="schema")
        if any(line.digest == digest_of(schema) for line in living):
            return
        check_compatible(schema, await self._definitions(topic, living), policies.schema_compatibility)

    async def check(self, topic: TopicName, schema: SchemaInfo, policies: Policies) -> None:
        """Raise IncompatibleSchemaError unless ``add`` would take the schema."""
        check_definition(schema)
        living = _living((await self._history(topic)).record.versions)
        check_compatible(schema, await self._definitions(topic, living), policies.schema_compatibility)

    async def has_schema(self, topic: TopicName) -> bool:
        """Whether the topic has one now."""
        return bool(_living((await self._history(topic)).record.versions))

    async def version_of(self, topic: TopicName, schema: SchemaInfo) -> int | None:
        """The version that this schema is, None when it is none of the topic's."""
        digest = digest_of(schema)
        living = _living((await self._history(topic)).record.versions)
        return next((line.version for line in living if line.digest == digest), None)

    async def get(self, topic: TopicName, version: int | None = None) -> StoredSchema:
        """One version, the newest by default.

        Raises:
            SchemaNotFoundError: there is none, or it was deleted.
        """
        versions = (await self._history(topic)).record.versions
        wanted = version if version is not None or not versions else versions[-1].version
        versions = tuple(line for line in versions if line.version == wanted)
        if not versions or not versions[0].digest:
            raise SchemaNotFoundError(f"{topic} has no such schema", field="schema")
        line = versions[0]
        [schema] = await self._definitions(topic, [line])
        return StoredSchema(line.version, schema, line.created_ms)

    async def versions(self, topic: TopicName) -> list[StoredSchema]:
        """Every version since the last deletion, oldest first."""
        living = _living((await self._history(topic)).record.versions)
        schemas = await self._definitions(topic, living)
        return [
            StoredSchema(line.version, schema, line.created_ms) for line, schema in zip(living, schemas, strict=True)
        ]

    async def delete(self, topic: TopicName) -> int:
        """Have the topic start anew without a schema; returns the version that stands for this.

        Raises:
            SchemaNotFoundError: it has none.
        """
        for _ in range(ROUNDS_MAX):
            found = await self._history(topic)
            if not _living(found.record.versions):
                raise SchemaNotFoundError(f"{topic} has no schema", field="schema")
            line = SchemaVersion(_next_version(found.record), "", now_ms())
            if await self._append(topic, found, line, None):
                return line.version
        raise ServiceNotReadyError(f"the schema of {topic} keeps changing")

    async def forget(self, topic: TopicName) -> None:
        """Remove everything that is kept of a topic that goes."""
        path = _path(topic)
        with needs_session():
            for _ in range(ROUNDS_MAX):
                found = await self._history(topic)
                if found.version < 0:
                    return
                lines = [line for line in found.record.versions if line.digest]
                deletions = [Delete(paths.schema(path, line.version)) for line in lines]
                try:
                    await self._store.multi([*deletions, Delete(path, found.version)])
                except (BadVersionError, NoNodeError):
                    continue
                return

    async def _history(self, topic: TopicName) -> Versioned[SchemaHistory]:
        """The history, of version -1 where there is none."""
        try:
            with needs_session():
                return await read(self._store, _path(topic), SchemaHistory)
        except NoNodeError:
            return Versioned(SchemaHistory(), -1)

    async def _definitions(self, topic: TopicName, lines: Sequence[SchemaVersion]) -> list[SchemaInfo]:
        found = []
        for line in lines:
            try:
                with needs_session():
                    record = (await read(self._store, paths.schema(_path(topic), line.version), SchemaRecord)).record
            except NoNodeError:
                raise ServiceNotReadyError(f"the schema of {topic} is being deleted") from None
            data = base64.b64decode(record.data)
            found.append(SchemaInfo(SchemaType.named(record.type), data, record.name, record.properties))
        return found

    async def _append(
        self, topic: TopicName, found: Versioned[SchemaHistory], line: SchemaVersion, schema: SchemaInfo | None
    ) -> bool:
        """Whether the line was added to the history as it was found."""
        path = _path(topic)
        value = codec.encode(replace(found.record, versions=(*found.record.versions, line)))
        try:
            with needs_session():
                if found.version < 0:
                    await self._ensure(path)
                    found = Versioned(SchemaHistory(), 0)
                definition = [] if schema is None else [Create(paths.schema(path, line.version), _record(schema))]
                await self._store.multi([Set(path, value, found.version), *definition])
        except (BadVersionError, NodeExistsError, NoNodeError, ConnectionLossError):
            return False  # the next round sees what became of it  # I9
        return True

    async def _ensure(self, path: str) -> None:
        try:
            await self._store.create(path, codec.encode(SchemaHistory()), parents=True)
        except NodeExistsError:
            return


def digest_of(schema: SchemaInfo) -> str:
    """What two equal definitions have in common, whatever the spaces and the order of keys in their JSON."""
    data = schema.data
    if schema.type in _JSON_TYPES:
        data = json.dumps(json.loads(data), sort_keys=True, separators=(",", ":")).encode()
    return hashlib.sha256(schema.type.name.encode() + b"\0" + data).hexdigest()


def _record(schema: SchemaInfo) -> bytes:
    data = base64.b64encode(schema.data).decode()
    return codec.encode(SchemaRecord(schema.type.name, data, schema.name, dict(schema.properties)))


def _next_version(history: SchemaHistory) -> int:
    return history.versions[-1].version + 1 if history.versions else 0


def _living(versions: Sequence[SchemaVersion]) -> list[SchemaVersion]:
    """The versions since the last deletion."""
    living: list[SchemaVersion] = []
    for line in versions:
        living = [*living, line] if line.digest else []
    return living


def _path(topic: TopicName) -> str:
    whole = TopicName.parse(topic.partitioned_name)
    return paths.schemas(whole.tenant, whole.namespace_name, whole.local_name)
