"""``helio trace``: the place of a message, the bookies that have it, and its state in each subscription."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any

import typer

from heliograph.base.clock import iso_time
from heliograph.base.errors import BadRequestError, NotFoundError
from heliograph.cli.context import CommandContext, single_command
from heliograph.cli.output import Output
from heliograph.protocol.topic_name import TopicName
from heliograph.tracing.context import TRACEPARENT

if TYPE_CHECKING:
    from heliograph.client.admin.admin import AdminSync

MESSAGES_MAX = 10  # that one command tells of
_TRACE_ID = re.compile(r"(?:[0-9a-f]{2}-)?([0-9a-f]{32})(?:-[0-9a-f]{16}-[0-9a-f]{2})?")
_MESSAGE_ID = re.compile(r"\d+:\d+(:-?\d+){0,3}")
Place = tuple[str, str]  # topic, message id


@single_command
def trace(
    context: CommandContext,
    what: Annotated[
        str,
        typer.Argument(
            metavar="ID", help="A message id, ledger:entry; a trace id or a traceparent; or a value of --property."
        ),
    ],
    topic: Annotated[str | None, typer.Option("-t", "--topic", help="Topic of the message.")] = None,
    property_name: Annotated[
        str | None, typer.Option("--property", help="Look for messages with this value of a property.")
    ] = None,
) -> None:
    """Show the places of a message and its consumers.

    Its ledger, whether each bookie has its copy, and for each subscription whether it was delivered and acknowledged.
    Times of single steps are known of messages that carry a sampled trace context, while `tracing.sampled_share` of
    the brokers covers it. Without --topic, brokers are asked for a trace that they remember.
    """
    output, admin = context.output, context.admin
    places = _places(admin, what, topic, property_name, output)
    found = [_traced(admin, *place) for place in places]
    output.result({"messages": found})
    for one in found:
        _show(one, output)


def _places(admin: AdminSync, what: str, topic: str | None, property_name: str | None, output: Output) -> list[Place]:
    """Return the messages that the arguments mean.

    Raises:
        BadRequestError: they do not say which messages.
        NotFoundError: there are none.
    """
    trace_id = _TRACE_ID.fullmatch(what.lower())
    if property_name is None and trace_id is None and not _MESSAGE_ID.fullmatch(what):
        raise BadRequestError(
            f"{what!r:.80} is no message id such as 12:3, and no trace id: name the --property that has this value",
            field="ID",
        )
    if topic is None:
        if property_name is not None or trace_id is None:
            raise BadRequestError("name the --topic of the message", field="topic")
        found = admin.brokers.followed(trace_id[1])
        if not found:
            raise NotFoundError(
                f"no broker remembers the trace {trace_id[1]}: name the --topic, which is then searched", field="ID"
            )
        return [(one["topic"], one["message_id"]) for one in found[:MESSAGES_MAX]]
    if property_name is None and trace_id is None:
        return [(topic, what)]
    name, value = (
        (TRACEPARENT, trace_id[1]) if property_name is None and trace_id is not None else (property_name, what)
    )
    assert name is not None, "there is a property, or a trace id"
    partitions = admin.partitions(topic)
    places: list[Place] = []
    for one in TopicName.parse(topic).partitions(partitions):
        searched = admin.cursors.find(str(one), name, value, MESSAGES_MAX)
        places += [(str(one), message_id) for message_id in searched["message_ids"]]
        if searched["is_cut"]:
            output.progress(f"{one}: the newest {searched['entries']} entries were searched, older ones were not")
    if not places:
        raise NotFoundError(f"no message of {topic} that was searched has {name} = {value!r:.80}", field="ID")
    return list(dict.fromkeys(places))[:MESSAGES_MAX]


def _traced(admin: AdminSync, topic: str, message_id: str) -> dict[str, Any]:
    from heliograph.protocol.message_id import MessageId

    wanted, name = MessageId.parse(message_id), TopicName.parse(topic)
    if wanted.partition >= 0 and name.partition < 0:
        name = name.of_partition(wanted.partition)
    found: dict[str, Any] = admin.cursors.trace(str(name), wanted.ledger_id, wanted.entry_id)
    return found | {"message_id": message_id}


def _show(found: dict[str, Any], output: Output) -> None:
    ledger = found["ledger"]
    output.facts(
        "",
        [
            ("message", f"{found['message_id']} of {found['topic']}"),
            ("published, by its producer's clock", _time(found["published_ms"])),
            ("stored", _time(found["stored_ms"])),
            ("entry", f"{found['messages']} messages, {found['bytes']} bytes"),
            ("ledger", f"{ledger['ledger_id']}, entry {ledger['entry_id']}, {ledger['state']}"),
            ("copies", f"{ledger['write_quorum']}, of which {ledger['ack_quorum']} are waited for"),
            ("trace", found["trace_id"] or "not followed"),
        ],
    )
    output.table("", ("bookie", "copy"), [(one["bookie"], one["copy"]) for one in found["copies"]])
    rows = []
    for one in found["subscriptions"]:
        state = one["state"]
        if one["unacknowledged"]:
            state += f", {one['unacknowledged']} messages of it are not acknowledged"
        held = ", ".join(f"{each['consumer']} (last delivery {_time(each['delivered_ms'])})" for each in one["held_by"])
        rows.append((one["subscription"], state, held, one.get("refused", 0)))
    output.table("", ("subscription", "state", "held by", "refused"), rows)
    if found["steps"]:
        steps = [(_time(one["at_ms"]), one["step"], _concerned(one)) for one in found["steps"]]
        output.table("", ("at", "step", "concerns"), steps)


def _concerned(step: dict[str, Any]) -> str:
    named = (str(step[name]) for name in ("bookie", "error", "subscription", "consumer") if name in step)
    return ", ".join(named)


def _time(at_ms: int) -> str:
    return iso_time(at_ms) if at_ms else "unknown"
