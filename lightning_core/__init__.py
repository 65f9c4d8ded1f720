"""Lightning Core: make any LLM agent better at its tasks, without changing the agent.

Everything that users need is here, by name; what a name needs is imported when it is first used.
"""

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightning_core.adapter import (
        Adapter as Adapter,
    )
    from lightning_core.adapter import (
        LlmProxyTraceToTriplet as LlmProxyTraceToTriplet,
    )
    from lightning_core.adapter import (
        OtelTraceAdapter as OtelTraceAdapter,
    )
    from lightning_core.adapter import (
        TraceAdapter as TraceAdapter,
    )
    from lightning_core.adapter import (
        TracerTraceToTriplet as TracerTraceToTriplet,
    )
    from lightning_core.adapter import (
        TraceToMessages as TraceToMessages,
    )
    from lightning_core.adapter import (
        TraceToTripletBase as TraceToTripletBase,
    )
    from lightning_core.agent import (
        CommandAgent as CommandAgent,
    )
    from lightning_core.agent import (
        Grader as Grader,
    )
    from lightning_core.agent import (
        HttpAgent as HttpAgent,
    )
    from lightning_core.agent import (
        LitAgent as LitAgent,
    )
    from lightning_core.agent import (
        llm_rollout as llm_rollout,
    )
    from lightning_core.agent import (
        prompt_rollout as prompt_rollout,
    )
    from lightning_core.agent import (
        rollout as rollout,
    )
    from lightning_core.algorithm import (
        Algorithm as Algorithm,
    )
    from lightning_core.algorithm import (
        Baseline as Baseline,
    )
    from lightning_core.algorithm import (
        FastAlgorithm as FastAlgorithm,
    )
    from lightning_core.algorithm import (
        algo as algo,
    )
    from lightning_core.emitter import (
        SpanLike as SpanLike,
    )
    from lightning_core.emitter import (
        SpanRecordingContext as SpanRecordingContext,
    )
    from lightning_core.emitter import (
        emit_annotation as emit_annotation,
    )
    from lightning_core.emitter import (
        emit_exception as emit_exception,
    )
    from lightning_core.emitter import (
        emit_message as emit_message,
    )
    from lightning_core.emitter import (
        emit_object as emit_object,
    )
    from lightning_core.emitter import (
        emit_reward as emit_reward,
    )
    from lightning_core.emitter import (
        find_final_reward as find_final_reward,
    )
    from lightning_core.emitter import (
        find_reward_spans as find_reward_spans,
    )
    from lightning_core.emitter import (
        get_message_value as get_message_value,
    )
    from lightning_core.emitter import (
        get_object_value as get_object_value,
    )
    from lightning_core.emitter import (
        get_reward_value as get_reward_value,
    )
    from lightning_core.emitter import (
        get_rewards_from_span as get_rewards_from_span,
    )
    from lightning_core.emitter import (
        is_reward_span as is_reward_span,
    )
    from lightning_core.emitter import (
        operation as operation,
    )
    from lightning_core.errors import (
        Fault as Fault,
    )
    from lightning_core.execution import (
        ExecutionEvent as ExecutionEvent,
    )
    from lightning_core.execution import (
        ExecutionStrategy as ExecutionStrategy,
    )
    from lightning_core.execution import (
        MultiprocessingEvent as MultiprocessingEvent,
    )
    from lightning_core.execution import (
        SharedMemoryExecutionStrategy as SharedMemoryExecutionStrategy,
    )
    from lightning_core.execution import (
        ThreadingEvent as ThreadingEvent,
    )
    from lightning_core.logs import (
        configure_logger as configure_logger,
    )
    from lightning_core.logs import (
        setup_logging as setup_logging,
    )
    from lightning_core.logs import (
        setup_module_logging as setup_module_logging,
    )
    from lightning_core.plugins import (
        hookimpl as hookimpl,
    )
    from lightning_core.proxy import (
        LLMProxy as LLMProxy,
    )
    from lightning_core.proxy import (
        ModelConfig as ModelConfig,
    )
    from lightning_core.runner import (
        LitAgentRunner as LitAgentRunner,
    )
    from lightning_core.runner import (
        Runner as Runner,
    )
    from lightning_core.runs import (
        FitResult as FitResult,
    )
    from lightning_core.store import (
        InMemoryLightningStore as InMemoryLightningStore,
    )
    from lightning_core.store import (
        LightningStore as LightningStore,
    )
    from lightning_core.store import (
        LightningStoreCapabilities as LightningStoreCapabilities,
    )
    from lightning_core.store import (
        LightningStoreStatistics as LightningStoreStatistics,
    )
    from lightning_core.store import (
        LightningStoreThreaded as LightningStoreThreaded,
    )
    from lightning_core.store.http import (
        LightningStoreClient as LightningStoreClient,
    )
    from lightning_core.store.http import (
        LightningStoreServer as LightningStoreServer,
    )
    from lightning_core.tracer import (
        DummyTracer as DummyTracer,
    )
    from lightning_core.tracer import (
        OtelTracer as OtelTracer,
    )
    from lightning_core.tracer import (
        Tracer as Tracer,
    )
    from lightning_core.tracer import (
        clear_active_tracer as clear_active_tracer,
    )
    from lightning_core.tracer import (
        get_active_tracer as get_active_tracer,
    )
    from lightning_core.tracer import (
        set_active_tracer as set_active_tracer,
    )
    from lightning_core.trainer import (
        Trainer as Trainer,
    )
    from lightning_core.types import (
        LLM as LLM,
    )
    from lightning_core.types import (
        Attempt as Attempt,
    )
    from lightning_core.types import (
        AttemptedRollout as AttemptedRollout,
    )
    from lightning_core.types import (
        AttemptStatus as AttemptStatus,
    )
    from lightning_core.types import (
        Attributes as Attributes,
    )
    from lightning_core.types import (
        AttributeValue as AttributeValue,
    )
    from lightning_core.types import (
        Dataset as Dataset,
    )
    from lightning_core.types import (
        EnqueueRolloutRequest as EnqueueRolloutRequest,
    )
    from lightning_core.types import (
        Event as Event,
    )
    from lightning_core.types import (
        FilterField as FilterField,
    )
    from lightning_core.types import (
        FilterOptions as FilterOptions,
    )
    from lightning_core.types import (
        Hook as Hook,
    )
    from lightning_core.types import (
        Link as Link,
    )
    from lightning_core.types import (
        NamedResources as NamedResources,
    )
    from lightning_core.types import (
        OtelResource as OtelResource,
    )
    from lightning_core.types import (
        PaginatedResult as PaginatedResult,
    )
    from lightning_core.types import (
        PromptTemplate as PromptTemplate,
    )
    from lightning_core.types import (
        ProxyLLM as ProxyLLM,
    )
    from lightning_core.types import (
        Resource as Resource,
    )
    from lightning_core.types import (
        ResourcesUpdate as ResourcesUpdate,
    )
    from lightning_core.types import (
        ResourceUnion as ResourceUnion,
    )
    from lightning_core.types import (
        Rollout as Rollout,
    )
    from lightning_core.types import (
        RolloutConfig as RolloutConfig,
    )
    from lightning_core.types import (
        RolloutMode as RolloutMode,
    )
    from lightning_core.types import (
        RolloutRawResult as RolloutRawResult,
    )
    from lightning_core.types import (
        RolloutStatus as RolloutStatus,
    )
    from lightning_core.types import (
        SortOptions as SortOptions,
    )
    from lightning_core.types import (
        Span as Span,
    )
    from lightning_core.types import (
        SpanContext as SpanContext,
    )
    from lightning_core.types import (
        SpanCoreFields as SpanCoreFields,
    )
    from lightning_core.types import (
        StatusCode as StatusCode,
    )
    from lightning_core.types import (
        TaskInput as TaskInput,
    )
    from lightning_core.types import (
        TraceState as TraceState,
    )
    from lightning_core.types import (
        TraceStatus as TraceStatus,
    )
    from lightning_core.types import (
        Triplet as Triplet,
    )
    from lightning_core.types import (
        Worker as Worker,
    )
    from lightning_core.types import (
        WorkerStatus as WorkerStatus,
    )

_PLACES = {
    "adapter": (
        "Adapter LlmProxyTraceToTriplet OtelTraceAdapter TraceAdapter TracerTraceToTriplet TraceToMessages "
        "TraceToTripletBase"
    ),
    "agent": "CommandAgent Grader HttpAgent LitAgent llm_rollout prompt_rollout rollout",
    "algorithm": "Algorithm Baseline FastAlgorithm algo",
    "emitter": (
        "SpanLike SpanRecordingContext emit_annotation emit_exception emit_message emit_object emit_reward "
        "find_final_reward find_reward_spans get_message_value get_object_value get_reward_value "
        "get_rewards_from_span is_reward_span operation"
    ),
    "errors": "Fault",
    "execution": "ExecutionEvent ExecutionStrategy MultiprocessingEvent SharedMemoryExecutionStrategy ThreadingEvent",
    "logs": "configure_logger setup_logging setup_module_logging",
    "plugins": "hookimpl",
    "proxy": "LLMProxy ModelConfig",
    "runner": "LitAgentRunner Runner",
    "runs": "FitResult",
    "store": "InMemoryLightningStore LightningStore LightningStoreCapabilities LightningStoreStatistics "
    "LightningStoreThreaded",
    "store.http": "LightningStoreClient LightningStoreServer",
    "tracer": "DummyTracer OtelTracer Tracer clear_active_tracer get_active_tracer set_active_tracer",
    "trainer": "Trainer",
    "types": (
        "LLM Attempt AttemptStatus AttemptedRollout AttributeValue Attributes Dataset EnqueueRolloutRequest Event "
        "FilterField FilterOptions Hook Link NamedResources OtelResource PaginatedResult PromptTemplate ProxyLLM "
        "Resource ResourceUnion ResourcesUpdate Rollout RolloutConfig RolloutMode RolloutRawResult RolloutStatus "
        "SortOptions Span SpanContext SpanCoreFields StatusCode TaskInput TraceState TraceStatus Triplet Worker "
        "WorkerStatus"
    ),
}
_HOMES = {name: place for place, names in _PLACES.items() for name in names.split()}

__all__ = sorted(_HOMES)


# A library is quiet until somebody asks: see setup_logging.
logging.getLogger(__name__).addHandler(logging.NullHandler())


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    # A name such as `rollout` would otherwise be looked up anew each time.
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
