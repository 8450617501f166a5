"""`elastream state` and `elastream repartition`: the width of a query's state, and its change."""

import os
import tempfile
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from elastream.cli.options import is_quiet
from elastream.cli.output import AsJson, print_json
from elastream.core.wording import clock, counted
from elastream.errors import ElastreamError, EnvironmentProblem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from elastream.checkpoints.state import CheckpointState

Place = Annotated[Path, typer.Argument(metavar="PLACE", help="Folder of a run, or a query's checkpoint.")]
Partitions = Annotated[int, typer.Option("--partitions", metavar="NUMBER", help="State partitions from now on.")]
Skip = Annotated[bool, typer.Option("--skip-open-batch", help="Repeat the records of a cut-off batch in the next one.")]
MOST_CORES = 4
# Files of a query that ran without this package have checksums beside them, which Spark's own file manager keeps right.
FILE_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"


def state(place: Place, as_json: AsJson = False) -> None:
    """Show the state in a checkpoint: partitions, rows, bytes, skew, and what a move would load.

    Rows are those of the newest snapshots.
    """
    from elastream.checkpoints.state import checkpoint_root, checkpoint_state, checkpoints_of
    from elastream.recording.file_systems import FILES_REACHED_BY, reached_by

    os.environ[FILES_REACHED_BY] = reached_by({})
    with _readable():
        states = {name: checkpoint_state(folder) for name, folder in checkpoints_of(checkpoint_root(place)).items()}
    if as_json:
        print_json([_described(name, each) for name, each in states.items()])
        return
    for name, each in states.items():
        _show(name, each)


def repartition(context: typer.Context, place: Place, partitions: Partitions, skip_open_batch: Skip = False) -> None:
    """Change the number of state partitions of a run or a stopped query, by Spark 4.2 or newer, for RocksDB.

    The change is atomic. A live run pauses for it; ending this command withdraws the request. A stopped query's old
    checkpoint is kept. If a batch was cut off, --skip-open-batch repeats its records in the next one: the sink must
    tolerate duplicates, as updated results do.
    """
    from elastream.api.folder import PARTITIONS
    from elastream.api.repartitioning import RunCheckpoints, request_repartition
    from elastream.checkpoints.repartition import Repartitioned, check_release, states_to_change, undo
    from elastream.checkpoints.repartition import repartition as change
    from elastream.checkpoints.state import checkpoint_state, checkpoints_of, local_path, local_root
    from elastream.recording.directory import RunDirectory
    from elastream.recording.manifest import read_manifest, run_lock
    from elastream.recording.run_state import holder_of
    from elastream.spark.jvm.releases import installed

    with _readable():
        place = local_path(place)
        folders, directory = checkpoints_of(local_root(place)), RunDirectory(place)
        is_run = directory.manifest.is_file()
    say = (lambda sentence: None) if is_quiet(context) else (lambda sentence: typer.echo(sentence, err=True))
    if is_run and holder_of(directory.lock) is not None:
        with _readable():
            outcome = request_repartition(directory, partitions, say)
        typer.echo(outcome)
        return
    with _readable(), ExitStack() as stack:
        if is_run:
            stack.enter_context(run_lock(directory))
            widths = {each.width for each in map(checkpoint_state, folders.values()) if each.operators}
            manifest_width = read_manifest(directory).identity.get(PARTITIONS)
            if widths == {partitions} and manifest_width not in (None, str(partitions)):
                RunCheckpoints(directory).changed(partitions)
                typer.echo(f"{place} has {counted(partitions, 'state partition')}: its cut-off repartition is complete now")
                return
        changing = states_to_change(folders, partitions, skip_open_batch=skip_open_batch)
        if version := installed():
            check_release(version)  # before the seconds of a session
        beside = next(iter(changing.values())).folder.resolve().parent  # /tmp may be in memory
        spark = stack.enter_context(_session(beside))
        changed: dict[str, Repartitioned] = {}
        try:
            for name, each in changing.items():
                changed[name] = change(spark, each.folder, partitions, say, skip_open_batch=skip_open_batch)
        except BaseException:
            for name, done in reversed(changed.items()):
                with suppress(ElastreamError, OSError):  # the others still can
                    undo(changing[name].folder.resolve(), done)
            raise
        for name, done in changed.items():
            query = f"{name}: " if name else ""
            typer.echo(
                f"{query}{counted(done.rows, 'row')} of state, equal before and after, in {counted(done.new, 'partition')} "
                f"({done.old} before), in {done.seconds:.1f} s (predicted: {done.predicted.text}); "
                f"the old checkpoint is {done.before}"
            )
        if is_run:
            RunCheckpoints(directory).changed(partitions)


@contextmanager
def _readable() -> "Iterator[None]":
    try:
        yield
    except OSError as error:
        raise EnvironmentProblem(f"{error.filename or 'a file'}: {error.strerror or error}") from error


def _show(name: str, state: "CheckpointState[Any]") -> None:
    from elastream.dashboard.console import make_console, plain_table

    store = state.provider.rsplit(".", 1)[-1] or "unknown"
    committed = "no batch is committed" if state.committed < 0 else f"batch {state.committed} is committed"
    typer.echo(f"{name or state.folder}: {counted(state.width, 'state partition')} in {store}; {committed}")
    if not state.operators:
        typer.echo("no state: the query keeps none")
        return
    table = plain_table("operator", "partitions", "rows", "MB", "largest / mean", "logs since snapshot", "oldest snapshot")
    for each in state.operators:
        ages = [part.snapshot_age for part in each.partitions if part.snapshot_age == part.snapshot_age]
        table.add_row(
            each.name,
            str(len(each.partitions)),
            "–" if each.rows != each.rows else f"{each.rows:,.0f}",
            "–" if each.bytes != each.bytes else f"{each.bytes / 1e6:,.2f}",
            "–" if each.skew != each.skew else f"{each.skew:.2f}",
            str(max((part.logs for part in each.partitions), default=0)),
            clock(max(ages)) if ages else "none",
        )
    make_console().print(table)
    for sentence in state.remarks():
        typer.echo(sentence)


def _described(name: str, state: "CheckpointState[Any]") -> dict[str, Any]:
    operators = [
        {"name": each.name, "rows": each.rows, "bytes": each.bytes, "skew": each.skew, "partitions": each.partitions}
        for each in state.operators
    ]
    figures = {"batch": state.batch, "committed": state.committed, "partitions": state.width, "store": state.provider}
    return {"query": name, "folder": str(state.folder), **figures, "operators": operators, "remarks": state.remarks()}


@contextmanager
def _session(beside: Path) -> "Iterator[SparkSession]":
    from elastream.clouds.in_process import LOOPBACK
    from elastream.spark.jvm.session import open_session, settings_for

    cores = min(os.cpu_count() or 1, MOST_CORES)
    settings = settings_for(
        driver_address=LOOPBACK, executor_memory=1024, executor_cores=cores, state_partitions=cores, state_store="disk"
    )
    settings = {name: each for name, each in settings.items() if name != FILE_MANAGER}
    with ExitStack() as stack:
        folder = stack.enter_context(
            tempfile.TemporaryDirectory(prefix="elastream-repartition-", dir=beside, ignore_cleanup_errors=True)
        )
        # Spark splits the path of its scratch folder at commas.
        link = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "session"
        link.symlink_to(folder)
        spark = open_session(f"local[{cores}]", "elastream.repartition", link, settings)
        stack.callback(spark.stop)
        yield spark
