"""`elastream tables set|show`: sets a key table for a running run, and shows its tables."""

from pathlib import Path
from typing import Annotated

import typer

from elastream.cli.options import Recorded
from elastream.cli.output import AsJson, print_json, time_of_day
from elastream.errors import InputError

tables = typer.Typer(
    name="tables", no_args_is_help=True, help="Key tables: which alternate of an operator runs for which key."
)


@tables.command("set")
def give(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a running run.")],
    operator: Annotated[str, typer.Argument(metavar="OPERATOR", help="An operator that selects by key.")],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="CSV or Parquet: the columns of the key, then `alternate`.")],
) -> None:
    """Set the table in FILE as the next version of OPERATOR's table, from the next round of RUN on.

    After an error, with exit status 2, the run is unchanged.
    """
    from elastream.core.wording import counted
    from elastream.documents.key_table_files import load_key_table
    from elastream.recording.key_table_log import key_tables

    log = key_tables(run)
    if operator not in log.selections:
        choosing = ", ".join(log.selections) or "none"
        raise InputError(f"operator {operator!r} of {run} does not choose its alternate by key (those that do: {choosing})")
    table = load_key_table(file, log.selections[operator])
    version = log.append(table, f"elastream tables set {file}")
    typer.echo(f"{file}: version {version} of the key table of {operator!r}, {counted(len(table), 'key')}")


@tables.command()
def show(run: Recorded, as_json: AsJson = False) -> None:
    """Show the versions of RUN's key tables, and those that are requested or in effect."""
    from elastream.dashboard.console import make_console, plain_table
    from elastream.recording.directory import RunDirectory
    from elastream.recording.key_table_log import KeyTableLog, selections_recorded
    from elastream.recording.recorder import Recording

    recording = Recording.read(run)
    log = KeyTableLog(RunDirectory(run if run.is_dir() else run.parent), selections_recorded(recording.header))
    versions = log.versions()
    if not versions:
        raise InputError(f"{run} has no key tables: give it one with 'elastream tables set {run} OPERATOR FILE'")
    compositions = recording.compositions_at(float(recording.times[-1])) if len(recording.times) else {}
    rows: list[dict[str, object]] = []
    for each in versions:
        queries = {
            query for query, composition in compositions.items() if composition.tables.get(each.operator, 0) == each.version
        }
        state = "in effect" if queries - {""} else "requested" if "" in queries else ""
        about = {"operator": each.operator, "version": each.version, "keys": each.keys, "written": each.written}
        rows.append({**about, "by": each.who, "state": state})
    if as_json:
        print_json(rows)
        return
    table = plain_table("operator", "version", "keys", "given", "by", "state")
    for each, row in zip(versions, rows, strict=True):
        table.add_row(
            each.operator, str(each.version), str(each.keys), time_of_day(each.written), each.who, str(row["state"])
        )
    make_console().print(table)
