"""From spans to what an algorithm learns from: model calls, triplets, trajectories, conversations."""

from lightning_core.adapter.base import Adapter, OtelTraceAdapter, TraceAdapter
from lightning_core.adapter.calls import Choice, ModelCall, read_model_calls
from lightning_core.adapter.messages import OpenAIMessages, TraceToMessages
from lightning_core.adapter.rewards import RewardMatchPolicy
from lightning_core.adapter.trajectory import (
    RefusalReason,
    RefusedAnswer,
    RowCall,
    TraceToTrajectories,
    Trajectories,
    Trajectory,
)
from lightning_core.adapter.tree import TraceTree
from lightning_core.adapter.triplet import LlmProxyTraceToTriplet, TracerTraceToTriplet, TraceToTripletBase

__all__ = [
    "Adapter",
    "Choice",
    "LlmProxyTraceToTriplet",
    "ModelCall",
    "OpenAIMessages",
    "OtelTraceAdapter",
    "RefusalReason",
    "RefusedAnswer",
    "RewardMatchPolicy",
    "RowCall",
    "TraceAdapter",
    "TraceToMessages",
    "TraceToTrajectories",
    "TraceToTripletBase",
    "TraceTree",
    "TracerTraceToTriplet",
    "Trajectories",
    "Trajectory",
    "read_model_calls",
]
