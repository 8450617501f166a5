"""Logs as Spark writes them: plain, rolled, compressed, and cut off."""

import gc
import gzip
import struct
import zipfile
from contextlib import nullcontext

import pyarrow as pa
import pytest

from elastream.advice.sources import lines_of
from elastream.errors import InputError

LINES = [b'{"Event":"%d"}' % number for number in range(40_000)]
CONTENT = b"\n".join(LINES) + b"\n"


def lz4_blocks(content, size=1 << 16):
    """Compress as lz4-java does."""
    codec, out = pa.Codec("lz4_raw"), b""
    for at in range(0, len(content), size):
        part = content[at : at + size]
        packed = codec.compress(part).to_pybytes()
        out += b"LZ4Block" + bytes([0x26]) + struct.pack("<iii", len(packed), len(part), 0) + packed
    return out + b"LZ4Block" + bytes([0x16]) + struct.pack("<iii", 0, 0, 0)


def snappy_blocks(content, size=1 << 15):
    """Compress as snappy-java does."""
    codec, out = pa.Codec("snappy"), b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
    for at in range(0, len(content), size):
        packed = codec.compress(content[at : at + size]).to_pybytes()
        out += struct.pack(">i", len(packed)) + packed
    return out


def zstd(content):
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(content)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize("packed", [bytes, gzip.compress, zstd, lz4_blocks, snappy_blocks], ids=lambda each: each.__name__)
def test_log_is_read_however_spark_compresses_it(packed, tmp_path):
    log = tmp_path / "app-1"
    log.write_bytes(packed(CONTENT))
    assert list(lines_of(log)) == LINES


@pytest.mark.parametrize("packed", [zstd, lz4_blocks, snappy_blocks], ids=lambda each: each.__name__)
def test_log_of_a_killed_application_is_read_up_to_its_end(packed, tmp_path):
    whole = packed(CONTENT)
    log = tmp_path / "app-1.inprogress"
    log.write_bytes(whole[: int(0.9 * len(whole))])
    *lines, _ = lines_of(log)
    assert lines
    assert lines == LINES[: len(lines)]


def test_parts_of_a_rolled_log_are_read_in_order(tmp_path):
    for number, part in ((1, "a"), (2, "b"), (10, "c")):
        (tmp_path / f"events_{number}_app-1").write_text(part + "\n")
    (tmp_path / "appstatus_app-1").touch()
    assert list(lines_of(tmp_path)) == [b"a", b"b", b"c"]


def test_parts_of_databricks_are_read_by_their_dates(tmp_path):
    for name, part in (("", "c"), ("-2026-06-14--20-00", "a"), ("-2026-06-14--21-00", "b")):
        (tmp_path / f"eventlog{name}").write_text(part + "\n")
    assert list(lines_of(tmp_path)) == [b"a", b"b", b"c"]


def test_compacted_part_replaces_those_before_it(tmp_path):
    for name, part in (("1_app", "a"), ("2_app", "b"), ("2_app.compact", "ab"), ("3_app", "c")):
        (tmp_path / f"events_{name}").write_text(part + "\n")
    assert list(lines_of(tmp_path)) == [b"ab", b"c"]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"ZV\x01\x00\x10", "LZF"),
        (b"\x28\xb5\x2f\xfd" + b"\xff" * 20, "cannot be read: ZSTD"),
        (b"LZ4Block" + bytes([0x26]) + struct.pack("<iii", 4, 100, 0) + b"\xff" * 4, "cannot be read: Corrupt"),
    ],
)
def test_log_that_cannot_be_decompressed_says_why(content, why, tmp_path):
    log = tmp_path / "app-1"
    log.write_bytes(content)
    with pytest.raises(InputError, match=why):
        list(lines_of(log))


def test_folder_of_several_logs_is_refused_with_one_of_them(tmp_path):
    with pytest.raises(InputError, match="it is empty"):
        list(lines_of(tmp_path))
    for name in ("app-1", "app-2", "app-3.inprogress"):
        (tmp_path / name).touch()
    with pytest.raises(InputError, match=r"such as app-3\.inprogress"):
        list(lines_of(tmp_path))


def test_only_log_of_a_folder_is_read(tmp_path):
    folder = tmp_path / "eventlog_v2_app-1"
    folder.mkdir()
    (tmp_path / ".app-0.crc").touch()
    for number, part in ((1, "a"), (2, "b")):
        (folder / f"events_{number}_app-1").write_text(part + "\n")
    assert list(lines_of(tmp_path)) == [b"a", b"b"]


ROLLED = "eventlog_v2_app-1"


@pytest.mark.parametrize("names", [["app-1.zstd"], [f"{ROLLED}/events_1_app-1.zstd", f"{ROLLED}/appstatus_app-1"]])
def test_zip_of_the_history_server_is_read(names, tmp_path):
    log = tmp_path / "eventLogs-app-1.zip"
    with zipfile.ZipFile(log, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in names:
            archive.writestr(name, b"" if "appstatus" in name else zstd(CONTENT))
    assert list(lines_of(log)) == LINES
    log.write_bytes(log.read_bytes()[:-30])
    with pytest.raises(InputError, match="zip cannot be read: File is not a zip file"):
        list(lines_of(log))


@pytest.mark.parametrize("torn", [False, True])
def test_zip_is_closed(torn, tmp_path, recwarn):
    log = tmp_path / "app-1.zip"
    with zipfile.ZipFile(log, "w") as archive:
        archive.writestr("app-1", CONTENT)
    log.write_bytes(log.read_bytes()[: -30 if torn else None])
    gc.collect()  # what earlier tests left
    recwarn.clear()
    with pytest.raises(InputError) if torn else nullcontext():
        list(lines_of(log))
    gc.collect()
    assert [each.category for each in recwarn] == []


def test_damaged_length_of_a_snappy_block_asks_for_no_memory(tmp_path):
    whole = bytearray(snappy_blocks(CONTENT))
    first = 20 + int.from_bytes(whole[16:20], "big")
    whole[first + 4 : first + 9] = b"\xff\xff\xff\xff\x7f"  # the second block says that it has 34 GB
    log = tmp_path / "app-1"
    log.write_bytes(whole)
    *lines, _ = lines_of(log)
    assert lines == LINES[: len(lines)]
    log.write_bytes(whole[:16] + whole[first:])
    with pytest.raises(InputError, match="cannot be read: a block of 34,359,738,367 bytes is damaged"):
        list(lines_of(log))
