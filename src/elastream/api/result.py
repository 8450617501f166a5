"""The result of a run for programs and notebooks: figures, report, data frames, collected rows."""

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
from elastream.recording.paths import AnyPath, scanned
from elastream.recording.recorder import Recording
from elastream.report.fragment import fragment, sentence
from elastream.report.page import report_problem
from elastream.report.summary import Summary, summarise

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa


@dataclass(frozen=True, eq=False, repr=False)
class RunResult:
    """The result of a run, read from its recording. A notebook shows its figures.

    Attributes:
        directory: Folder of the run.
        report: The HTML report. If it could not be written, the log says why.
        tables: Rows of each `collect(...)` sink.
        replayable: Folder and number of the committed records of each source with a load.
    """

    directory: Path
    report: Path
    tables: Mapping[str, "pa.Table"] = field(default_factory=dict)
    replayable: Mapping[str, tuple[Path, int]] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path | str) -> "RunResult":
        """Return the result of an earlier or a running run, without collected rows.

        It writes the report if that is missing or older than the recording.

        Raises:
            InputError: There is no recording.
        """
        directory = RunDirectory(Path(folder))
        result = cls(directory.root, directory.report)
        recording, report = result.recording, directory.report
        if not report.exists() or report.stat().st_mtime < directory.recording.stat().st_mtime:
            report_problem(recording, report, result.summary)
        return result

    @cached_property
    def recording(self) -> Recording:
        """All observations and decisions."""
        return Recording.read(self.directory)

    @property
    def ending(self) -> Ending:
        """The end of the run. A killed run has the status "died"."""
        return self.recording.ending or Ending("died", self.recording.end, "the recording has no end")

    @cached_property
    def summary(self) -> Summary:
        """Figures: records, latency, share in time, hosts, cost."""
        return summarise(self.recording)

    @cached_property
    def frames(self) -> Frames:
        """The recording as pandas DataFrames: application, operators, hosts, leases, decisions, batches, signals, ..."""
        return Frames(self.recording)

    @cached_property
    def dead_letters(self) -> "pd.DataFrame":
        """Stored records that operators with `on_error="dead_letter"` left out."""
        import pandas as pd

        columns = ("query", "batch", "operator", "alternate", "error", "record", "key")
        return pd.DataFrame(list(letters(RunDirectory(self.directory).dead_letters)), columns=columns)

    @cached_property
    def collected(self) -> "dict[str, pd.DataFrame]":
        """Rows of each `collect(...)` sink, in the order of their batches.

        A keyed operator updates its results, so the last row of a key counts:
        `result.collected["counts"].drop_duplicates("word", keep="last")`.
        """
        return {name: table.to_pandas() for name, table in self.tables.items()}

    def replay(self, source: str) -> Iterator[Any]:
        """Yield the committed records of a source with a load, in order, as operators receive them.

        A plain computation over the same input can then check results.

        Raises:
            InputError: The source has no load.
        """
        from elastream.spark.dataflow.corpus import replayed
        from elastream.spark.dataflow.sources import CORPUS

        if source not in self.replayable:
            raise InputError(
                f"{source!r} is not a source with a load of this run (those are: {', '.join(self.replayable) or 'none'})"
            )
        control, count = self.replayable[source]
        return replayed(control / CORPUS, count)

    def output(self, sink: str = "") -> AnyPath:
        """Return the folder of the results of `sink` inside the run's folder, by default of the only such sink.

        Raises:
            InputError: There is no such sink, or there are several.
        """
        results = directory_of(self.directory).all_results
        entries = scanned(results) if results.is_dir() else ()
        folders = {each.name: results / each.name for each in sorted(entries) if each.is_folder}
        if sink in folders or (not sink and len(folders) == 1):
            return folders[sink or next(iter(folders))]
        names = ", ".join(folders) or "none"
        problem = f"no sink {sink!r} wrote" if sink else f"{len(folders)} sinks wrote"
        raise InputError(f"{problem} into the folder of the run (those that did: {names})")

    def __repr__(self) -> str:
        return f"<RunResult: {sentence(self.recording, self.summary)}; {self.directory}>"

    def _repr_html_(self) -> str:
        return fragment(self.recording, self.summary, self.report if self.report.exists() else None)
