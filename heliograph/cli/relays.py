"""The commands that ask for one operation and show its answer, made from the table of operations by one row each."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer

from heliograph.cli.context import CommandContext, as_command, group
from heliograph.cli.figures import rows_for_people
from heliograph.operations import admin as _groups  # noqa: F401 - its import fills the table
from heliograph.operations.table import OPERATIONS, AdminOperation


@dataclass(frozen=True, slots=True)
class Relay:
    """A command.

    Attributes:
        operation: its name in the table, which has the arguments with their types and defaults.
        answer: the key of the answer beside the arguments, for programs; an operation without an answer says True
            there. Empty: the answer is a mapping, whose fields stand beside the arguments.
        says: the line for people, with the arguments by the names that programs see, and ``answer``. Empty: a table
            or, without ``columns``, the answer in JSON. With ``columns``: the line of each row, with these.
        columns: of the table: fields of the rows, or titles for the items of a mapping or a list.
        title: of the table, with the arguments.
        rows: the field of the answer that has the rows; empty: the answer itself.
        told: the help; its first sentence is the summary.
        options: the help of each argument that has a default and is offered.
    """

    operation: str
    answer: str = ""
    says: str = ""
    columns: str = ""
    title: str = ""
    rows: str = ""
    told: str = ""
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def entry(self) -> AdminOperation:
        return OPERATIONS[self.operation]

    def run(self, context: CommandContext, **given: Any) -> None:
        """Ask for the operation, and show its answer."""
        admin, entry = context.admin, self.entry
        parameters = [each for each in entry.signature.parameters.values() if _name_of(entry, each.name) in given]
        with context.output.timed():
            call = getattr(getattr(admin, entry.group) if entry.group else admin, entry.method_name)
            found: Any = call(*(given[_name_of(entry, each.name)] for each in parameters))
        found = list(found) if isinstance(found, tuple) else found
        needed = [each.name for each in parameters if each.default is each.empty]
        named = {key_of(entry, name): given[_name_of(entry, name)] for name in needed}
        told: Any = {self.answer: True if found is None else found} if self.answer else found
        context.output.result({**named, **told})
        columns = self.columns.split()
        rows = _rows(found[self.rows] if self.rows else found, columns) if columns else []
        if self.says and columns:
            for row in rows:
                context.output.done(self.says.format(**dict(zip(columns, row, strict=True))))
        elif self.says:
            context.output.done(self.says.format(**named, answer=found))
        elif columns:
            context.output.table(self.title.format(**named), columns, rows_for_people(columns, rows))
        else:
            for line in json.dumps(found, indent=2).split("\n"):  # line breaks in a line are escaped
                context.output.progress(line)

    @property
    def parameters(self) -> list[inspect.Parameter]:
        """The arguments and options of the command, as typer reads them."""
        found = []
        for each in self.entry.signature.parameters.values():
            key, is_needed = key_of(self.entry, each.name), each.default is each.empty
            if not is_needed and each.name not in self.options:
                continue
            if is_needed:
                metavar = "TENANT/NAMESPACE" if key == "namespace" else None
                shown: Any = typer.Argument(help=ARGUMENTS[key], metavar=metavar)
            else:
                shown = typer.Option(f"--{key}", help=self.options[each.name])
            hint: Any = Annotated[_type_of(each.default), shown]
            found.append(each.replace(name=_name_of(self.entry, each.name), annotation=hint))
        return found


def key_of(entry: AdminOperation, name: str) -> str:
    """Return the name of an argument of an operation for people and programs."""
    return entry.scope.value if name == "name" else name.replace("broker_id", "broker")


def _name_of(entry: AdminOperation, name: str) -> str:
    """Return the name of a command's parameter; the option ``--namespace`` of all commands is another one."""
    return "name" if (key := key_of(entry, name)) == "namespace" else key


def _type_of(default: Any) -> Any:
    return bool if isinstance(default, bool) else str | None if default is None else str


def _rows(found: Any, columns: Sequence[str]) -> list[Sequence[Any]]:
    if isinstance(found, Mapping):
        return [(key, one) for key, value in sorted(found.items()) for one in _each(value)]
    return [[each[column] for column in columns] if isinstance(each, Mapping) else [each] for each in found]


def _each(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else [value]


ARGUMENTS = {  # the help of each argument that a command needs
    "bookie": "Such as bookie-2, or its address.",
    "broker": "Such as broker-2.",
    "message_id": "Such as 12:3.",
    "namespace": "tenant/namespace",
    "rack": "Such as r2.",
    "subscription": "Name of the subscription.",
    "tenant": "Name of the tenant.",
    "topic": "Name, such as orders or persistent://public/default/orders.",
}
_OF_BUNDLE = {"bundle": "Only topics of this bundle."}

# fmt: off
RELAYS = {  # by the words of the command; a table of rows, which the formatter would make four times as long
    "bookies racks list": Relay("bookies.racks", "racks", columns="bookie_id address rack is_set group hostname",
        told="List the bookies with their racks."),
    "bookies racks set": Relay("bookies.set_rack", "is_set", "{bookie} is in rack {rack}",
        told="Set a rack instead of the one that the bookie registers. New segments and copies are placed by it."),
    "bookies racks remove": Relay("bookies.remove_rack", "removed", "{bookie} is in the rack that it registers",
        told="Remove a rack that was set, so that the registered one holds."),
    "brokers list": Relay("brokers.list", "brokers",
        columns="broker_id service_url service_url_tls is_leader is_draining", told="List the brokers that serve now."),
    "brokers load": Relay("brokers.loads", "loads",
        columns="broker_id cpu_share memory_share messages_in_per_second messages_out_per_second bytes_in_per_second "
        "bytes_out_per_second topics bundles_owned", told="Show the load that each broker last reported."),
    "brokers drain": Relay("brokers.drain", "bundles", "{broker} gave {answer} bundles away",
        told="Make a broker give all its topics away. It takes no more until `undrain` or its restart."),
    "brokers undrain": Relay("brokers.undrain", "undrained", "{broker} takes topics again",
        told="Let a broker take topics again."),
    "brokers bundles": Relay("brokers.owned", "bundles", columns="namespace bundle",
        told="List the bundles that a broker owns."),
    "brokers topics": Relay("brokers.topics", "topics", columns="topic bundle",
        told="List the topics that a broker has in memory."),
    "brokers settings": Relay("brokers.configuration", "settings", columns="setting value",
        told="Show a broker's settings. Secrets are left out."),
    "brokers check-quotas": Relay("brokers.check_quotas", "topics", "checked {answer} topics",
        told="Make every broker check the backlog quotas of its topics now."),
    "config live": Relay("settings.live", "settings", columns="name value changed_to limit pulsar_name",
        told="List the settings that can change while brokers run."),
    "namespaces delete": Relay("namespaces.delete", "deleted", "deleted {namespace}",
        told="Delete a namespace.", options={"force": "Delete its contents, too."}),
    "namespaces clear-backlog": Relay("cursors.clear_namespace", "subscriptions",
        "{namespace}: cleared {answer} subscriptions",
        told="Acknowledge everything in a namespace's persistent topics.",
        options={"subscription": "Only subscriptions of this name.", **_OF_BUNDLE}),
    "namespaces unsubscribe": Relay("cursors.unsubscribe_namespace", "topics",
        "{namespace}: deleted {subscription} from {answer} topics", options=_OF_BUNDLE,
        told="Delete a subscription from all persistent topics."),
    "namespaces bundles": Relay("brokers.bundles", title="{namespace}", rows="bundles",
        columns="name owner topics messages_per_second bytes_per_second",
        told="Show a namespace's bundles with their owners and loads."),
    "schemas list": Relay("schemas.versions", "versions", columns="version type name",
        told="List the versions of a topic's schema."),
    "schemas delete": Relay("schemas.delete", "version", "{topic} has no schema any more",
        told="Delete a topic's schema with all versions. Messages that were published with one can be read as bytes "
        "only."),
    "subscriptions delete": Relay("delete_subscription", "deleted", "deleted {subscription} of {topic}",
        told="Delete a subscription.", options={"force": "Even while it has consumers."}),
    "tenants list": Relay("namespaces.tenants", "tenants", columns="tenant", told="List the tenants."),
    "tenants create": Relay("namespaces.create_tenant", "created", "created {tenant}",
        told="Create a tenant, which namespaces can then be created for."),
    "tenants delete": Relay("namespaces.delete_tenant", "deleted", "deleted {tenant}",
        told="Delete a tenant that has no namespaces."),
    "topics backlog-size": Relay("cursors.backlog_size", "bytes", "{answer} bytes",
        told="Estimate the bytes from a message on to the end of a topic."),
    "topics bundle": Relay("bundle_of", "bundle", "{answer}",
        told="Show the bundle that a topic, existing or not, belongs to."),
    "topics delete": Relay("delete_topic", "deleted", "deleted {topic}",
        told="Delete a topic with its subscriptions and all its messages.",
        options={"force": "Even while clients are connected."}),
    "topics record": Relay("topic_record", told="Show the ledgers and cursors that are stored of a topic."),
    "topics terminate": Relay("terminate_topic", "last", "{topic} ends with message {last_message}",
        columns="topic last_message",
        told="End a topic. It can be read to its end, and nothing can be published to it any more."),
    "topics trim": Relay("trim_topic", "ledgers", "{topic}: deleted {answer} ledgers",
        told="Delete old ledgers now. Ledgers that a subscription or retention needs stay."),
    "topics truncate": Relay("truncate_topic", "ledgers", "{topic}: deleted {answer} ledgers",
        told="Delete all messages of a topic, whatever retention says. Its subscriptions move to the end."),
    "topics unload": Relay("unload_topic", "unloaded", "unloaded {topic}",
        told="Close a topic and open it again. Clients reconnect by themselves."),
}
# fmt: on


def relays(words: str, summary: str) -> typer.Typer:
    """Return a group of commands, with those of the table that begin with its words."""
    app = group(summary)
    for path, relay in RELAYS.items():
        before, _, name = path.rpartition(" ")
        if before == words:
            app.command(name)(as_command(relay.run, relay.parameters, relay.told))
    return app


brokers = relays("brokers", "List, drain and compare brokers.")
