"""The schema registry: the versions of every topic's schema in metadata.

A topic has a history that changes by compare-and-set (I9), and one node for each definition, written together with the
history that names it. The partitions of a topic share one schema. Any broker may use it; no ownership is needed.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from heliograph.actors.broker.limits import unpacking
from heliograph.actors.broker.namespaces.session_guard import needs_session
from heliograph.actors.broker.schema.check_budget import SchemaChecks
from heliograph.base.clock import wall_ms
from heliograph.base.errors import (
    IncompatibleSchemaError,
    MalformedJsonError,
    NotFoundError,
    QuotaExceededError,
    ServiceNotReadyError,
)
from heliograph.base.guard.json_text import parse_json
from heliograph.metadata import codec, paths
from heliograph.metadata.errors import BadVersionError, ConnectionLossError, NodeExistsError, NoNodeError
from heliograph.metadata.model import Policies, SchemaHistory, SchemaRecord, SchemaVersion, Versioned
from heliograph.metadata.recipes.update_loop import read
from heliograph.metadata.store import Create, Delete, MetadataStore, Set, Stat
from heliograph.protocol.schema import SCHEMA_BYTES_MAX, SchemaInfo, SchemaType
from heliograph.protocol.topic_name import TopicName

VERSIONS_MAX = 1_000  # of one topic's schema
DEFINITIONS_BYTES_MAX = 16 << 20  # of all versions of one topic's schema, as they are stored  # I15
RECORD_BYTES_MAX = SCHEMA_BYTES_MAX * 4 // 3 + (128 << 10)  # of one version, in base64
DELETED_AT_ONCE = 25  # versions; a transaction of etcd has at most 128 operations, of which each takes some
ROUNDS_MAX = 20  # of one change while others change the same history
SMALL_BYTES = 16 << 10  # a definition up to this is read in a millisecond; a larger one gets a thread

_JSON_TYPES = {SchemaType.AVRO, SchemaType.JSON, SchemaType.PROTOBUF, SchemaType.PROTOBUF_NATIVE}


class SchemaNotFoundError(NotFoundError):
    """The topic has no schema, or no such version of it."""


@dataclass(frozen=True, slots=True)
class StoredSchema:
    """One version of a topic's schema."""

    version: int
    schema: SchemaInfo
    created_ms: int


class SchemaRegistry:
    """Reads and writes the versions of schemas. All calls on one event loop."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._checks = SchemaChecks()

    async def add(self, topic: TopicName, schema: SchemaInfo, policies: Policies, *, is_admin: bool = False) -> int:
        """Return the version of a schema. Add it as the newest version if the topic does not have it.

        A lost call may have added it; repeating the call is safe.

        Args:
            is_admin: an operator may add versions where producers may not.

        Raises:
            IncompatibleSchemaError: the schema is malformed or not compatible, or producers may not add versions.
            SchemaTooComplexError: the check would take more than one may; the text names the limit.
            QuotaExceededError: the topic has VERSIONS_MAX versions, or DEFINITIONS_BYTES_MAX of them, or too many
                checks wait.
            ServiceNotReadyError: others keep changing the schema, or the session is over; try again.
        """
        digest = await digest_of(schema)
        is_checked = False
        for _ in range(ROUNDS_MAX):
            found = await self._history(topic)
            current = _current(found.record.versions)
            for line in current:
                if line.digest == digest:
                    return line.version
            if not is_checked:
                await self._checks.run(_path(topic), partial(check_definition, schema))
                is_checked = True
            if not (is_admin or policies.schema_auto_update) and current:
                raise IncompatibleSchemaError(f"producers may not change the schema of {topic}", field="schema")
            if len(found.record.versions) >= VERSIONS_MAX:
                raise QuotaExceededError(f"{topic} has {VERSIONS_MAX} versions of its schema", field="schema")
            await self._check_compatible(topic, schema, current, policies)
            await self._check_room(topic, [line for line in found.record.versions if line.digest])
            line = SchemaVersion(_next_version(found.record), digest, wall_ms())
            if await self._append(topic, found, line, schema):
                return line.version
        raise ServiceNotReadyError(f"the schema of {topic} keeps changing, try again")

    async def check_consumer(self, topic: TopicName, schema: SchemaInfo, policies: Policies) -> None:
        """Raise IncompatibleSchemaError unless a consumer with this schema can read the topic, or it has no schema."""
        digest = await digest_of(schema)
        current = _current((await self._history(topic)).record.versions)
        if all(line.digest != digest for line in current):
            await self._checks.run(_path(topic), partial(check_definition, schema))
            await self._check_compatible(topic, schema, current, policies)

    async def check(self, topic: TopicName, schema: SchemaInfo, policies: Policies) -> None:
        """Raise IncompatibleSchemaError unless ``add`` would accept the schema."""
        digest = await digest_of(schema)
        current = _current((await self._history(topic)).record.versions)
        if all(line.digest != digest for line in current):
            await self._checks.run(_path(topic), partial(check_definition, schema))
        await self._check_compatible(topic, schema, current, policies)

    async def has_schema(self, topic: TopicName) -> bool:
        return bool(_current((await self._history(topic)).record.versions))

    async def version_of(self, topic: TopicName, schema: SchemaInfo) -> int | None:
        """Return the version of a schema, None if the topic does not have it."""
        digest = await digest_of(schema)
        current = _current((await self._history(topic)).record.versions)
        return next((line.version for line in current if line.digest == digest), None)

    async def get(self, topic: TopicName, version: int | None = None) -> StoredSchema:
        """Return one version, the newest by default.

        Raises:
            SchemaNotFoundError: there is none, or it was deleted.
        """
        current = _current((await self._history(topic)).record.versions)
        wanted = version if version is not None or not current else current[-1].version
        line = next((line for line in current if line.version == wanted), None)
        if line is None:
            raise SchemaNotFoundError(f"{topic} has no such schema", field="schema")
        [schema] = await self._definitions(topic, [line])
        return StoredSchema(line.version, schema, line.created_ms)

    async def versions(self, topic: TopicName) -> list[StoredSchema]:
        """Return every version since the last deletion, oldest first."""
        current = _current((await self._history(topic)).record.versions)
        schemas = await self._definitions(topic, current)
        return [
            StoredSchema(line.version, schema, line.created_ms) for line, schema in zip(current, schemas, strict=True)
        ]

    async def delete(self, topic: TopicName) -> int:
        """Delete the schema of a topic, which may get a new one then. Return the version that marks the deletion.

        Raises:
            SchemaNotFoundError: the topic has no schema.
        """
        for _ in range(ROUNDS_MAX):
            found = await self._history(topic)
            if not _current(found.record.versions):
                raise SchemaNotFoundError(f"{topic} has no schema", field="schema")
            line = SchemaVersion(_next_version(found.record), "", wall_ms())
            if await self._append(topic, found, line, None):
                return line.version
        raise ServiceNotReadyError(f"the schema of {topic} keeps changing, try again")

    async def forget(self, topic: TopicName) -> None:
        """Delete the history and all definitions of a topic that is deleted."""
        path = _path(topic)
        with needs_session():
            for _ in range(ROUNDS_MAX):
                found = await self._history(topic)
                if found.version < 0:
                    return
                try:
                    await self._forget(path, found)
                except (BadVersionError, NoNodeError):
                    continue
                return

    async def _forget(self, path: str, found: Versioned[SchemaHistory]) -> None:
        """Delete the definitions, oldest first, as many at a time as every store takes, and then the history."""
        lines = [line for line in found.record.versions if line.digest]
        while lines:
            some, lines = lines[:DELETED_AT_ONCE], lines[DELETED_AT_ONCE:]
            deletions = [Delete(paths.schema(path, line.version)) for line in some]
            left = codec.encode(replace(found.record, versions=tuple(lines)))
            *_, stat = await self._store.multi([*deletions, Set(path, left, found.version)])
            assert isinstance(stat, Stat), "a Set is answered by one"
            found = Versioned(found.record, stat.version)
        await self._store.delete(path, found.version)

    async def _history(self, topic: TopicName) -> Versioned[SchemaHistory]:
        """Return the history; a topic without one has an empty history of version -1."""
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

    async def _check_room(self, topic: TopicName, lines: Sequence[SchemaVersion]) -> None:
        """Raise QuotaExceededError if the stored definitions are so large that a list of them is not to grow."""
        if len(lines) * RECORD_BYTES_MAX <= DEFINITIONS_BYTES_MAX:
            return
        size = 0
        for line in lines:
            with needs_session():
                stat = await self._store.exists(paths.schema(_path(topic), line.version))
            size += 0 if stat is None else stat.data_length
        if size > DEFINITIONS_BYTES_MAX:
            raise QuotaExceededError(
                f"the versions of the schema of {topic} have {size} bytes: delete the schema, or use another topic",
                field="schema",
                limit=f"{DEFINITIONS_BYTES_MAX} bytes",
            )

    async def _check_compatible(
        self, topic: TopicName, schema: SchemaInfo, current: Sequence[SchemaVersion], policies: Policies
    ) -> None:
        strategy = policies.schema_compatibility
        compared = current if strategy.endswith("_TRANSITIVE") else current[-1:]  # the others need not be read
        size = 2 * min(len(compared) * RECORD_BYTES_MAX, DEFINITIONS_BYTES_MAX + RECORD_BYTES_MAX)  # the records, too
        with await unpacking.budget.take(topic.tenant, size):
            before = await self._definitions(topic, compared)
            await self._checks.run(_path(topic), partial(check_compatible, schema, before, strategy))

    async def _append(
        self, topic: TopicName, found: Versioned[SchemaHistory], line: SchemaVersion, schema: SchemaInfo | None
    ) -> bool:
        """Append a line to the history. Return False if the history changed meanwhile."""
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
            return False  # the next round sees whether the write was done  # I9
        return True

    async def _ensure(self, path: str) -> None:
        try:
            await self._store.create(path, codec.encode(SchemaHistory()), parents=True)
        except NodeExistsError:
            return


async def digest_of(schema: SchemaInfo) -> str:
    """Return a hash of a definition that does not depend on spaces and the order of keys in its JSON.

    Raises:
        IncompatibleSchemaError: it is of a type whose definitions are JSON, and is not.
    """
    if len(schema.data) <= SMALL_BYTES:
        return _digest_of(schema)
    return await asyncio.to_thread(_digest_of, schema)


def _digest_of(schema: SchemaInfo) -> str:
    data = schema.data
    if schema.type in _JSON_TYPES:
        try:
            definition = parse_json(data, f"the {schema.type.name} schema", "schema", is_stored=True)
        except MalformedJsonError as error:
            raise IncompatibleSchemaError(str(error), field="schema", limit=error.limit) from error
        data = json.dumps(definition, sort_keys=True, separators=(",", ":")).encode()
    return hashlib.sha256(schema.type.name.encode() + b"\0" + data).hexdigest()


def _record(schema: SchemaInfo) -> bytes:
    data = base64.b64encode(schema.data).decode()
    return codec.encode(SchemaRecord(schema.type.name, data, schema.name, dict(schema.properties)))


def _next_version(history: SchemaHistory) -> int:
    return history.versions[-1].version + 1 if history.versions else 0


def _current(versions: Sequence[SchemaVersion]) -> list[SchemaVersion]:
    """Return the versions since the last deletion."""
    current: list[SchemaVersion] = []
    for line in versions:
        if line.digest:
            current.append(line)
        else:
            current.clear()
    return current


def _path(topic: TopicName) -> str:
    parent = TopicName.parse(topic.partitioned_name)
    return paths.schemas(parent.tenant, parent.namespace_name, parent.local_name)


def check_definition(schema: SchemaInfo) -> None:
    """Check a schema; see ``compatibility``, which loads Avro, so that only a broker with schemas does."""
    from heliograph.actors.broker.schema import compatibility

    compatibility.check_definition(schema)


def check_compatible(schema: SchemaInfo, before: Sequence[SchemaInfo], strategy: str) -> None:
    """Check a schema against those before it; see ``compatibility``."""
    from heliograph.actors.broker.schema import compatibility

    compatibility.check_compatible(schema, before, strategy)
