"""Clients of file systems that are not mounted, without a JVM and without stored secrets.

HDFS by its REST API (WebHDFS), object stores by Arrow's clients, others by fsspec. Links of `viewfs` are followed.
"""

import getpass
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elastream.errors import EnvironmentProblem, InputError, missing

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

# Environment variable of driver and executors: Hadoop's file system settings as JSON, without secrets.
FILES_REACHED_BY = "ELASTREAM_FILES"
# Hadoop's settings that say how file systems are reached. Keys are not among them: they come from the environment.
SETTINGS = re.compile(
    r"dfs\.(nameservices|ha\.namenodes\..+|namenode\.https?-address(\..+)?|http\.policy)|hadoop\.security\.authentication"
    r"|fs\.viewfs\.mounttable\..+\.link\..+|fs\.s3a\.(endpoint|endpoint\.region|path\.style\.access|connection\.ssl\.enabled)"
)
# Timeouts [s] to connect, and between two bytes of an answer.
TIMEOUTS_S = (5.0, 60.0)
# Default port of a name node.
WEB_PORT = 9870


def reached_by(settings: Mapping[str, str]) -> str:
    """Return the value of `FILES_REACHED_BY`, from Spark's settings (`spark.hadoop.*`) and the files in HADOOP_CONF_DIR."""
    from xml.etree import ElementTree  # only a driver with a remote run needs it

    hadoop_settings: dict[str, str] = {}
    for name in ("core-site.xml", "hdfs-site.xml"):
        file = Path(os.environ.get("HADOOP_CONF_DIR", "")) / name
        if os.environ.get("HADOOP_CONF_DIR") and file.is_file():
            try:
                tree = ElementTree.parse(file)
            except (ElementTree.ParseError, OSError) as error:
                raise InputError(f"{file} cannot be read: {error}") from None
            hadoop_settings |= {each.findtext("name", ""): each.findtext("value", "") for each in tree.iter("property")}
    prefix = "spark.hadoop."
    hadoop_settings |= {name.removeprefix(prefix): value for name, value in settings.items() if name.startswith(prefix)}
    return json.dumps({name: value for name, value in sorted(hadoop_settings.items()) if SETTINGS.fullmatch(name)})


@lru_cache(maxsize=1024)
def resolved(address: str, reached: str) -> str:
    """Return the address that a `viewfs://TABLE/...` address stands for by the table's links; others stay as they are.

    Raises EnvironmentProblem if no link leads there.
    """
    scheme, _, rest = address.partition("://")
    if scheme != "viewfs":
        return address
    table, slash, names = rest.partition("/")
    path, prefix = slash + names, f"fs.viewfs.mounttable.{table}.link."
    links: dict[str, str] = {
        name.removeprefix(prefix): to for name, to in json.loads(reached).items() if name.startswith(prefix)
    }
    for link in sorted(links, key=len, reverse=True):
        if f"{path}/".startswith(f"{link.rstrip('/')}/"):
            return links[link].rstrip("/") + path[len(link.rstrip("/")) :]
    raise EnvironmentProblem(f"no link of the mount table {table!r} leads to {address}")


def is_web(fs: Any) -> bool:
    return hasattr(fs, "_apply_proxy")


@lru_cache(maxsize=64)
def file_system(scheme: str, authority: str, reached: str, thread: int) -> "AbstractFileSystem":
    """Return the client for addresses `scheme://authority/...`, one for each thread.

    Raises:
        EnvironmentProblem: If its library is missing.
        OSError: If nobody answers.
    """
    settings: Mapping[str, str] = json.loads(reached)
    try:
        import fsspec

        match scheme:
            case "hdfs" | "webhdfs":
                return _web_hdfs(authority, settings)
            case "s3" | "s3a":
                return _s3(settings)
            case "gs":
                from fsspec.implementations.arrow import ArrowFSWrapper
                from pyarrow.fs import GcsFileSystem

                return ArrowFSWrapper(GcsFileSystem())
        return fsspec.filesystem(scheme, use_listings_cache=False)
    except ImportError as error:
        why = missing(error, f"a folder on {scheme}://") or f"{scheme}:// needs a library that is not installed ({error})"
        raise EnvironmentProblem(why) from error
    except (TypeError, ValueError) as error:
        raise EnvironmentProblem(f"folders on {scheme}:// cannot be opened here: {error}") from error


def files_below(fs: "AbstractFileSystem", path: str) -> Iterable[Mapping[str, Any]] | None:
    """Return all files below `path`; None if `fs` lists single folders."""
    from fsspec import AbstractFileSystem
    from fsspec.implementations.arrow import ArrowFSWrapper

    if isinstance(fs, ArrowFSWrapper):
        from pyarrow.fs import FileSelector

        found = fs.fs.get_file_info(FileSelector(path, recursive=True))
        return [fs._make_entry(each) for each in found if each.is_file]
    return None if type(fs).find is AbstractFileSystem.find else list(fs.find(path, detail=True).values())


def _web_hdfs(authority: str, settings: Mapping[str, str]) -> "AbstractFileSystem":
    from fsspec.implementations.webhdfs import WebHDFS

    secure = settings.get("hadoop.security.authentication", "simple") == "kerberos"
    https = settings.get("dfs.http.policy", "HTTP_ONLY") == "HTTPS_ONLY"
    user = None if secure else os.environ.get("HADOOP_USER_NAME") or getpass.getuser()
    tried = []
    for host, port in _name_nodes(authority, settings, https):
        client = WebHDFS(host, port, user=user, kerberos=secure, use_https=https, skip_instance_cache=True)
        _patient(client.session)
        try:
            client.info("/")
            return client
        except (OSError, RuntimeError):  # not there, or a stand-by
            tried.append(f"{host}:{port}")
    raise ConnectionError(f"no name node of hdfs://{authority} answers on WebHDFS ({', '.join(tried)})")


def _patient(session: Any) -> None:
    """Set a timeout on every request, and retry one whose connection the server has closed."""
    from requests.adapters import HTTPAdapter
    from urllib3.util import Retry

    for scheme in ("http://", "https://"):
        session.mount(scheme, HTTPAdapter(max_retries=Retry(2, backoff_factor=0.1, raise_on_status=False)))
    session.request = partial(session.request, timeout=TIMEOUTS_S)


def _name_nodes(authority: str, settings: Mapping[str, str], https: bool) -> Iterator[tuple[str, int]]:
    key = f"dfs.namenode.http{'s' if https else ''}-address"
    nodes = [name.strip() for name in settings.get(f"dfs.ha.namenodes.{authority}", "").split(",") if name.strip()]
    addresses = [settings.get(f"{key}.{authority}.{node}", "") for node in nodes] or [settings.get(key, "")]
    own = authority.rpartition("@")[2].rpartition(":")[0] or authority
    for each in addresses:
        host, _, port = each.rpartition(":")
        # A name node that is bound to every address of its machine is reached at its own.
        yield (own if host in ("", "0.0.0.0") else host), int(port or WEB_PORT)


def _s3(settings: Mapping[str, str]) -> "AbstractFileSystem":
    from fsspec.implementations.arrow import ArrowFSWrapper
    from pyarrow.fs import S3FileSystem

    endpoint = settings.get("fs.s3a.endpoint", "")
    plain = settings.get("fs.s3a.connection.ssl.enabled", "true") == "false" or endpoint.startswith("http://")
    options = {
        "endpoint_override": endpoint.split("://")[-1],
        "region": settings.get("fs.s3a.endpoint.region", ""),
        "scheme": "http" if plain else "",
    }
    return ArrowFSWrapper(S3FileSystem(**{name: value for name, value in options.items() if value}))
