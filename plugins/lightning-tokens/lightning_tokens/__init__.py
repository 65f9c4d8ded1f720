"""Models that take and give tokens: an object in this process, or the server of an engine. Imported when used."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
