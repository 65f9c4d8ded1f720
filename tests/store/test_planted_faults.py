"""The suite of stores finds the faults that authors of stores make."""

import re
import shutil
from pathlib import Path

import pytest

from tests.store import planted_faults
from tests.store.authors import run_pytest

OF = Path(planted_faults.__file__)


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The test classes of which a test failed, among those of `planted_faults`."""
    folder = tmp_path_factory.mktemp("author")
    shutil.copy(OF, folder / "test_stores.py")
    finished = run_pytest(folder, "-rf", "--tb=no")
    assert " passed" in finished.stdout, finished.stdout + finished.stderr
    return set(re.findall(r"FAILED test_stores\.py::Test(\w+)::", finished.stdout))


def test_a_store_without_a_fault_passes(failed: set[str]) -> None:
    assert "Sound" not in failed


@pytest.mark.parametrize("fault", [each.__name__ for each in planted_faults.FAULTY])
def test_a_fault_is_found(failed: set[str], fault: str) -> None:
    assert fault in failed
