"""The limit of each field of a command whose size a client chooses (I15).

A name that is stored for good has a smaller limit where it is made (``actors/broker/records/properties.py``): what
older versions have made can be used and deleted.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any, NamedTuple

from google.protobuf.message import EncodeError

from heliograph.actors.broker.records.properties import PROPERTIES_BYTES_MAX
from heliograph.base.errors import BadRequestError
from heliograph.protocol.entry import ENTRY_MESSAGES_MAX
from heliograph.protocol.pulsar_pb2 import BaseCommand
from heliograph.protocol.schema import SCHEMA_BYTES_MAX
from heliograph.protocol.texts import names_of_repeated

_OLD_NAME = 64 << 10  # of what an older version may have made; and of a topic, whose name is parsed
_NAME = 1 << 10
_CREDENTIALS = 64 << 10
_ONE_ID = 64 << 10  # with the bits of a batch's messages
_SCHEMA = SCHEMA_BYTES_MAX + PROPERTIES_BYTES_MAX + (64 << 10)


class Limit(NamedTuple):
    """The limit of one field.

    Args:
        bytes_max: of a text or bytes in UTF-8, or of all the messages in the field, as they are sent.
        count_max: of a repeated field.
    """

    bytes_max: int
    count_max: int = 1


# By the name of the field, in whatever command it is. ``tests/unit/broker/protocol/test_command_limits.py`` compares
# them with the fields of pulsar.proto.
LIMITS = {
    "topic": Limit(_OLD_NAME),
    "subscription": Limit(_OLD_NAME),
    "initial_subscription_name": Limit(_OLD_NAME),
    "namespace": Limit(_OLD_NAME),
    "producer_name": Limit(_NAME),
    "consumer_name": Limit(_NAME),
    "advertised_listener_name": Limit(_NAME),
    "topics_pattern": Limit(_OLD_NAME),
    "topics_hash": Limit(_NAME),
    "schema_version": Limit(_NAME),
    "operation": Limit(_NAME),
    "arguments": Limit(4 << 20),  # an administrative call refuses less in its own answer
    "client_version": Limit(_NAME),
    "auth_method_name": Limit(_NAME),
    "original_auth_method": Limit(_NAME),
    "original_principal": Limit(_NAME),
    "proxy_to_broker_url": Limit(_NAME),
    "assigned_broker_url": Limit(_NAME),
    "assigned_broker_url_tls": Limit(_NAME),
    "auth_data": Limit(_CREDENTIALS),
    "original_auth_data": Limit(_CREDENTIALS),
    "response": Limit(_CREDENTIALS),
    "feature_flags": Limit(_NAME),
    "metadata": Limit(PROPERTIES_BYTES_MAX + (16 << 10), 10_000),  # with the heads of the pairs
    "subscription_properties": Limit(PROPERTIES_BYTES_MAX + (16 << 10), 10_000),
    "schema": Limit(_SCHEMA),
    "key_shared_meta": Limit(64 << 10),
    "start_message_id": Limit(_ONE_ID),
    "properties": Limit(64 << 10, 1_000),  # of an acknowledgement
}
_SEND = BaseCommand.SEND
IDS = Limit(4 << 20, 50_000)  # a consumer may have so many unacknowledged messages by default
WORDS_MAX = ENTRY_MESSAGES_MAX // 64  # of one ack set
IDS_IN_TURN = 5_000  # are handled before other clients have a turn: some 20 ms
_OF_COMMANDS = {
    ("ack", "message_id"): IDS,
    ("redeliver_unack", "message_ids"): IDS,
    ("send", "message_id"): Limit(_ONE_ID),
    ("seek", "message_id"): Limit(_ONE_ID),
    ("flow", "in_hand"): Limit(_ONE_ID),
}


class _Field(NamedTuple):
    name: str
    limit: Limit
    is_repeated: bool
    is_message: bool


def check_command(command: BaseCommand) -> None:
    """Raise BadRequestError if a field of a client's command is above its limit; names both."""
    if command.type == _SEND and not command.send.HasField("message_id"):  # as most commands are, and their only limit
        return
    name, sized = _sized(command.type)
    if not sized:
        return
    wanted = getattr(command, name)
    for field in sized:
        if field.is_repeated:
            values = getattr(wanted, field.name)
            if len(values) > field.limit.count_max:
                raise BadRequestError(
                    f"{field.name} has {len(values)} parts", field=field.name, limit=f"{field.limit.count_max} parts"
                )
        elif field.is_message and not wanted.HasField(field.name):
            continue
        else:
            values = (getattr(wanted, field.name),)
        if field.limit is IDS and _is_small(wanted):
            continue
        try:
            size = sum(each.ByteSize() for each in values) if field.is_message else _bytes_of(values, field.limit)
        except EncodeError as error:  # protobuf reads a message within another one that lacks what it requires
            raise BadRequestError(f"{field.name} cannot be read: {error}", field=field.name) from error
        if size > field.limit.bytes_max:
            raise BadRequestError(
                f"{field.name} has {size} bytes", field=field.name, limit=f"{field.limit.bytes_max} bytes"
            )
        if field.limit is IDS and size > WORDS_MAX and any(len(each.ack_set) > WORDS_MAX for each in values):
            raise BadRequestError(
                f"{field.name} has a long ack_set", field=field.name, limit=f"{WORDS_MAX} words in one ack_set"
            )


def _is_small(wanted: Any) -> bool:
    """Return whether the ids in a command are below all limits, which takes one call of protobuf for all of them."""
    try:
        return bool(wanted.ByteSize() <= WORDS_MAX)
    except EncodeError:  # some message in it lacks what it requires
        return False


def _bytes_of(values: Iterable[str | bytes], limit: Limit) -> int:
    """Return the bytes of texts; characters are counted if they are too many already, or too few to matter."""
    size = sum(map(len, values))
    if size * 4 <= limit.bytes_max or size > limit.bytes_max:
        return size
    return sum(len(each.encode()) if isinstance(each, str) else len(each) for each in values)


@cache
def _sized(kind: int) -> tuple[str, tuple[_Field, ...]]:
    """Return the name of a command's message in BaseCommand, and its fields that have limits."""
    for field in BaseCommand.DESCRIPTOR.fields:
        if field.number == kind and field.message_type is not None:
            return field.name, tuple(_limited(field.name, field.message_type))
    return "", ()


def limit_of(command: str, field: str) -> Limit | None:
    """Return the limit of a field by its name and its command's name in ``BaseCommand``."""
    return _OF_COMMANDS.get((command, field), LIMITS.get(field))


def _limited(command: str, descriptor: Any) -> Iterable[_Field]:
    repeated = names_of_repeated(descriptor)
    for field in descriptor.fields:
        limit = limit_of(command, field.name)
        if limit is not None:
            yield _Field(field.name, limit, field.name in repeated, field.message_type is not None)
