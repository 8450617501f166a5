"""An archive of the classes that Spark loads, from which its JVMs start with half of the CPU time (Java's AppCDS).

A run that finds none records the classes that its JVMs load, and makes one from that in idle time once a host has worked
for a while. It lies in the user's cache folder, under a name that changes with Java, Spark's jars and the options. Whatever
goes wrong with it costs time at the next start and nothing else.
"""

import contextlib
import fcntl
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

log = logging.getLogger(__name__)

FORMAT = 2
"""Counted up where what is archived changes, so that older archives are not used."""
ARCHIVE, MANIFEST, LOCK = "classes.jsa", "manifest.json", "making.lock"
HOME = "spark_home"
"""In a manifest: the folder of the jars that the archive is for."""
RECORDED = "classes.lst"
"""File name of a list of loaded classes, in the folder of what loaded them."""
MODULES = ("--add-modules=jdk.incubator.vector",)
"""Spark adds this module to each executor and driver: an archive made with others is refused by some versions of Java."""
LEAST_FREE = 300e6
"""Bytes that must be free where one is made: it takes 130 MB."""
HEADER = 4096
"""First bytes of an archive, in which Java writes which Java it is for."""
CHUNK = 1 << 24


@dataclass(frozen=True, slots=True)
class ClassArchive:
    """The archive for one Java, one set of jars and one set of options. folder: takes it and its manifest."""

    java: Path
    folder: Path

    @property
    def file(self) -> Path:
        """The archive, whether it is there or not."""
        return self.folder / ARCHIVE

    def usable(self) -> bool:
        """Whether it is there, whole and for this Java. One that is not is removed, with a warning."""
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
        if version_of(self.java).encode() not in self.file.open("rb").read(HEADER):
            return "it was made by another Java"
        return "" if checksum(self.file) == manifest["crc32"] else "its content has changed"

    def refused(self) -> str:
        """Why none can be made where it would lie; empty where one can."""
        try:
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            with (self.folder.parent / LOCK).open("a"):
                free = shutil.disk_usage(self.folder.parent).free
        except OSError as error:
            return f"{self.folder.parent} cannot be written ({error.strerror})"
        return f"the disk of {self.folder.parent} is full" if free < LEAST_FREE else ""

    def make(self, lists: Sequence[Path]) -> str:
        """Make it from recorded classes; why there is none, empty where it was made, by this process or another.

        It appears whole or not at all, whoever else makes one at the same time.
        """
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        with _only_one(self.folder.parent / LOCK) as alone:
            if not alone:
                return "another process makes one"
            if self.file.exists():
                return ""
            for left in self.folder.parent.glob("making-*"):  # of a maker that was ended
                shutil.rmtree(left, ignore_errors=True)
            making = self.folder.parent / f"making-{secrets.token_hex(4)}"
            making.mkdir()
            try:
                return self._make(making, lists)
            finally:
                shutil.rmtree(making, ignore_errors=True)

    def _make(self, making: Path, lists: Sequence[Path]) -> str:
        (making / RECORDED).write_text("\n".join(merged(lists)) + "\n")
        target, classes = making / ARCHIVE, ("-cp", class_path())
        dump = ("-Xshare:dump", f"-XX:SharedClassListFile={making / RECORDED}", f"-XX:SharedArchiveFile={target}")
        for options in ((*dump, *MODULES, *classes), (*options_for(target), "-Xshare:on", *MODULES, *classes, "-version")):
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
        _forget_environments_that_are_gone(self.folder.parent)
        return ""

    def link(self, link: Path) -> bool:
        """Let `link` refer to the archive, or to the one that comes with Java where there is none; whether there is one.

        A JVM whose archive does not exist would do without the one that comes with Java too, and start slower than ever.
        """
        there = self.usable()
        target = self.file if there else default_archive(self.java) or self.file
        fresh = link.with_name(f"{link.name}.{secrets.token_hex(4)}")
        fresh.symlink_to(target)
        fresh.replace(link)
        return there


def _forget_environments_that_are_gone(folder: Path) -> None:
    """Remove archives in `folder` for jars that are not where they were any more: of an environment that was removed; and
    links to them."""
    for manifest in folder.glob(f"*/{MANIFEST}"):
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            if not Path(json.loads(manifest.read_text())[HOME]).exists():
                shutil.rmtree(manifest.parent, ignore_errors=True)
    for home in folder.parent.glob(f"{HOMES}/*"):
        if not (home / "jars").exists():
            shutil.rmtree(home, ignore_errors=True)


def archive_for(java: Path) -> ClassArchive | None:
    """The archive of what Spark loads in this Java from its present jars; None where this Java has no archives at all."""
    if default_archive(java) is None:
        return None
    jars = sorted((spark_home() / "jars").glob("*.jar"))
    known = [FORMAT, str(java), version_of(java), _look(java.resolve()), class_path(), *MODULES, *SMALL_JVM]
    known += [(jar.name, *_look(jar)) for jar in jars]
    key = hashlib.sha256(json.dumps(known).encode()).hexdigest()[:16]
    return ClassArchive(java, cache_folder() / "java-classes" / key)


def options_for(file: Path) -> tuple[str, ...]:
    """Options of a JVM that is to use the archive `file`."""
    # Mapped where it was made for, the JVMs of all hosts share its pages; anywhere else each would rewrite its own copy.
    return (f"-XX:SharedArchiveFile={file}", "-XX:+UnlockDiagnosticVMOptions", "-XX:ArchiveRelocationMode=0")


@functools.cache
def default_archive(java: Path) -> Path | None:
    """The archive of its own classes that comes with most builds of Java."""
    library = java.resolve().parent.parent / "lib"
    return next((found for found in sorted(library.glob(f"**/{ARCHIVE}"))), None)


class Classes:
    """What the JVMs of one cluster load their classes from: a link in `folder`, which may come to refer to another archive.

    Where there is no archive they record what they load.
    """

    def __init__(self, java: Path, folder: Path) -> None:
        self._link, self._recording = folder / ARCHIVE, False
        # Java takes a colon for the end of a first archive's name.
        self._archive = None if ":" in str(self._link) else archive_for(java)
        try:
            self._recording = self._archive is not None and not self._archive.link(self._link)
        except OSError as error:  # a file system without symbolic links
            log.info("hosts start without an archive of Java classes: %s", error)
            self._archive = None
        if self._recording and self._archive is not None and (why := self._archive.refused()):
            log.warning("hosts start slower than they could, without an archive of Java classes: %s", why)
            self._recording = False

    def options(self, recorded: Path) -> tuple[str, ...]:
        """Options of a JVM, which writes what it loads into `recorded` where there is no archive yet."""
        if self._archive is None:
            return ()
        return (*options_for(self._link), *((f"-XX:DumpLoadedClassList={recorded}",) if self._recording else ()))

    def maker(self, lists: Iterable[Path]) -> Sequence[str]:
        """The command that makes the archive from recorded lists; empty where there is one, or it was asked for before."""
        if not self._recording or self._archive is None:
            return ()
        self._recording = False
        paths = (self._archive.java, self._archive.folder, self._link, *lists)
        return [sys.executable, "-m", "elastream.clouds.local.archive", *map(str, paths)]


def merged(lists: Iterable[Path]) -> Sequence[str]:
    """The lines of recorded lists, each once; those of class loaders that numbers refer to are left out."""
    found: dict[str, None] = {}
    for each in lists:
        with contextlib.suppress(OSError):  # the host that wrote it is being removed
            whole = each.read_text(errors="replace").rpartition("\n")[0]  # the last line may be under way
            kept = (line for line in whole.splitlines() if line[:1] != "#" and " source: " not in line)
            found |= dict.fromkeys(re.sub(r"^([^@ ]+) id: .*", r"\1", line) for line in kept)
    return list(found)


def checksum(file: Path) -> int:
    """CRC-32 of a file's content: it tells damage, not malice."""
    value = 0
    with file.open("rb") as content:
        while chunk := content.read(CHUNK):
            value = zlib.crc32(chunk, value)
    return value


def _look(file: Path) -> tuple[int, int]:
    return file.stat().st_size, file.stat().st_mtime_ns


@contextlib.contextmanager
def _only_one(file: Path) -> Iterator[bool]:
    with file.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
        else:
            yield True


def main(arguments: Sequence[str]) -> None:
    """`JAVA FOLDER LINK LIST...`: make the archive in FOLDER from lists, in idle time, and let LINK refer to it."""
    take_only_idle_time()
    java, folder, link, *lists = map(Path, arguments)
    archive = ClassArchive(java, folder)
    if why := archive.make(lists):
        print(f"no archive of Java classes was made: {why}", flush=True)
    else:
        archive.link(link)


if __name__ == "__main__":
    main(sys.argv[1:])
