"""``helio config``: the settings of a cluster, in its file and in brokers that run."""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING, Annotated, Any

import typer

from heliograph.base.home import ClusterHome
from heliograph.cli.context import CommandContext, command
from heliograph.cli.relays import relays

if TYPE_CHECKING:
    from heliograph.cluster.config import ClusterConfig
    from heliograph.cluster.setting_report import SettingReport
    from heliograph.cluster.settings.file import SettingsFile

app = relays("config", "Show and change the settings of a cluster.")

Name = Annotated[str, typer.Argument(help="Such as bookies, broker.balance.shed_gap or brokerMaxConnections.")]
InFile = Annotated[bool, typer.Option("--in-file", help="Change the file alone, also where brokers could change now.")]

_NOT_YET = "it holds for parts that start from now on: `helio down`, then `helio up`"


@command(app)
def show(
    context: CommandContext,
    all_: Annotated[bool, typer.Option("--all", help="Show settings at their defaults, too.")] = False,
) -> None:
    """List the settings with their values and where these come from."""
    config, file = _configuration(context)
    rows = [row for row in _reports(config, file) if all_ or row.origin != "default"]
    columns = ("name", "value", "origin")
    context.show(
        {"file": str(file.path), "settings": {row.name: {"value": row.value, "origin": row.origin} for row in rows}},
        columns,
        [(row.name, _text(row.value), row.origin) for row in rows],
        title=str(file.path),
    )


@command(app)
def explain(context: CommandContext, name: Name) -> None:
    """Say what a setting means, its limits, its value and its origin."""
    from heliograph.cluster.setting_report import report_of
    from heliograph.cluster.settings.location import PREFIX

    found = report_of(name, *_configuration(context))
    declared, setting = found.declared, found.declared.setting
    facts = {
        "meaning": setting.meaning,
        "value": found.value,
        "from": found.origin,
        "default": found.default,
        "unit": declared.unit,
        "limits": declared.limit,
        "environment variable": declared.variable(PREFIX),
        "changes in brokers that run": setting.is_live,
    }
    context.output.result({"name": name, **facts})
    context.output.facts(name, [(key, _text(value)) for key, value in facts.items() if value not in ("", None)])


@command(app)
def diff(context: CommandContext) -> None:
    """List what differs from the defaults, or from what runs."""
    from heliograph.cluster.setting_report import HIDDEN

    config, file = _configuration(context)
    started = ClusterHome(context.home).started_with()
    rows = []
    for row in _reports(config, file):
        running = None if started is None else started.get(row.name, row.default)
        if row.value == HIDDEN and running:
            running = HIDDEN
        if row.value != row.default or (started is not None and row.value not in (running, HIDDEN)):
            rows.append({"name": row.name, "default": row.default, "configured": row.value, "running": running})
    columns = ("name", "default", "configured", "running")
    context.show(
        {"file": str(file.path), "runs": started is not None, "settings": rows},
        columns,
        [[_text(row[column]) for column in columns] for row in rows],
    )


@command(app, "set")
def set_(
    context: CommandContext,
    name: Name,
    value: Annotated[str, typer.Argument(help="Value, in the unit that the name ends with.")],
    in_file: InFile = False,
) -> None:
    """Change a setting in all brokers at once, else in the file.

    Settings that `helio config live` lists change while brokers run; others are written to the cluster's file.
    """
    if _is_for_file(context, name, in_file):
        file = _change_file(context, name, value)
        context.report({"setting": name, "value": value, "file": str(file.path)}, f"{name} = {value}: {_NOT_YET}")
        return
    full = context.admin.settings.set(name.removeprefix("broker."), value)
    context.report({"setting": full, "value": value}, f"all brokers apply {name} = {value}")


@command(app)
def unset(context: CommandContext, name: Name, in_file: InFile = False) -> None:
    """Undo `set`.

    Brokers have the value of their own configuration again, or the file does not name the setting.
    """
    if _is_for_file(context, name, in_file):
        file = _change_file(context, name, None)
        context.report({"setting": name, "file": str(file.path)}, f"{name} has its default: {_NOT_YET}")
        return
    full = context.admin.settings.unset(name.removeprefix("broker."))
    context.report({"setting": full}, f"{full} has the value of each broker's configuration again")


def _configuration(context: CommandContext) -> tuple[ClusterConfig, SettingsFile]:
    from heliograph.cluster.config import ClusterConfig
    from heliograph.cluster.settings.file import SettingsFile
    from heliograph.cluster.settings.location import FILE_NAME

    config = ClusterConfig(**context.location)
    return config, SettingsFile(config.config_file or context.home / FILE_NAME)


def _reports(config: ClusterConfig, file: SettingsFile) -> list[SettingReport]:
    from heliograph.cluster.setting_report import reports

    return reports(config, file)


def _is_for_file(context: CommandContext, name: str, in_file: bool) -> bool:
    """Return whether a setting is changed in the file; those with names of Pulsar are not."""
    from heliograph.cluster.setting_report import report_of

    is_foreign = not name.islower()  # our names have no capitals
    return not is_foreign and (in_file or not report_of(name, *_configuration(context)).declared.setting.is_live)


def _change_file(context: CommandContext, name: str, value: str | None) -> SettingsFile:
    """Write the file with another value, or without the setting, if the whole is a configuration then.

    Raises:
        InvalidConfigError: it is not; names the setting and the limit. The file is as it was.
    """
    from heliograph.cluster.config import ClusterConfig
    from heliograph.cluster.setting_report import report_of
    from heliograph.cluster.settings.file import SettingsFile

    config, file = _configuration(context)
    name = report_of(name, config, file).name
    home = ClusterHome(context.home)
    home.prepare()
    text = file.text_without(name) if value is None else file.text_with(name, _value(value))
    trial = SettingsFile(file.path.with_name(file.path.name + ".trial"))
    try:
        trial.replace(text)
        ClusterConfig(**context.location, config_file=trial.path)
    finally:
        trial.path.unlink(missing_ok=True)
    file.replace(text)
    return file


def _value(text: str) -> Any:
    """Return a text's value in TOML; a text that is no TOML value stands for itself."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _text(value: Any) -> str:
    if value is None:
        return ""
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
