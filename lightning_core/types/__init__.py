"""The values that all parts exchange. No I/O, and no import from the rest of the framework."""

from lightning_core.types.dataset import Dataset, sample_key, samples_of
from lightning_core.types.hook import Hook
from lightning_core.types.query import (
    FilterField,
    FilterLogic,
    FilterOptions,
    PaginatedResult,
    SortOptions,
    SortOrder,
)
from lightning_core.types.resources import (
    LLM,
    NamedResources,
    PromptTemplate,
    ProxyLLM,
    Resource,
    ResourcesUpdate,
    ResourceUnion,
)
from lightning_core.types.result import RolloutRawResult
from lightning_core.types.rollout import (
    Attempt,
    AttemptedRollout,
    AttemptStatus,
    EnqueueRolloutRequest,
    Rollout,
    RolloutConfig,
    RolloutMode,
    RolloutStatus,
    TaskInput,
)
from lightning_core.types.span import (
    Attributes,
    AttributeValue,
    Event,
    Link,
    OtelResource,
    Span,
    SpanContext,
    SpanCoreFields,
    StatusCode,
    TraceState,
    TraceStatus,
)
from lightning_core.types.triplet import Triplet
from lightning_core.types.worker import Worker, WorkerStatus

__all__ = [
    "LLM",
    "Attempt",
    "AttemptStatus",
    "AttemptedRollout",
    "AttributeValue",
    "Attributes",
    "Dataset",
    "EnqueueRolloutRequest",
    "Event",
    "FilterField",
    "FilterLogic",
    "FilterOptions",
    "Hook",
    "Link",
    "NamedResources",
    "OtelResource",
    "PaginatedResult",
    "PromptTemplate",
    "ProxyLLM",
    "Resource",
    "ResourceUnion",
    "ResourcesUpdate",
    "Rollout",
    "RolloutConfig",
    "RolloutMode",
    "RolloutRawResult",
    "RolloutStatus",
    "SortOptions",
    "SortOrder",
    "Span",
    "SpanContext",
    "SpanCoreFields",
    "StatusCode",
    "TaskInput",
    "TraceState",
    "TraceStatus",
    "Triplet",
    "Worker",
    "WorkerStatus",
    "sample_key",
    "samples_of",
]
