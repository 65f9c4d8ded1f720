"""The tracer `weave`: what W&B Weave sees of an agent, as spans of Lightning Core."""

from lightning_weave.tracer import WeaveTracer

__all__ = ["WeaveTracer"]
