"""`python -m fulltilt` is the `fulltilt` command."""

import sys


def main() -> None:
    """Ctrl-C while modules are imported ends it as it does later: without a traceback."""
    try:
        from fulltilt.cli import main as command
    except KeyboardInterrupt:
        sys.exit(130)
    command()


if __name__ == "__main__":
    main()
