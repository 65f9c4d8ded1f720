"""Files of a run: its owner's alone, and there as a whole or not at all."""

import os
from pathlib import Path

from lightning_core.errors import RunFolderError


def private(path: str, flags: int) -> int:
    """Open a file so that only its owner can read it, where it is made anew; an `opener` of `open`."""
    return os.open(path, flags, 0o600)


def write_atomically(path: Path, text: str) -> None:
    """Put a text in the place of a file. Whoever reads it, also after a kill, finds the old one or the new one.

    Raises:
        RunFolderError: When it cannot be written; the old one stays.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        try:
            with open(draft, "w", encoding="utf-8", opener=private) as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(draft, path)
        finally:
            draft.unlink(missing_ok=True)
    except OSError as exc:
        raise RunFolderError(f"cannot write {path}: {exc.strerror or exc}") from exc
