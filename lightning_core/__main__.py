"""`python -m lightning_core`: the `agl` command."""

from lightning_core.cli import main

if __name__ == "__main__":
    main()
