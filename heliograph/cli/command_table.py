"""All commands by purpose. ``tests/unit/cli/test_commands.py`` compares the summaries with the commands' own help."""

from __future__ import annotations

from heliograph.cli.command_group import CommandEntry, CommandPurpose

_ADMIN = "heliograph.cli.admin"
_MESSAGES = "heliograph.cli.messages"
_OPERATIONS = "heliograph.cli.operations"
_WATCHING = "heliograph.cli.watching"

PURPOSES = (
    CommandPurpose(
        "Run a cluster",
        (
            CommandEntry("dev", "heliograph.cli.dev:dev", "Run a cluster in this process, without Ray, until Ctrl-C."),
            CommandEntry("up", f"{_OPERATIONS}.cluster:up", "Start a cluster."),
            CommandEntry("down", f"{_OPERATIONS}.cluster:down", "Stop the cluster that `helio up` started."),
            CommandEntry("join", "heliograph.cli.joining:join", "Bring this machine into a cluster."),
            CommandEntry("leave", "heliograph.cli.joining:leave", "Take this machine out of its cluster."),
            CommandEntry("status", f"{_OPERATIONS}.cluster:status", "Show the running parts and their problems."),
            CommandEntry("nodes", f"{_OPERATIONS}.cluster:nodes", "Show the machines, and the effects of losing each."),
            CommandEntry("scale", "heliograph.cli.scaling:scale", "Have more bookies or brokers, or fewer."),
            CommandEntry("restart", "heliograph.cli.scaling:restart", "Restart parts one by one while clients go on."),
            CommandEntry("logs", f"{_OPERATIONS}.logs:logs", "Show the logs of the parts, ordered by time."),
            CommandEntry("top", f"{_WATCHING}.top:top", "Show the busiest topics, subscriptions, brokers or bookies."),
            CommandEntry(
                "watch", f"{_WATCHING}.watch:watch", "Tell each change of the cluster's health, until Ctrl-C."
            ),
            CommandEntry("profile", f"{_WATCHING}.profile:profile", "Sample the stacks of a part, by py-spy."),
            CommandEntry(
                "metrics", f"{_OPERATIONS}.metrics:app", "Boards, alert rules and the configuration of Prometheus."
            ),
            CommandEntry(
                "doctor", f"{_OPERATIONS}.doctor:doctor", "Check this machine, the settings and a running cluster."
            ),
            CommandEntry(
                "dashboard",
                f"{_OPERATIONS}.installation:dashboard",
                "Show the address of Ray's dashboard and its token.",
            ),
            CommandEntry(
                "version",
                f"{_OPERATIONS}.installation:version",
                "Show the installed versions and extras.",
            ),
        ),
    ),
    CommandPurpose(
        "Send and receive messages",
        (
            CommandEntry(
                "produce", f"{_MESSAGES}.produce:produce", "Publish messages and wait until all are acknowledged."
            ),
            CommandEntry("consume", f"{_MESSAGES}.consume:consume", "Print messages."),
            CommandEntry("request", f"{_MESSAGES}.request:request", "Publish a request and print the answer."),
            CommandEntry("trace", f"{_MESSAGES}.trace:trace", "Show the places of a message and its consumers."),
            CommandEntry("perf", f"{_MESSAGES}.perf:app", "Measure a running cluster."),
            CommandEntry("tasks", "heliograph.cli.tasks:app", "See and move the jobs of a queue of tasks."),
            CommandEntry("functions", f"{_MESSAGES}.functions:app", "See and steer processors."),
        ),
    ),
    CommandPurpose(
        "Topics and their rules",
        (
            CommandEntry("topics", f"{_ADMIN}.topics:app", "Create, list, delete and inspect topics."),
            CommandEntry("subscriptions", f"{_ADMIN}.subscriptions:app", "Create, move and inspect subscriptions."),
            CommandEntry("schemas", f"{_ADMIN}.schemas:app", "Show and change the schema of a topic."),
            CommandEntry("namespaces", f"{_ADMIN}.namespaces:app", "Namespaces, their policies and their bundles."),
            CommandEntry("tenants", f"{_ADMIN}.namespaces:tenants", "Create, list and delete tenants."),
            CommandEntry(
                "permissions", f"{_ADMIN}.permissions:app", "Grants to roles on namespaces, topics and subscriptions."
            ),
        ),
    ),
    CommandPurpose(
        "The parts of a cluster",
        (
            CommandEntry("brokers", "heliograph.cli.relays:brokers", "List, drain and compare brokers."),
            CommandEntry("bookies", f"{_OPERATIONS}.bookies:app", "Inspect, move, repair or retire a bookie."),
            CommandEntry(
                "bookie",
                f"{_OPERATIONS}.bookies:app",
                "Inspect, move, repair or retire a bookie.",
                older_name_of="bookies",
            ),
            CommandEntry("ledgers", f"{_OPERATIONS}.ledgers:app", "Show ledgers and copies; pause and resume repair."),
            CommandEntry("config", f"{_ADMIN}.config:app", "Show and change the settings of a cluster."),
        ),
    ),
    CommandPurpose(
        "Security and metadata",
        (
            CommandEntry("tokens", f"{_OPERATIONS}.tokens:app", "Make and check keys and tokens of clients."),
            CommandEntry("certs", f"{_OPERATIONS}.certs:app", "The certificates that `helio up --tls auto` makes."),
            CommandEntry(
                "metadata",
                f"{_OPERATIONS}.metadata:app",
                "The metadata store: serve, move, mend it.",
            ),
            CommandEntry("backup", f"{_OPERATIONS}.backup:app", "Back the metadata up, and restore it."),
        ),
    ),
)
