"""The `elastream` command, one module per command. Imports wait until a command runs, so that help is fast."""

import contextlib
import errno
import io
import sys


def main() -> None:
    """Run the command line; end the process with the command's status."""
    from elastream.cli.app import app
    from elastream.errors import ElastreamError

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without a dash shows a question mark
    try:
        try:
            app()
        finally:
            sys.stdout.flush()
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        with contextlib.suppress(OSError):
            sys.stdout.close()  # otherwise the interpreter fails once more with what is left in it
        sys.stderr.write(f"elastream: the output cannot be written: {error.strerror}\n")
        sys.exit(ElastreamError.exit_status)
