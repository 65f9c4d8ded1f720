"""A referee for whoever improves an agent. Nothing is imported before use."""

from typing import Final

import lazy_loader

KEY_VARIABLE: Final = "AGL_REFEREE_KEY"
"""The environment variable with the key that whoever submits has to know."""
PORT: Final = 4749

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
