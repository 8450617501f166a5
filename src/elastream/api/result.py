"""What a run came to, as a value for programs and notebooks: figures, report, frames of the recording, collected rows."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elastream.errors import InputError
from elastream.recording.dead_letters import letters
from elastream.recording.directory import RunDirectory
from elastream.recording.frames import Frames
from elastream.recording.manifest import directory_of
from elastream.recording.observer import Ending
from elastream.recording.places import Place, scanned
from elastream.recording.recorder import Recording
from elastream.report.fragment import fragment, sentence
from elastream.report.page import report_problem
from elastream.report.summary import Summary, summarise

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa


@dataclass(frozen=True, eq=False, repr=False)
class RunResult:
    """Result of a run. In a notebook it shows its figures; what it offers is read from the recording in its folder.

    directory: the run's folder, with recording, journal and checkpoint. report: the HTML report, unless it could not be
    written (a warning in the log says why). tables: per name of a
    `collect(...)` sink, its rows as an Arrow table. taken: per shaped source, the folder of its stored records and the
    number of records committed.
    """

    directory: Path
    report: Path
    tables: Mapping[str, "pa.Table"] = field(default_factory=dict)
    taken: Mapping[str, tuple[Path, int]] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path | str) -> "RunResult":
        """The result of an earlier run, or of one that goes on, from its folder; collected rows are gone.

        The report is written where there is none yet, or an older one than the recording. Raises InputError if there is no
        recording.
        """
        directory = RunDirectory(Path(folder))
        result = cls(directory.root, directory.report)
        recording, report = result.recording, directory.report
        if not report.exists() or report.stat().st_mtime < directory.recording.stat().st_mtime:
            report_problem(recording, report, result.summary)
        return result

    @cached_property
    def recording(self) -> Recording:
        """Everything that was observed and decided."""
        return Recording.read(self.directory)

    @property
    def ending(self) -> Ending:
        """How the run ended; one that was killed has the status "died"."""
        return self.recording.ending or Ending("died", self.recording.end, "the recording has no end")

    @cached_property
    def summary(self) -> Summary:
        """Its figures: records, latency, part in time, hosts, cost."""
        return summarise(self.recording)

    @cached_property
    def frames(self) -> Frames:
        """The recording as pandas DataFrames: application, operators, hosts, leases, decisions, batches, signals, ..."""
        return Frames(self.recording)

    @cached_property
    def dead_letters(self) -> "pd.DataFrame":
        """Records that operators with `on_error="dead_letter"` left out, as far as they are kept: query, batch, operator,
        alternate, error, record, and the key where there is one. Empty where there are none."""
        import pandas as pd

        columns = ("query", "batch", "operator", "alternate", "error", "record", "key")
        return pd.DataFrame(list(letters(RunDirectory(self.directory).dead_letters)), columns=columns)

    @cached_property
    def collected(self) -> "dict[str, pd.DataFrame]":
        """Per name of a `collect(...)` sink, its rows in the order of their batches.

        Of an updated result (of a keyed operator) the last row of a key is the newest:
        `result.collected["counts"].drop_duplicates("word", keep="last")`.
        """
        return {name: table.to_pandas() for name, table in self.tables.items()}

    def replay(self, source: str) -> Iterator[Any]:
        """The committed records of a shaped source, in order, in the form that operators get.

        Used to compare results with a plain computation over the same input. Raises InputError for a source without load.
        """
        from elastream.spark.dataflow.corpus import replayed
        from elastream.spark.dataflow.sources import CORPUS

        if source not in self.taken:
            raise InputError(
                f"{source!r} is not a source with a load of this run (those are: {', '.join(self.taken) or 'none'})"
            )
        control, count = self.taken[source]
        return replayed(control / CORPUS, count)

    def output(self, sink: str = "") -> Place:
        """Folder of the results that `sink` wrote into the run's own, for `latest` and readers of Parquet; by default its
        only such sink. Raises InputError where there is none."""
        results = directory_of(self.directory).all_results
        entries = scanned(results) if results.is_dir() else ()
        found = {each.name: results / each.name for each in sorted(entries) if each.is_folder}
        if sink in found or (not sink and len(found) == 1):
            return found[sink or next(iter(found))]
        names = ", ".join(found) or "none"
        wanted = f"no sink {sink!r} wrote" if sink else f"{len(found)} sinks wrote"
        raise InputError(f"{wanted} into the folder of the run (those that did: {names})")

    def __repr__(self) -> str:
        return f"<RunResult: {sentence(self.recording, self.summary)}; {self.directory}>"

    def _repr_html_(self) -> str:
        return fragment(self.recording, self.summary, self.report if self.report.exists() else None)
