import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))  # what the tests share

from lightning_tokens.testing import make_tiny_model


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_tiny_model(tmp_path_factory.mktemp("tiny")))
