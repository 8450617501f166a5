"""Folder of a run that another process has begun, and that goes on."""

from pathlib import Path

from elastream.core.frames import Frame
from elastream.core.observation import Composition, Context, Observation
from elastream.dataflow.graph import Graph
from elastream.dataflow.stages import lay_out
from elastream.recording.directory import RunDirectory
from elastream.recording.manifest import Manifest, write_manifest
from elastream.recording.observer import describe_run
from elastream.recording.recorder import Recorder
from elastream.spark.queries.updating import begin_code


def begun_run(graph: Graph, folder: Path) -> Recorder:
    directory = RunDirectory(folder)
    context, frame = Context(lay_out(graph)), Frame(tuple(graph.by_name))
    recorder = Recorder(directory.recording)
    recorder.started(describe_run(context, policy="idle", plant="spark", started=0.0))
    recorder.observed(Observation(0.0, context, frame, composition=Composition.default(graph)))
    write_manifest(directory, Manifest(graph.name, 0.0))
    begin_code(graph, directory)
    return recorder
