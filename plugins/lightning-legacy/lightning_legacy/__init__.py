"""The protocol of agentlightning 0.1 and 0.2: its server over any store, its client, and its runner."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
