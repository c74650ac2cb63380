"""The decoders of the values of one topic or partition, by the version of the schema that they were written with."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from heliograph.base.errors import Advice, HeliographError
from heliograph.client.schemas.schema import DecodeValue, Schema
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.schema import SchemaInfo, from_wire
from heliograph.protocol.server_error import exception_of
from heliograph.protocol.topic_name import TopicName

if TYPE_CHECKING:
    from heliograph.client.aio.session import ClientSession

VERSIONS_MAX = 1000  # of a topic's schema whose decoders are kept; the oldest is asked for again # I15

_T = pb.BaseCommand


class ValueDecoders:
    """The decoders of one partition.

    Args:
        schema: Schema of the consumer, to which values are decoded.
    """

    def __init__(self, session: ClientSession, topic: TopicName, schema: Schema) -> None:
        self._session = session
        self._topic = topic
        self._schema = schema
        self._known: dict[bytes, DecodeValue] = {}  # by version; empty for messages without

    def known(self, version: bytes) -> DecodeValue | None:
        """Return the decoder of a version, if it does not have to be fetched."""
        found = self._known.get(version)
        if found is None and not version:
            found = self._made(version, None)
        return found

    async def fetch(self, version: bytes) -> DecodeValue:
        """Return the decoder of a version, which the broker's registry has.

        A decoder raises whatever kept it from being made: each value tells, and no message is lost.
        """
        try:
            return self._made(version, await self._session.retry(lambda: self._ask(version)))
        except HeliographError as error:
            failing = _failing(error)
            if error.advice is Advice.STOP:
                self._keep(version, failing)
            return failing

    def _made(self, version: bytes, written: SchemaInfo | None) -> DecodeValue:
        try:
            decode = self._schema.decoder(written)
        except HeliographError as error:
            decode = _failing(error)
        self._keep(version, decode)
        return decode

    def _keep(self, version: bytes, decode: DecodeValue) -> None:
        self._known[version] = decode
        if len(self._known) > VERSIONS_MAX:  # I15
            del self._known[next(iter(self._known))]

    async def _ask(self, version: bytes) -> SchemaInfo:
        connection = await self._session.lookup.owner(self._topic)

        def build(request_id: int) -> pb.BaseCommand:
            question = pb.CommandGetSchema(request_id=request_id, topic=str(self._topic), schema_version=version)
            return pb.BaseCommand(type=_T.GET_SCHEMA, get_schema=question)

        answer: pb.CommandGetSchemaResponse = await connection.request(build)
        if answer.HasField("error_code"):
            raise exception_of(answer.error_code, answer.error_message)
        return from_wire(answer.schema)


def _failing(error: HeliographError) -> DecodeValue:
    def fail(value: bytes) -> NoReturn:
        raise error

    return fail
