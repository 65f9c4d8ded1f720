"""Conformance suites that a plugin's author subclasses, and what they are made of.

Needs pytest and pytest-asyncio, in its `auto` or its `strict` mode. Nothing else of the framework imports this.
"""

import pytest

for _suites in ("adapter", "algorithm", "environment", "runner", "store", "tracer"):
    pytest.register_assert_rewrite(f"{__name__}.{_suites}")

# Asserts are rewritten on import, so pytest had to be told first.
from lightning_core.testing.adapter import AdapterSuite  # noqa: E402
from lightning_core.testing.algorithm import AlgorithmSuite  # noqa: E402
from lightning_core.testing.clock import FakeClock  # noqa: E402
from lightning_core.testing.environment import EnvironmentSuite  # noqa: E402
from lightning_core.testing.runner import RunnerSuite  # noqa: E402
from lightning_core.testing.store import StoreSuite  # noqa: E402
from lightning_core.testing.tracer import TracerSuite  # noqa: E402

__all__ = [
    "AdapterSuite",
    "AlgorithmSuite",
    "EnvironmentSuite",
    "FakeClock",
    "RunnerSuite",
    "StoreSuite",
    "TracerSuite",
]
