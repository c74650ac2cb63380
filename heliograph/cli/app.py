"""The command line: all commands together, and the place where errors become messages and exit codes."""

from __future__ import annotations

import io
import os
import sys
import warnings
from pathlib import Path
from typing import Annotated, TextIO, cast

import typer

from heliograph.base.version import heliograph_version
from heliograph.cli.command_group import LazyGroup
from heliograph.cli.command_table import PURPOSES
from heliograph.cli.output import EXIT_FAILED, EXIT_INTERRUPTED, Output, OwnOutput


def _print_version(is_asked: bool) -> None:
    if is_asked:
        Output(as_json=False).progress(f"heliograph {heliograph_version()}")
        raise typer.Exit


class HelioGroup(LazyGroup):
    """All commands."""

    purposes = PURPOSES


app = typer.Typer(
    name="helio",
    cls=HelioGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_print_version)
    ] = False,
    token: Annotated[
        str | None, typer.Option(help="Token to send. Other users of this machine can see it: prefer --token-file.")
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(help="File with the token to send. [default: the administrator's token in --home]")
    ] = None,
) -> None:
    """Heliograph: durable, ordered, replicated messaging inside a Ray cluster."""
    from heliograph.client.identity import TOKEN_FILE_VARIABLE, TOKEN_VARIABLE

    if token is not None:
        os.environ[TOKEN_VARIABLE] = token
    elif token_file is not None:
        os.environ.pop(TOKEN_VARIABLE, None)
        os.environ[TOKEN_FILE_VARIABLE] = str(token_file)


def main() -> None:
    """Run one command, and end the process with its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal of ASCII gets question marks, and no failure
    sys.stdout = cast(TextIO, OwnOutput(sys.stdout))
    # Ctrl-C may come between the making of a coroutine and its first step.
    warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
    try:
        _run()
    finally:
        if "ray" in sys.modules:
            from heliograph.client import discovery

            discovery.detach()  # otherwise Ray waits for half a second when the process ends


def _run() -> None:
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except BrokenPipeError:  # the reader of the output has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(EXIT_FAILED)
    except Exception as error:
        if os.environ.get("HELIOGRAPH_DEBUG"):
            raise
        sys.exit(Output(as_json="--json" in sys.argv).error(error))
