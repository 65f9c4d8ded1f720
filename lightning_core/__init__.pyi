"""The names of the root package. `lightning_core/__init__.py` reads this file, so each stands here once."""

import typing

from .adapter import (
    Adapter as Adapter,
    LlmProxyTraceToTriplet as LlmProxyTraceToTriplet,
    OtelTraceAdapter as OtelTraceAdapter,
    TraceAdapter as TraceAdapter,
    TracerTraceToTriplet as TracerTraceToTriplet,
    TraceToMessages as TraceToMessages,
    TraceToTripletBase as TraceToTripletBase,
)
from .agent import (
    Environment as Environment,
    Grader as Grader,
    LitAgent as LitAgent,
    environment as environment,
    llm_rollout as llm_rollout,
    prompt_rollout as prompt_rollout,
    rollout as rollout,
)
from .algorithm import (
    Algorithm as Algorithm,
    Baseline as Baseline,
    FastAlgorithm as FastAlgorithm,
    algo as algo,
    run_batch as run_batch,
)
from .budget import (
    Budget as Budget,
)
from .emitter import (
    SpanLike as SpanLike,
    SpanRecordingContext as SpanRecordingContext,
    emit_annotation as emit_annotation,
    emit_exception as emit_exception,
    emit_message as emit_message,
    emit_object as emit_object,
    emit_reward as emit_reward,
    find_final_reward as find_final_reward,
    find_reward_spans as find_reward_spans,
    get_message_value as get_message_value,
    get_object_value as get_object_value,
    get_reward_value as get_reward_value,
    get_rewards_from_span as get_rewards_from_span,
    is_reward_span as is_reward_span,
    operation as operation,
)
from .errors import (
    Fault as Fault,
    LightningError as LightningError,
    NoRewards as NoRewards,
)
from .execution import (
    ExecutionEvent as ExecutionEvent,
    ExecutionStrategy as ExecutionStrategy,
    MultiprocessingEvent as MultiprocessingEvent,
    SharedMemoryExecutionStrategy as SharedMemoryExecutionStrategy,
    ThreadingEvent as ThreadingEvent,
)
from .logs import (
    setup_logging as setup_logging,
    setup_module_logging as setup_module_logging,
)
from .model_proxy import (
    ModelProxy as ModelProxy,
)
from .plugins import (
    hookimpl as hookimpl,
)
from .runner import (
    LitAgentRunner as LitAgentRunner,
    Runner as Runner,
)
from .runs import (
    FitResult as FitResult,
    RunFolder as RunFolder,
)
from .runs.loggers import (
    RunLogger as RunLogger,
)
from .store import (
    InMemoryLightningStore as InMemoryLightningStore,
    LightningStore as LightningStore,
    LightningStoreCapabilities as LightningStoreCapabilities,
    LightningStoreStatistics as LightningStoreStatistics,
    LightningStoreThreaded as LightningStoreThreaded,
)
from .tracer import (
    DummyTracer as DummyTracer,
    OtelTracer as OtelTracer,
    Tracer as Tracer,
    clear_active_tracer as clear_active_tracer,
    get_active_tracer as get_active_tracer,
    set_active_tracer as set_active_tracer,
)
from .trainer import (
    Trainer as Trainer,
)
from .types import (
    LLM as LLM,
    Attempt as Attempt,
    AttemptedRollout as AttemptedRollout,
    AttemptStatus as AttemptStatus,
    Attributes as Attributes,
    AttributeValue as AttributeValue,
    Dataset as Dataset,
    EnqueueRolloutRequest as EnqueueRolloutRequest,
    Event as Event,
    FilterField as FilterField,
    FilterOptions as FilterOptions,
    Hook as Hook,
    Link as Link,
    NamedResources as NamedResources,
    OtelResource as OtelResource,
    PaginatedResult as PaginatedResult,
    PromptTemplate as PromptTemplate,
    ProxyLLM as ProxyLLM,
    Resource as Resource,
    ResourcesUpdate as ResourcesUpdate,
    ResourceUnion as ResourceUnion,
    Rollout as Rollout,
    RolloutConfig as RolloutConfig,
    RolloutMode as RolloutMode,
    RolloutRawResult as RolloutRawResult,
    RolloutStatus as RolloutStatus,
    SortOptions as SortOptions,
    Span as Span,
    SpanContext as SpanContext,
    SpanCoreFields as SpanCoreFields,
    StatusCode as StatusCode,
    TaskInput as TaskInput,
    TraceState as TraceState,
    TraceStatus as TraceStatus,
    Triplet as Triplet,
    Worker as Worker,
    WorkerStatus as WorkerStatus,
)

# What plugins supply; see lightning_core/former.py. Import from the plugin for its type.
LLMProxy: typing.TypeAlias = typing.Any
ModelConfig: typing.TypeAlias = typing.Any
LightningStoreClient: typing.TypeAlias = typing.Any
LightningStoreServer: typing.TypeAlias = typing.Any
CommandAgent: typing.TypeAlias = typing.Any
HttpAgent: typing.TypeAlias = typing.Any
APO: typing.TypeAlias = typing.Any
VERL: typing.TypeAlias = typing.Any
AgentOpsTracer: typing.TypeAlias = typing.Any
WeaveTracer: typing.TypeAlias = typing.Any
ClientServerExecutionStrategy: typing.TypeAlias = typing.Any
configure_logger: typing.Any
