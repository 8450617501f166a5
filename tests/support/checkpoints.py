"""Checkpoints of queries, as Spark writes them."""

import json
import os
import zipfile
from pathlib import Path

from elastream.checkpoints.state import PROVIDER, ROCKSDB, WIDTH

BATCH = 4


def checkpoint(folder: Path, *, rows: tuple[int, ...], logs: int = 2, store: str = ROCKSDB, committed: int = BATCH) -> Path:
    """Write the checkpoint of a query with one stateful operator, whose snapshots are of the first batch."""
    for name in ("offsets", "commits", "state/0/_metadata"):
        (folder / name).mkdir(parents=True)
    (folder / "metadata").write_text('{"id":"1"}')
    settings = {PROVIDER: f"spark.{store}", WIDTH: str(len(rows))}
    (folder / "offsets" / str(BATCH)).write_text(f"v1\n{json.dumps({'conf': settings})}\n{{}}")
    (folder / "commits" / str(committed)).write_text("v1\n{}")
    info = {"operatorInfo": {"operatorId": 0, "operatorName": "dedupe"}, "stateStoreInfo": []}
    (folder / "state/0/_metadata/metadata").write_text(f"v1\n{json.dumps(info)}")
    for number, count in enumerate(rows):
        place = folder / "state" / "0" / str(number)
        place.mkdir()
        with zipfile.ZipFile(place / "1.zip", "w") as packed:
            listed = {"sstFiles": [{"sizeBytes": 1000 * count}], "numKeys": count}
            packed.writestr("metadata", f"v1\n{json.dumps(listed)}")
        for version in range(2, 2 + logs):
            (place / f"{version}.changelog").write_bytes(b"12345")
    for place, _, _ in os.walk(folder):
        os.utime(place, (0, 0))
    return folder
