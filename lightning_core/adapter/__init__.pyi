from .base import (
    Adapter as Adapter,
    OtelTraceAdapter as OtelTraceAdapter,
    TraceAdapter as TraceAdapter,
)
from .calls import (
    Choice as Choice,
    ModelCall as ModelCall,
    agent_calls as agent_calls,
    read_model_calls as read_model_calls,
    read_usage as read_usage,
)
from .chains import (
    RowStart as RowStart,
)
from .messages import (
    OpenAIMessages as OpenAIMessages,
    TraceToMessages as TraceToMessages,
)
from .rewards import (
    RewardMatchPolicy as RewardMatchPolicy,
)
from .trajectory import (
    RefusalReason as RefusalReason,
    RefusedAnswer as RefusedAnswer,
    RowCall as RowCall,
    TraceToTrajectories as TraceToTrajectories,
    Trajectories as Trajectories,
    Trajectory as Trajectory,
)
from .tree import (
    TraceTree as TraceTree,
)
from .triplet import (
    LlmProxyTraceToTriplet as LlmProxyTraceToTriplet,
    TracerTraceToTriplet as TracerTraceToTriplet,
    TraceToTripletBase as TraceToTripletBase,
)

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
    "RowStart",
    "TraceAdapter",
    "TraceToMessages",
    "TraceToTrajectories",
    "TraceToTripletBase",
    "TraceTree",
    "TracerTraceToTriplet",
    "Trajectories",
    "Trajectory",
    "agent_calls",
    "read_model_calls",
    "read_usage",
]
