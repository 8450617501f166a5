"""Walks of a dataflow without Spark: one code for all batches, and key tables in use."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from elastream.dataflow.chains import chain_of
from elastream.dataflow.graph import Graph
from elastream.dataflow.key_table import KeyTable
from elastream.dataflow.operators import Kind
from elastream.recording.key_table_log import written_rows
from elastream.spark.dataflow.chaining import build_walk
from elastream.spark.worker.composition import CompositionCodec
from elastream.spark.worker.table_lookup import publish_table
from elastream.spark.worker.walk import Walk, WorkerPaths


@dataclass(frozen=True)
class Under(WorkerPaths):
    """Every batch runs under the code `fixed`."""

    fixed: int = 0

    def code(self, batch: int) -> int:
        """That code."""
        return self.fixed


def walk_of(graph: Graph, arriving: Sequence[pa.Schema], columns: Mapping[str, pa.Schema]) -> Walk:
    """The walk of all operators without state. columns: Arrow schemas of what operators return."""
    stateless = [name for name in graph.order if graph.by_name[name].kind is not Kind.KEYED]
    codec = CompositionCodec(graph)
    return build_walk(chain_of(graph, stateless, ()), "source", "source", codec, arriving, columns.__getitem__)


def in_use(folder: Path, table: KeyTable, version: int = 1) -> Path:
    """The folder of tables in use, with this one."""
    file = folder / "table.arrow"
    file.write_bytes(written_rows(table))
    publish_table(folder / "tables", table.operator, version, file)
    return folder / "tables"
