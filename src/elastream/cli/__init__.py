"""The `elastream` command, one module per command; each imports its dependencies when it runs, so that help is fast."""


def main() -> None:
    """Entry point of the command line; ends the process with the command's status."""
    from elastream.cli.app import app

    app()
