"""Paths on file systems that this machine has not mounted (HDFS, object stores), and functions for these and local paths.

Object stores have no folders to rename: there the file `WHOLE` marks a completely written batch.
"""

import contextlib
import os
import re
import shutil
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast
from urllib.parse import urlsplit

from elastream.errors import ElastreamError, InputError
from elastream.recording.file_systems import FILES_REACHED_BY, file_system, files_below, is_web, resolved

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

# File in the folder of a batch on an object store, written last. Spark's readers skip it.
WHOLE = "_whole"

# An address; also one of whose two slashes `pathlib` has kept one. Drive letters are no schemes.
ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/+(?=[^/])(.*)", re.DOTALL)
# A scheme alone.
NOWHERE = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/*")
# Schemes of HDFS, where the authority is not part of a path.
HADOOP = ("hdfs", "webhdfs")
# Keys under which fsspec's file systems tell when a file was written.
MODIFIED = ("modificationTime", "mtime", "created", "LastModified", "last_modified", "updated")
# Schemes of paths on this machine.
MINE = ("file",)


class FolderEntry(NamedTuple):
    """An entry of a folder. modified: epoch seconds; bytes: 0 for a folder."""

    name: str
    is_folder: bool
    bytes: int
    modified: float


@dataclass(frozen=True, slots=True, order=True)
class RemotePath:
    """A path on a file system that is not mounted, with what this package uses of `pathlib.Path`.

    Failures raise an OSError, as for a Path, or EnvironmentProblem if the library for such addresses is missing.
    """

    address: str

    def __str__(self) -> str:
        return self.address

    def __truediv__(self, name: str) -> "RemotePath":
        return RemotePath(f"{self.address}/{name.strip('/')}") if name.strip("/") else self

    @property
    def name(self) -> str:
        return self.address.rpartition("/")[2]

    @property
    def parent(self) -> "RemotePath":
        return RemotePath(self.address.rpartition("/")[0])

    def with_name(self, name: str) -> "RemotePath":
        return self.parent / name

    def resolve(self) -> "RemotePath":
        """Return itself: addresses are absolute."""
        return self

    def joinpath(self, *names: str) -> "RemotePath":
        return self / "/".join(names)

    @property
    def renames(self) -> bool:
        """True if folders are renamed atomically."""
        return urlsplit(self._resolved_address).scheme in (*HADOOP, *MINE, "memory")

    def exists(self) -> bool:
        return self._info() is not None

    def is_dir(self) -> bool:
        return (self._info() or {}).get("type") == "directory"

    def is_file(self) -> bool:
        return (self._info() or {}).get("type") == "file"

    def entry(self) -> FolderEntry:
        about = self._info()
        if about is None:
            raise FileNotFoundError(2, "No such file or directory", self.address)
        return _entry(about)

    def iterdir(self) -> Iterator["RemotePath"]:
        return (self / entry.name for entry in scanned(self))

    def glob(self, pattern: str) -> Iterator["RemotePath"]:
        with contextlib.suppress(FileNotFoundError):
            yield from (each for each in list(self.iterdir()) if fnmatchcase(each.name, pattern))

    def mkdir(self, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        """Create this folder and its parents; with `mode` if modes exist."""
        with _os_errors(self):
            fs = self._fs
            if not exist_ok and self.exists():
                raise FileExistsError(17, "File exists", self.address)
            fs.makedirs(self._path, exist_ok=True)
            if mode != 0o777 and hasattr(fs, "chmod"):
                fs.chmod(self._path, oct(mode)[2:] if is_web(fs) else mode)

    def open(self, mode: str = "rb") -> IO[bytes]:
        """Open the file in binary mode, to read or replace it."""
        with _os_errors(self):
            return cast(IO[bytes], self._fs.open(self._path, mode))

    def read_bytes(self) -> bytes:
        with _os_errors(self):
            fs = self._fs
            # One request; fsspec's own method requests the file's length first.
            return bytes(fs._call("OPEN", path=self._path).content if is_web(fs) else fs.cat_file(self._path))

    def read_text(self, encoding: str = "utf-8") -> str:
        return self.read_bytes().decode(encoding)

    def write_bytes(self, content: bytes) -> int:
        """Replace the content; create the folder."""
        with _os_errors(self):
            fs = self._fs
            if is_web(fs):  # fsspec's own creates an empty file and appends to it, which takes ten times as long
                to = fs._call("CREATE", method="put", path=self._path, redirect=False, overwrite="true").headers["Location"]
                fs.session.put(fs._apply_proxy(to), data=content).raise_for_status()
            else:
                if self.renames:
                    fs.makedirs(self.parent._path, exist_ok=True)
                fs.pipe_file(self._path, content)
        return len(content)

    def write_text(self, text: str, encoding: str = "utf-8") -> int:
        return self.write_bytes(text.encode(encoding))

    def unlink(self, missing_ok: bool = False) -> None:
        if not self.exists():  # HDFS reports no missing file
            if missing_ok:
                return
            raise FileNotFoundError(2, "No such file or directory", self.address)
        with _os_errors(self):
            self._fs.rm_file(self._path)

    def replace(self, target: "RemotePath") -> "RemotePath":
        """Rename it over any file of that name, atomically if `renames`."""
        with _os_errors(self):
            fs = self._fs
            if is_web(fs):  # fsspec's own method does not overwrite, and reports no failure
                fs._call("RENAME", method="put", path=self._path, destination=target._path, renameoptions="OVERWRITE")
            else:
                if target.exists():
                    fs.rm(target._path, recursive=True)
                fs.mv(self._path, target._path, recursive=self.is_dir())
        return target

    @property
    def _resolved_address(self) -> str:
        return resolved(self.address, os.environ.get(FILES_REACHED_BY, "{}"))

    @property
    def _path(self) -> str:
        scheme, _, rest = self._resolved_address.partition("://")  # in names, # and ? mean nothing
        return (rest[len(rest.partition("/")[0]) :] if scheme in (*HADOOP, *MINE) else rest) or "/"

    @property
    def _fs(self) -> "AbstractFileSystem":
        parts = urlsplit(self._resolved_address)
        # A session of HTTP is for one thread at a time.
        return file_system(parts.scheme, parts.netloc, os.environ.get(FILES_REACHED_BY, "{}"), threading.get_ident())

    def _info(self) -> Mapping[str, Any] | None:
        with _os_errors(self):
            try:
                return cast(Mapping[str, Any], self._fs.info(self._path))
            except FileNotFoundError:
                return None


AnyPath: TypeAlias = Path | RemotePath


def is_address(path: str | os.PathLike[str] | RemotePath) -> bool:
    return isinstance(path, RemotePath) or _address(os.fspath(path)) is not None


def path_of(path: str | os.PathLike[str] | RemotePath) -> AnyPath:
    """Return the path for a text or address: `hdfs://...`, `s3a://...`, `file:///...`. InputError for a scheme alone."""
    if isinstance(path, RemotePath):
        return path
    text = os.fspath(path)
    if NOWHERE.fullmatch(text):
        raise InputError(f"{text.rstrip('/')}// is the address of no folder: a host or a bucket is missing")
    if (address := _address(text)) is not None:
        return RemotePath(address)
    mine = ADDRESS.fullmatch(text)
    return Path(text if mine is None or mine[1] not in MINE else f"/{mine[2]}")


def _address(text: str) -> str | None:
    match = ADDRESS.fullmatch(text)
    if match is None or match[1] in MINE:
        return None
    return f"{match[1]}://{match[2].rstrip('/')}"


def names_in(folder: AnyPath) -> list[str]:
    return os.listdir(folder) if isinstance(folder, Path) else [entry.name for entry in scanned(folder)]


def scanned(folder: AnyPath) -> list[FolderEntry]:
    """Return the entries of a folder, without those that vanish meanwhile."""
    if isinstance(folder, Path):
        entries = []
        for each in os.scandir(folder):
            with contextlib.suppress(FileNotFoundError):
                about = each.stat()
                entries.append(FolderEntry(each.name, each.is_dir(), about.st_size, about.st_mtime))
        return entries
    with _os_errors(folder):
        listed = folder._fs.ls(folder._path, detail=True)
        return [_entry(each) for each in listed if each["name"].rstrip("/") != folder._path.rstrip("/")]


def tree(folder: AnyPath) -> Iterator[FolderEntry]:
    """Yield the files below a folder, named relative to it."""
    if isinstance(folder, RemotePath):
        with _os_errors(folder):
            together = files_below(folder._fs, folder._path)
        if together is not None:
            above = f"{folder._path.strip('/')}/"
            for each in together:
                yield _entry(each)._replace(name=each["name"].lstrip("/").removeprefix(above))
            return
    for entry in scanned(folder):
        if not entry.is_folder:
            yield entry
            continue
        with contextlib.suppress(FileNotFoundError):
            for below in tree(folder / entry.name):
                yield below._replace(name=f"{entry.name}/{below.name}")


def stamp_of(file: AnyPath) -> tuple[int, int]:
    if isinstance(file, Path):
        about = file.stat()
        return about.st_ino, about.st_mtime_ns
    entry = file.entry()
    return entry.bytes, int(entry.modified * 1e3)


def remove_tree(place: AnyPath) -> None:
    """Remove a file or folder, if it exists."""
    if isinstance(place, Path):
        if place.is_dir():
            shutil.rmtree(place)
        else:
            place.unlink(missing_ok=True)
    elif place.exists():
        with _os_errors(place):
            place._fs.rm(place._path, recursive=True)


def write_whole(place: AnyPath, content: bytes) -> None:
    """Write a file atomically. Creates its folder."""
    if isinstance(place, RemotePath) and not place.renames:  # an object exists only once it is complete
        place.write_bytes(content)
        return
    temporary = place.with_name(f".{place.name}.{os.getpid()}")
    if isinstance(place, Path):
        place.parent.mkdir(parents=True, exist_ok=True)
    temporary.write_bytes(content)
    temporary.replace(cast(Any, place))


def readable(place: AnyPath) -> Any:
    return str(place) if isinstance(place, Path) else place.open()


def there_as_a_whole(folder: AnyPath) -> bool:
    """Return True if the folder of a batch is completely written."""
    if isinstance(folder, Path) or folder.renames:
        return folder.is_dir()
    return (folder / WHOLE).exists()


def written_at(folder: AnyPath) -> float:
    """Return the epoch second at which the folder of a batch was completed."""
    return modified_at(folder if isinstance(folder, Path) or folder.renames else folder / WHOLE)


def modified_at(place: AnyPath) -> float:
    """Return the epoch second of the last write."""
    return place.stat().st_mtime if isinstance(place, Path) else place.entry().modified


def mark_whole(written: AnyPath, folder: AnyPath) -> None:
    """Publish the content of the folder `written` as `folder`; they are equal if nothing is renamed."""
    if written == folder:
        (folder / WHOLE).write_bytes(b"")
    else:
        written.replace(cast(Any, folder))


def _entry(about: Mapping[str, Any]) -> FolderEntry:
    at = next((about[key] for key in MODIFIED if about.get(key)), 0.0)
    seconds = at.timestamp() if hasattr(at, "timestamp") else float(at)
    seconds = seconds / 1e3 if "modificationTime" in about else seconds
    folder = about["type"] == "directory"
    return FolderEntry(str(about["name"]).rstrip("/").rpartition("/")[2], folder, int(about.get("size") or 0), seconds)


@contextlib.contextmanager
def _os_errors(place: RemotePath) -> Iterator[None]:
    try:
        yield
    except (FileNotFoundError, FileExistsError, ElastreamError):
        raise
    except PermissionError as error:
        raise PermissionError(13, f"no permission ({error})", str(place)) from error
    except Exception as error:  # clients of object stores have types of their own
        raise OSError(
            5, f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}", str(place)
        ) from error
