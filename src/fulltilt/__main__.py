"""`python -m fulltilt` is the `fulltilt` command."""

from fulltilt.cli import main

if __name__ == "__main__":
    main()
