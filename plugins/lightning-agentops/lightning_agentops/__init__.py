"""The tracer `agentops`, and `agl agentops`: what AgentOps sees of an agent, in our store. Nothing is imported before
use: `python -m lightning_agentops` starts programs that do without the tracer.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
