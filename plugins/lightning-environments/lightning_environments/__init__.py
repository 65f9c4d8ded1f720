"""Environments of Lightning Core: tasks by name, with their scorers. Nothing is imported before use."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
