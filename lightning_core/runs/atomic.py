"""Files that are there as a whole, or not at all."""

import os
from pathlib import Path

from lightning_core.errors import RunFolderError


def write_atomically(path: Path, text: str) -> None:
    """Put a text in the place of a file. Whoever reads it, also after a kill, finds the old one or the new one.

    Raises:
        RunFolderError: When it cannot be written; the old one stays.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        try:
            with open(draft, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(draft, path)
        finally:
            draft.unlink(missing_ok=True)
    except OSError as exc:
        raise RunFolderError(f"cannot write {path}: {exc.strerror or exc}") from exc
