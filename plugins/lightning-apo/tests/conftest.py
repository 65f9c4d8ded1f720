import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))  # what the tests share

from toy_models import ToyModels


@pytest.fixture
async def models() -> AsyncIterator[ToyModels]:
    async with ToyModels().serving() as serving:
        yield serving
