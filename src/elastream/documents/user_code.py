"""Users' functions and classes by name. Errors in users' code are one sentence; the package's keep their stack trace."""

import difflib
import importlib
import runpy
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from elastream.errors import ElastreamError

_OURS = Path(__file__).parents[1]


class ProgramError(ElastreamError):
    """An error in a user's program, with file and line."""


def near(name: str, choices: Iterable[str]) -> str:
    """Return `", did you mean 'cores'?"` if an option is close to `name`, else the list of options."""
    options = sorted(choices)
    close = difflib.get_close_matches(name, options, n=1)
    if close:
        return f", did you mean {close[0]!r}?"
    return f" (there is: {', '.join(options)})" if options else ""


def blame(error: BaseException, folder: Path) -> ProgramError | None:
    """Describe an error of the user's code below `folder`; return None if this package raised it.

    Other packages that the user's code calls count as the user's.
    """
    if isinstance(error, SyntaxError) and error.filename and Path(error.filename).suffix == ".py":
        return ProgramError(f"{_short(error.filename)}:{error.lineno}: {type(error).__name__}: {error.msg}")
    inside, place = _innermost(error, folder)
    if place is None or inside:
        return None
    if _wants_session(error):
        return ProgramError(
            f"{place}: a Column needs a Spark session, and none runs while a dataflow is declared: write SQL text, such as "
            "where('n > 5'), or a function for transform"
        )
    detail = f": {first}" if (first := str(error).strip().partition("\n")[0]) else ""
    return ProgramError(f"{place}: {type(error).__name__}{detail}")


def _wants_session(error: BaseException) -> bool:
    """Return True if PySpark made a Column without a session: it asserts one, without a message."""
    frames = traceback.extract_tb(error.__traceback__)
    return isinstance(error, AssertionError) and not str(error) and "/pyspark/" in Path(frames[-1].filename).as_posix()


def placed(error: ElastreamError, folder: Path) -> ElastreamError:
    """Prefix `error` with the line of the user's code that caused it.

    Errors of other causes, and those inside `run(...)`, are returned unchanged.
    """
    inside, place = _innermost(error, folder)
    if place is None or any(frame.endswith(("api/run.py", "elastream/settings.py")) for frame in inside):
        return error
    return ProgramError(f"{place}: {error}")


def _innermost(error: BaseException, folder: Path) -> tuple[list[str], str | None]:
    """Return this package's files called inside the innermost user frame, and that frame as `file:line` or None."""
    inside, root = [], folder.resolve()
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        file = Path(frame.filename)
        if file.is_relative_to(_OURS):
            inside.append(file.as_posix())
        elif _is_users(file, root):
            return inside, f"{_short(file)}:{frame.lineno}"
    return inside, None


def _is_users(file: Path, root: Path) -> bool:
    if not file.exists():  # frozen modules, "<string>"
        return False
    file = file.resolve()
    return file.is_relative_to(root) and not {"site-packages", "dist-packages"} & set(file.relative_to(root).parts)


def _short(file: str | Path) -> str:
    path, here = Path(file), Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


@contextmanager
def importing_from(folder: Path) -> Iterator[None]:
    entry = str(folder.resolve())
    sys.path.insert(0, entry)
    try:
        yield
    finally:
        sys.path.remove(entry)


class References:
    """Functions and classes by reference: `"module:name"`, or `"file.py:name"` in the first of `folders` that has the file.

    A file is executed once and is no imported module, so that its functions are pickled by value.
    """

    def __init__(self, *folders: Path) -> None:
        self._folders = folders
        self._files: dict[Path, dict[str, Any]] = {}

    def find(self, reference: str, what: str = "function") -> Callable[..., Any]:
        """Return the `what` under `reference`, or raise ProgramError."""
        place, colon, attribute = reference.rpartition(":")
        if not (colon and place and attribute):
            name = "function" if what == "function" else "Class"
            raise ProgramError(f"{reference!r} names no {what}: write 'module:{name}' or 'file.py:{name}'")
        names = self._file(place) if place.endswith(".py") else self._module(place)
        head, *rest = attribute.split(".")
        if head not in names:
            own = [
                name
                for name, value in names.items()
                if callable(value) and not name.startswith("_") and getattr(value, "__module__", "") == names["__name__"]
            ]
            raise ProgramError(f"{place} has no {what} {head!r}{near(head, own)}")
        value: Any = names[head]
        for name in rest:
            if not hasattr(value, name):
                raise ProgramError(f"{place} has no {what} {attribute!r}")
            value = getattr(value, name)
        if not callable(value):
            raise ProgramError(f"{attribute!r} of {place} is not a {what} but {type(value).__name__}")
        named: Callable[..., Any] = value
        return named

    @contextmanager
    def user_code(self) -> Iterator[None]:
        with ExitStack() as stack:
            for folder in reversed(self._folders):
                stack.enter_context(importing_from(folder))
            try:
                yield
            except ElastreamError:
                raise
            except (Exception, SystemExit) as error:
                blamed = (blame(error, folder) for folder in self._folders)
                raise next(filter(None, blamed), error) from error

    def _file(self, place: str) -> dict[str, Any]:
        path = next((f / place for f in self._folders if (f / place).is_file()), self._folders[0] / place).resolve()
        if path not in self._files:
            if not path.is_file():
                raise ProgramError(f"there is no file {_short(self._folders[0] / place)}")
            with self.user_code():
                # A name no import can have: nothing that is imported is shadowed while the file runs.
                self._files[path] = runpy.run_path(str(path), run_name=f"document:{path.stem}")
        return self._files[path]

    def _module(self, place: str) -> dict[str, Any]:
        if not all(part.isidentifier() for part in place.split(".")):
            raise ProgramError(f"{place!r} is not a name of a module")
        with self.user_code():
            try:
                return vars(importlib.import_module(place))
            except ModuleNotFoundError as error:
                if error.name and (place == error.name or place.startswith(f"{error.name}.")):
                    raise ProgramError(f"there is no module {error.name!r}") from None
                raise
