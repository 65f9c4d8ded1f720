"""Conformance suites that a plugin's author subclasses, and what they are made of.

Needs pytest and pytest-asyncio, in its `auto` or its `strict` mode. Nothing else of the framework imports this.
"""

import pytest

pytest.register_assert_rewrite("lightning_core.testing.store")

from lightning_core.testing.clock import FakeClock  # noqa: E402  # asserts are rewritten on import, so pytest first
from lightning_core.testing.store import StoreSuite  # noqa: E402

__all__ = ["FakeClock", "StoreSuite"]
