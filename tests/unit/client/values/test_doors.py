"""Generated models, records and values by every door: REST, WebSockets, own handles and tables, with one broker."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import io
import json
import math
import re
import urllib.parse
import uuid
from typing import Any, Literal

import fastavro
import httpx
import pydantic
import pytest
from hypothesis import strategies as st
from pydantic_core import to_jsonable_python

import heliograph
from heliograph.base.errors import BadRequestError
from heliograph.client.schemas.models import ModelSchema
from heliograph.client.schemas.records import AvroSchema
from heliograph.pipelines.planning.access import ClusterAccess
from heliograph.pipelines.planning.plan import plan_topic, schema_versions
from heliograph.pipelines.reading.range_reader import read_table
from heliograph.pipelines.reading.registry import schemas_of
from heliograph.protocol.schema import without_logical_types
from tests.unit.client.values import test_avro as avro
from tests.unit.client.values.strategies import PLAIN, Kind, are_equal, generated, kinds, models, some
from tests.websocket import connect

pytestmark = pytest.mark.slow

SECONDS = 60
SCHEMAS = 12  # of each kind
VALUES = 2  # of each schema
MORE = {"name": "more", "type": ["null", "string"], "default": None}
PLACE = "persistent/public/default"


class Doors:
    """A topic, whose values have a schema, as those without a client of Pulsar reach it."""

    def __init__(self, cluster: heliograph.LocalCluster, schema: ModelSchema | AvroSchema) -> None:
        self.cluster = cluster
        self.topic = f"doors-{uuid.uuid4().hex}"
        definition = base64.b64encode(schema.info.data).decode()
        info = {"name": "", "type": schema.info.type.name, "schema": definition, "properties": {}}
        self.info = json.dumps(info)
        self.query = urllib.parse.urlencode({"valueSchema": self.info, "payloadFormat": "json"})
        self.sockets = f"{cluster.http_url.replace('http', 'ws', 1)}/ws/v2"

    async def post(self, http: httpx.AsyncClient, text: str) -> str | None:
        """Publish a value that is JSON text by REST; return why it is refused."""
        body = {"valueSchema": self.info, "messages": [{"payload": text}]}
        answer = await http.post(f"{self.cluster.http_url}/topics/{PLACE}/{self.topic}", json=body)
        assert answer.status_code in (200, 400), answer.text
        return None if answer.status_code == 200 else str(answer.json()["reason"])

    async def send(self, texts: list[str]) -> list[str | None]:
        """Publish values that are JSON by a WebSocket; return why each is refused."""
        async with connect(f"{self.sockets}/producer/{PLACE}/{self.topic}?{self.query}") as peer:
            for text in texts:
                await peer.send(f'{{"payload": {text}}}')
            answers = [json.loads(await peer.recv()) for _ in texts]
        return [None if answer["result"] == "ok" else answer["errorMsg"] for answer in answers]

    async def frames(self, count: int) -> list[dict[str, Any]]:
        """Return the first messages as a WebSocket's reader with the schema shows them."""
        url = f"{self.sockets}/reader/{PLACE}/{self.topic}?messageId=earliest&{self.query}"
        async with connect(url) as peer, asyncio.timeout(SECONDS):
            found = []
            for _ in range(count):
                found.append(json.loads(await peer.recv()))
                await peer.send(json.dumps({"messageId": found[-1]["messageId"]}))
            return found

    def rows(self, maps_as_pydicts: Literal["strict"] | None = None) -> list[dict[str, Any]]:
        """Return the rows of the topic as a table."""
        access = ClusterAccess(gateway=self.cluster.http_url)
        schemas = schemas_of(self.topic, schema_versions(self.topic, access))
        ranges = plan_topic(self.topic, access=access)
        batches = read_table(ranges, ("value",), schemas=schemas)
        return [row for batch in batches for row in batch.to_pylist(maps_as_pydicts=maps_as_pydicts)]

    async def values(self, client: heliograph.Client, schema: Any, count: int) -> list[Any]:
        """Return the first values as a reader with a schema decodes them."""

        def read() -> list[Any]:
            with client.reader(self.topic, "earliest", schema=schema) as reader:
                return [reader.receive(SECONDS).value for _ in range(count)]

        return await asyncio.to_thread(read)


def leaves(value: Any) -> list[Any]:
    """Return what is in an instance of a class, in order, as JSON holds it, without the names of fields."""
    if dataclasses.is_dataclass(value) or isinstance(value, pydantic.BaseModel):
        return [leaf for each in vars(value).values() for leaf in leaves(each)]
    if isinstance(value, dict):
        return [leaf for key, each in value.items() for leaf in (str(to_jsonable_python(key)), *leaves(each))]
    if isinstance(value, list | tuple | set):
        return [leaf for each in value for leaf in leaves(each)]
    return [] if value is None else [to_jsonable_python(value)]


def cells(value: Any) -> list[Any]:
    """Return what is in a row of a table, in order, without the names of columns."""
    if isinstance(value, dict):
        return [cell for each in value.values() for cell in cells(each)]
    if isinstance(value, list | tuple):
        return [cell for each in value for cell in cells(each)]
    return [] if value is None else [value.decode() if isinstance(value, bytes) else value]


MODELS = generated(
    models(kinds(PLAIN)).flatmap(lambda kind: st.tuples(st.just(kind), some(kind.values, VALUES))), 27, SCHEMAS
)
RECORDS = generated(avro.KINDS.flatmap(lambda kind: st.tuples(st.just(kind[0]), some(kind[1], VALUES))), 27, SCHEMAS)
DOUBTFUL = generated(
    avro.records(st.sampled_from(avro.DOUBTFUL + avro.STORED)).flatmap(
        lambda kind: st.tuples(st.just(kind[0]), some(kind[1], 3 * VALUES))
    ),
    27,
    SCHEMAS,
)


async def test_models_come_back_from_every_door(cluster: heliograph.LocalCluster, client: heliograph.Client) -> None:
    async with httpx.AsyncClient(timeout=SECONDS) as http:
        for kind, values in MODELS:
            await check_model(cluster, client, http, kind, values)


async def check_model(
    cluster: heliograph.LocalCluster, client: heliograph.Client, http: httpx.AsyncClient, kind: Kind, values: list[Any]
) -> None:
    schema: Any = ModelSchema(kind.type)
    doors, texts = Doors(cluster, schema), [schema.encode(value).decode() for value in values]
    await asyncio.to_thread(client.producer(doors.topic, schema=schema).send_many, values)
    assert [await doors.post(http, text) for text in texts] == [None] * VALUES
    assert await doors.send(texts) == [None] * VALUES
    sent = values * 3
    assert are_equal(await doors.values(client, schema, len(sent)), sent), kind
    frames = await doors.frames(len(sent))
    assert [frame["payload"] for frame in frames] == [json.loads(text) for text in texts] * 3, kind
    assert [cells(row) for row in await asyncio.to_thread(doors.rows)] == [leaves(value) for value in sent], kind


def stored(schema: AvroSchema, packed: bytes) -> Any:
    """Return a value in Avro without logical types, as REST and WebSockets have it."""
    plain = fastavro.parse_schema(without_logical_types(json.loads(schema.info.data)))
    return fastavro.schemaless_reader(io.BytesIO(packed), plain, None)


def is_json(value: Any) -> bool:
    """Return whether JSON holds a value of Avro: it has neither bytes nor numbers that are not finite."""
    if isinstance(value, dict):
        return all(map(is_json, value.values()))
    if isinstance(value, list):
        return all(map(is_json, value))
    return not isinstance(value, bytes) and not (isinstance(value, float) and not math.isfinite(value))


async def test_records_come_back_from_every_door(cluster: heliograph.LocalCluster, client: heliograph.Client) -> None:
    async with httpx.AsyncClient(timeout=SECONDS) as http:
        for definition, values in RECORDS:
            await check_records(cluster, client, http, definition, values)


async def check_records(
    cluster: heliograph.LocalCluster,
    client: heliograph.Client,
    http: httpx.AsyncClient,
    definition: dict[str, Any],
    values: list[Any],
) -> None:
    """Check that what JSON holds is taken and shown as such, and what it does not hold is refused and shown as bytes;
    and both after the record got a field with a default."""
    schema: Any = AvroSchema(definition)
    doors, packed = Doors(cluster, schema), [schema.encode(value) for value in values]
    plain = [stored(schema, each) for each in packed]
    both = list(zip(plain, packed, strict=True))
    sent, shown = list(values), list(both)
    await asyncio.to_thread(client.producer(doors.topic, schema=schema).send_many, values)
    texts = [json.dumps(each, default=lambda data: data.hex()) for each in plain]
    posted = [await doors.post(http, text) for text in texts]
    for refused in (posted, await doors.send(texts)):
        for value, each, reason in zip(values, both, refused, strict=True):
            if is_json(each[0]):
                assert reason is None, (definition, value)
                sent.append(value)
                shown.append(each)
            else:
                assert reason is not None, (definition, value)
                assert re.search(r"\bf[0-9]\b|JSON", reason), reason
    assert are_equal(await doors.values(client, schema, len(sent)), sent), definition
    for frame, (value, data) in zip(await doors.frames(len(sent)), shown, strict=True):
        assert frame["payload"] == (value if is_json(value) else None), definition
        assert is_json(value) or base64.b64decode(frame["payloadBase64"]) == data
    wider: Any = AvroSchema({**definition, "fields": [*definition["fields"], MORE]})
    await asyncio.to_thread(client.producer(doors.topic, schema=wider).send, {**values[0], "more": "x"})
    assert are_equal(await doors.values(client, schema, len(sent) + 1), [*sent, values[0]])
    sent = [*({**value, "more": None} for value in sent), {**values[0], "more": "x"}]
    assert are_equal(await doors.values(client, wider, len(sent)), sent), definition
    rows = await asyncio.to_thread(doors.rows, "strict")
    assert are_equal(rows, [avro.without_uuids(value) for value in sent]), definition


async def test_what_is_doubtful_is_taken_and_refused_alike(
    cluster: heliograph.LocalCluster, client: heliograph.Client
) -> None:
    """Each value that JSON can say: REST and WebSockets take it if the own client does, and it is read back equal."""
    taken = refused = 0
    async with httpx.AsyncClient(timeout=SECONDS) as http:
        for definition, values in DOUBTFUL:
            schema: Any = AvroSchema(definition)
            doors, packed = Doors(cluster, schema), []
            texts = [json.dumps(to_jsonable_python(value, fallback=str, bytes_mode="base64")) for value in values]
            sent = await doors.send(texts)
            for text, by_socket in zip(texts, sent, strict=True):
                try:
                    packed.append(schema.encode(json.loads(text)))
                    wanted = None
                    taken += 1
                except BadRequestError as error:
                    wanted = str(error)
                    assert re.search(r"\bf[0-9]\b", wanted)
                    refused += 1
                by_rest = await doors.post(http, text)
                for reason in (by_socket, by_rest):
                    assert (reason is None) == (wanted is None), (definition, text, reason, wanted)
                    assert reason is None or re.search(r"\bf[0-9]\b|JSON|surrogate|digits", reason), reason
            found = await doors.values(client, schema, 2 * len(packed))
            assert are_equal(found, [schema.decoder(None)(each) for each in packed * 2]), definition
    assert min(taken, refused) > SCHEMAS / 2
