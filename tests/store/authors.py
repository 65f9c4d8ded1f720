"""Tests as an author of a store runs them: outside of this checkout, asyncio in strict mode."""

import os
import subprocess
import sys
from pathlib import Path


def run_pytest(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the tests of a folder, and return what was said of them."""
    command = [sys.executable, "-m", "pytest", "-q", *options, "-p", "no:cacheprovider", "-o", "asyncio_mode=strict"]
    return subprocess.run(
        [*command, "-o", "asyncio_default_fixture_loop_scope=function", str(folder)],
        cwd=folder,
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTEST")},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
