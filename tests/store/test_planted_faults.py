"""The suite of stores finds the faults that authors of stores make."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.store import planted_faults

OF = Path(planted_faults.__file__)


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The test classes of which a test failed, among those of `planted_faults`."""
    folder = tmp_path_factory.mktemp("author")
    shutil.copy(OF, folder / "test_stores.py")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    command = [sys.executable, "-m", "pytest", "-q", "-rf", "--tb=no", "-p", "no:cacheprovider"]
    options = ["-o", "asyncio_mode=strict", "-o", "asyncio_default_fixture_loop_scope=function"]
    finished = subprocess.run(
        [*command, *options, "test_stores.py"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert " passed" in finished.stdout, finished.stdout + finished.stderr
    return set(re.findall(r"FAILED test_stores\.py::Test(\w+)::", finished.stdout))


def test_a_store_without_a_fault_passes(failed: set[str]) -> None:
    assert "Sound" not in failed


@pytest.mark.parametrize("fault", [each.__name__ for each in planted_faults.FAULTY])
def test_a_fault_is_found(failed: set[str], fault: str) -> None:
    assert fault in failed
