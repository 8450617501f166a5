"""The `elastream` command. One module a command; each imports what it needs only when it runs, so that help is instant."""

__all__ = ["main"]


def main() -> None:
    """Entry point of the command line; ends the process with the command's status."""
    from elastream.cli.app import app

    app()
