"""What records the spans of an agent, each in the trace where it started.

The OpenTelemetry SDK takes long to import, so each name is imported when it is first used.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
