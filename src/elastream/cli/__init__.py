"""The `elastream` command, one module per command. A command imports what it needs when it runs, so that help is fast."""


def main() -> None:
    """Run the command line; end the process with the command's status."""
    from elastream.cli.app import app

    app()
