"""Pages that are made of the code: the public names of each module, and every command of ``helio``."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import click
import typer

from heliograph.cli.app import app
from heliograph.cli.command_table import PURPOSES
from tools.python_page import members

# Each page, and of each of its modules the names that users have; None: those of ``__all__``.
PAGES: dict[str, tuple[tuple[str, tuple[str, ...] | None], ...]] = {
    "heliograph": (("heliograph", None),),
    "heliograph.errors": (("heliograph.errors", None),),
    "heliograph.tasks": (
        ("heliograph.tasks", ()),
        ("heliograph.tasks.task", ("Task", "BlockingTask")),
        ("heliograph.tasks.job", ("Job", "BlockingJob")),
        ("heliograph.tasks.current", ("current_job", "CurrentJob")),
        ("heliograph.tasks.options", ("TaskOptions",)),
        ("heliograph.tasks.pool", ("Workers",)),
    ),
    "heliograph.processors": (
        ("heliograph.processors", ()),
        ("heliograph.processors.context", ("Context",)),
        ("heliograph.processors.deployment", ("ProcessorDeployment",)),
    ),
    "heliograph.queue": (("heliograph.queue", ("Queue", "Empty", "Full")),),
    "heliograph.ray_data": (
        ("heliograph.ray_data", ("read_topic", "write_dataset", "stream_datasets", "DatasetStream")),
    ),
    "heliograph.serve": (("heliograph.serve", ("TaskProcessor", "AdapterConfig", "BacklogAutoscalingPolicy")),),
    "heliograph.spark": (("heliograph.spark", None),),
    "heliograph.taskiq": (("heliograph.taskiq", ("HeliographBroker",)),),
    "heliograph.transfer_queue": (("heliograph.transfer_queue", None),),
    "heliograph.testing": (("heliograph.testing", ()),),
}


def reference_pages() -> dict[str, str]:
    """Return the text of each page by its name."""
    pages = {f"{page}.md": module_page(page) for page in PAGES}
    pages["helio.md"] = commands_page()
    return pages


def module_page(page: str) -> str:
    """Return a page of modules: the docstring of the first one, and each public name of all."""
    lines = [f"# `{page}`", "", "```{eval-rst}", f".. automodule:: {page}", "   :no-members:", ""]
    for module, names in PAGES[page]:
        loaded = importlib.import_module(module)
        for name in loaded.__all__ if names is None else names:
            named = getattr(loaded, name)
            kind = "class" if isinstance(named, type) else "function" if callable(named) else "data"
            if inspect.ismodule(named):
                continue
            lines += [f".. auto{kind}:: {module}.{name}", ""]
            if kind == "class" and (shown := [each for each in members(named) if each != "model_config"]):
                lines[-1:] = [f"   :members: {', '.join(shown)}", ""]
    return "\n".join([*lines, "```", ""])


def commands_page() -> str:
    """Return the page of all commands, by purpose, with their arguments and options."""
    group: Any = typer.main.get_command(app)
    group.load_all()
    lines = [
        "# The command `helio`",
        "",
        "`helio COMMAND --help` says the same. Every command has `--json` where it prints a result.",
    ]
    for purpose in PURPOSES:
        lines += ["", f"## {purpose.title}"]
        for entry in purpose.entries:
            lines += _command(group.commands[entry.name], click.Context(group, info_name="helio"))
    return "\n".join(lines) + "\n"


def _command(command: click.Command, parent: click.Context) -> list[str]:
    context = click.Context(command, info_name=command.name, parent=parent)
    if isinstance(command, click.Group):
        found = [_command(each, context) for _, each in sorted(command.commands.items()) if not each.hidden]
        return [line for lines in found for line in lines]
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    lines = ["", f"### `{context.command_path}`", "", inspect.cleandoc(command.help or ""), "", "```", usage, "```", ""]
    rows = [record for each in command.get_params(context) if (record := each.get_help_record(context))]
    if rows:
        lines += ["| argument | |", "|---|---|"]
        lines += [f"| `{_cell(name)}` | {_cell(text)} |" for name, text in rows]
    return lines


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
