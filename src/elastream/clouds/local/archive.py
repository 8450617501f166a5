"""Archive of the classes that Spark loads (Java's AppCDS), which halves the CPU time of JVM starts.

It is made in idle time, in the user's cache folder, per Java, jars and options.
"""

import contextlib
import functools
import hashlib
import json
import logging
import re
import secrets
import shutil
import subprocess
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from elastream.clouds.local.java import HOMES, SMALL_JVM, cache_folder, class_path, spark_home, version_of
from elastream.clouds.local.processes import end_with_parent, take_only_idle_time
from elastream.systems import lock

log = logging.getLogger(__name__)

FORMAT = 2  # increase it when the contents of archives change, so that older ones are not used
ARCHIVE, MANIFEST, LOCK = "classes.jsa", "manifest.json", "making.lock"
HOME = "spark_home"  # key of the folder of the archived jars, in a manifest
RECORDED = "classes.lst"  # list of loaded classes, in the folder of the JVM that loaded them
# Spark adds this module to each JVM; some versions of Java refuse an archive made with other modules.
MODULES = ("--add-modules=jdk.incubator.vector",)
MIN_FREE_BYTES = 300e6  # an archive takes 130 MB
HEADER_BYTES = 4096  # Java writes its version there
CHUNK = 1 << 24


@dataclass(frozen=True, slots=True)
class ClassArchive:
    """Archive for one Java, set of jars and set of options, in `folder`."""

    java: Path
    folder: Path

    @property
    def file(self) -> Path:
        return self.folder / ARCHIVE

    def usable(self) -> bool:
        """Return True if the archive is complete and for this Java; remove an unusable one with a warning."""
        try:
            manifest = json.loads((self.folder / MANIFEST).read_text())
            why = self._flaw(manifest)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except (OSError, ValueError, TypeError, KeyError) as error:
            why = f"it cannot be read ({type(error).__name__})"
        if why:
            log.warning("the archive of Java classes %s is not used, %s; a new one will be made", self.file, why)
            shutil.rmtree(self.folder, ignore_errors=True)
        return not why

    def _flaw(self, manifest: dict[str, object]) -> str:
        if self.file.stat().st_size != manifest["bytes"]:
            return f"it has {self.file.stat().st_size} bytes of {manifest['bytes']}"
        if version_of(self.java).encode() not in self.file.open("rb").read(HEADER_BYTES):
            return "it was made by another Java"
        return "" if checksum(self.file) == manifest["crc32"] else "its content has changed"

    def unwritable_reason(self) -> str:
        """Return why no archive can be written; empty if one can."""
        try:
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            with (self.folder.parent / LOCK).open("a"):
                free = shutil.disk_usage(self.folder.parent).free
        except OSError as error:
            return f"{self.folder.parent} cannot be written ({error.strerror})"
        return f"the disk of {self.folder.parent} is full" if free < MIN_FREE_BYTES else ""

    def make(self, lists: Sequence[Path]) -> str:
        """Make the archive from recorded classes; return why that failed, or an empty string.

        It appears atomically, even if several processes make one.
        """
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        with _only_one(self.folder.parent / LOCK) as alone:
            if not alone:
                return "another process makes one"
            if self.file.exists():
                return ""
            for left in self.folder.parent.glob("making-*"):  # left by a killed maker
                shutil.rmtree(left, ignore_errors=True)
            making = self.folder.parent / f"making-{secrets.token_hex(4)}"
            making.mkdir()
            try:
                return self._make(making, lists)
            finally:
                shutil.rmtree(making, ignore_errors=True)

    def _make(self, making: Path, lists: Sequence[Path]) -> str:
        if not (classes := merge_lists(lists)):
            return "no loaded classes were recorded"
        (making / RECORDED).write_text("\n".join(classes) + "\n")
        target, path = making / ARCHIVE, ("-cp", class_path())
        dump = ("-Xshare:dump", f"-XX:SharedClassListFile={making / RECORDED}", f"-XX:SharedArchiveFile={target}")
        for options in ((*dump, *MODULES, *path), (*options_for(target), "-Xshare:on", *MODULES, *path, "-version")):
            done = subprocess.run(
                [self.java, *options], capture_output=True, text=True, errors="replace", preexec_fn=end_with_parent
            )
            if done.returncode:
                lines = (done.stdout + done.stderr).strip().splitlines() or ["it says nothing"]
                return f"Java ended with status {done.returncode}: {lines[-1]}"
        manifest = {"bytes": target.stat().st_size, "crc32": checksum(target), "java": version_of(self.java)}
        manifest |= {HOME: str(spark_home())}
        (making / MANIFEST).write_text(json.dumps(manifest))
        with contextlib.suppress(OSError):  # another process was faster
            making.rename(self.folder)
        _remove_stale(self.folder.parent)
        return ""

    def link(self, link: Path) -> bool:
        """Point `link` to the archive or to Java's own one; return True for the archive.

        With a missing archive, a JVM would skip Java's own one too.
        """
        usable = self.usable()
        target = self.file if usable else default_archive(self.java) or self.file
        fresh = link.with_name(f"{link.name}.{secrets.token_hex(4)}")
        fresh.symlink_to(target)
        fresh.replace(link)
        return usable


def _remove_stale(folder: Path) -> None:
    for manifest in folder.glob(f"*/{MANIFEST}"):
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            if not Path(json.loads(manifest.read_text())[HOME]).exists():
                shutil.rmtree(manifest.parent, ignore_errors=True)
    for home in folder.parent.glob(f"{HOMES}/*"):
        if not (home / "jars").exists():
            shutil.rmtree(home, ignore_errors=True)


def archive_for(java: Path) -> ClassArchive | None:
    """Return the archive of Spark's present jars for this Java; None if this Java has no archives."""
    if default_archive(java) is None:
        return None
    jars = sorted((spark_home() / "jars").glob("*.jar"))
    identity = [FORMAT, str(java), version_of(java), _size_and_time(java.resolve()), class_path(), *MODULES, *SMALL_JVM]
    identity += [(jar.name, *_size_and_time(jar)) for jar in jars]
    key = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:16]
    return ClassArchive(java, cache_folder() / "java-classes" / key)


def options_for(file: Path) -> tuple[str, ...]:
    # JVMs of all hosts share the archive's pages at the address that it was made for; elsewhere each would rewrite its own
    # copy.
    return (f"-XX:SharedArchiveFile={file}", "-XX:+UnlockDiagnosticVMOptions", "-XX:ArchiveRelocationMode=0")


@functools.cache
def default_archive(java: Path) -> Path | None:
    library = java.resolve().parent.parent / "lib"
    return next((file for file in sorted(library.glob(f"**/{ARCHIVE}"))), None)


class Classes:
    """Class archive of one cluster: a link in `folder`. Without an archive, JVMs record what they load."""

    def __init__(self, java: Path, folder: Path) -> None:
        self._link, self._recording = folder / ARCHIVE, False
        # Java takes a colon for the end of a first archive's name.
        self._archive = None if ":" in str(self._link) else archive_for(java)
        try:
            self._recording = self._archive is not None and not self._archive.link(self._link)
        except OSError as error:  # a file system without symbolic links
            log.info("hosts start without an archive of Java classes: %s", error)
            self._archive = None
        if self._recording and self._archive is not None and (why := self._archive.unwritable_reason()):
            log.info("Java starts slower than it could, without an archive of its classes: %s", why)
            self._recording = False

    def options(self, recorded: Path) -> tuple[str, ...]:
        """Return the options of a JVM. Until there is an archive, it lists loaded classes in `recorded`."""
        if self._archive is None:
            return ()
        return (*options_for(self._link), *((f"-XX:DumpLoadedClassList={recorded}",) if self._recording else ()))

    def maker(self, lists: Iterable[Path]) -> Sequence[str]:
        """Return the command that makes the archive; empty if it exists or the command was returned before."""
        if not self._recording or self._archive is None:
            return ()
        self._recording = False
        paths = (self._archive.java, self._archive.folder, self._link, *lists)
        return [sys.executable, "-m", "elastream.clouds.local.archive", *map(str, paths)]


def merge_lists(lists: Iterable[Path]) -> Sequence[str]:
    """Return the unique lines of recorded lists, without classes of loaders that are known only by number."""
    classes: dict[str, None] = {}
    for each in lists:
        with contextlib.suppress(OSError):  # the host that wrote it is being removed
            whole = each.read_text(errors="replace").rpartition("\n")[0]  # the last line may be under way
            lines = (line for line in whole.splitlines() if line[:1] != "#" and " source: " not in line)
            classes |= dict.fromkeys(re.sub(r"^([^@ ]+) id: .*", r"\1", line) for line in lines)
    return list(classes)


def checksum(file: Path) -> int:
    """Return the CRC-32 of a file; it detects damage, not malice."""
    value = 0
    with file.open("rb") as content:
        while chunk := content.read(CHUNK):
            value = zlib.crc32(chunk, value)
    return value


def _size_and_time(file: Path) -> tuple[int, int]:
    return file.stat().st_size, file.stat().st_mtime_ns


@contextlib.contextmanager
def _only_one(file: Path) -> Iterator[bool]:
    with file.open("w") as file_lock:
        try:
            lock(file_lock, wait=False)
        except OSError:
            yield False
        else:
            yield True


def main(arguments: Sequence[str]) -> None:
    """Make the archive (`JAVA FOLDER LINK LIST...`) in idle time and point LINK to it."""
    take_only_idle_time()
    java, folder, link, *lists = map(Path, arguments)
    archive = ClassArchive(java, folder)
    if why := archive.make(lists):
        print(f"no archive of Java classes was made: {why}", flush=True)
    else:
        archive.link(link)


if __name__ == "__main__":
    main(sys.argv[1:])
