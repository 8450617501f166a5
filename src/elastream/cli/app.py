"""The group of all commands, and their errors. A new command is a module here and a line in `COMMANDS`."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import typer
from typer.core import TyperGroup

from elastream import __version__
from elastream.cli.advise import advise
from elastream.cli.autopilot import autopilot
from elastream.cli.bench import bench
from elastream.cli.check import check
from elastream.cli.experiment import experiment
from elastream.cli.explain import explain
from elastream.cli.guards import guards
from elastream.cli.init import init, monitoring
from elastream.cli.key_tables import tables
from elastream.cli.manager import manager
from elastream.cli.options import Verbosity
from elastream.cli.orders import pause, send, stop, unpause, update
from elastream.cli.run import run
from elastream.cli.runs import ls, report, serve, status
from elastream.cli.simulate import prices, simulate
from elastream.cli.state import repartition, state
from elastream.errors import ElastreamError, missing

# Base of all that Typer says of a command line; it has no public name.
UsageError: Any = typer.BadParameter.__base__
# 128 and the number of SIGINT, as in shells.
INTERRUPTED_STATUS = 130

COMMANDS: tuple[Callable[..., None], ...] = (
    init,
    run,
    advise,
    ls,
    status,
    stop,
    serve,
    report,
    explain,
    check,
    simulate,
    prices,
    experiment,
    manager,
    pause,
    unpause,
    update,
    send,
    state,
    repartition,
    monitoring,
)


class Commands(TyperGroup):
    """Group of all commands. Turns their errors into messages and exit statuses."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command: Any = super().get_command(ctx, cmd_name)
        for each in () if command is None else (command, *getattr(command, "commands", {}).values()):
            for option in each.params:
                option.show_envvar = False  # named by one rule, in the reference
        return command

    def make_context(self, *words: Any, **more: Any) -> Any:
        with _usage_in_one_sentence():
            return super().make_context(*words, **more)

    def invoke(self, ctx: Any) -> Any:
        try:
            with _usage_in_one_sentence():
                return super().invoke(ctx)
        except ElastreamError as error:
            typer.echo(f"elastream: {error}", err=True)
            raise typer.Exit(error.exit_status) from None
        except ModuleNotFoundError as error:
            if not (sentence := missing(error, "this command")):
                raise
            typer.echo(f"elastream: {sentence}", err=True)
            raise typer.Exit(ElastreamError.exit_status) from None
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED_STATUS) from None


@contextmanager
def _usage_in_one_sentence() -> Iterator[None]:
    try:
        yield
    except UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # a request for help
            raise
        words = " ".join(error.format_message().split()).rstrip(".").replace(": Input", ": input")
        see = f"; see {error.ctx.command_path} --help" if error.ctx else ""
        typer.echo(f"elastream: {words[:1].lower()}{words[1:]}{see}", err=True)
        raise typer.Exit(error.exit_code) from None


app = typer.Typer(
    name="elastream",
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": "ELASTREAM"},
)
for command in COMMANDS:
    # A message may be a number below 0.
    app.command(context_settings={"ignore_unknown_options": True} if command is send else None)(command)
# What stands behind the job is the job's.
app.command(context_settings={"allow_interspersed_args": False})(autopilot)
app.add_typer(bench)
app.add_typer(guards)
app.add_typer(tables)


def _version(requested: bool) -> None:
    if requested:
        typer.echo(f"elastream {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    context: typer.Context,
    version: bool = typer.Option(
        False,
        "--version",
        callback=_version,
        is_eager=True,
        allow_from_autoenv=False,
        help="Print the version and exit.",
    ),
    quiet: bool = typer.Option(False, "-q", "--quiet", help="Show no live view, no progress and no summary."),
    verbose: int = typer.Option(0, "-v", "--verbose", count=True, help="Log to stderr; -vv: debug messages as well."),
) -> None:
    """Scale PySpark streaming jobs with their load, without restarting a query."""
    context.obj = Verbosity(quiet)
    if verbose:
        logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
        logging.getLogger("elastream").setLevel(logging.INFO if verbose == 1 else logging.DEBUG)
