"""A span around a function or a block."""

import functools
import inspect
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, TypeVar, cast, overload

from lightning_core.emitter.attributes import describe, flatten_attributes
from lightning_core.emitter.emission import SpanRecordingContext, record_locally, require_active_sink
from lightning_core.semconv import AGL_OPERATION, LightningSpanAttributes
from lightning_core.types import SpanCoreFields

_RECEIVERS = ("self", "cls")


def readable_signature(fn: Callable[..., Any]) -> inspect.Signature | None:
    """Return what parameters a function has; None where they are unknown, as for some functions written in C."""
    try:
        return inspect.signature(fn)
    except (TypeError, ValueError):
        return None


def input_attributes(
    prefix: str, signature: inspect.Signature | None, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """Describe what a function is called with, by the names of its parameters, defaults included.

    Where the signature is not known, or the call does not fit it, the names are `args.0` and on, and `kwargs.NAME`.
    """
    try:
        if signature is None:
            raise TypeError
        bound = signature.bind(*args, **kwargs)
    except TypeError:
        return _positions(f"{prefix}.args", args) | (describe(f"{prefix}.kwargs", kwargs) if kwargs else {})
    bound.apply_defaults()
    attributes: dict[str, Any] = {}
    for position, (name, value) in enumerate(bound.arguments.items()):
        if position == 0 and name in _RECEIVERS:
            continue
        if signature.parameters[name].kind is inspect.Parameter.VAR_POSITIONAL:
            attributes |= _positions(f"{prefix}.{name}", value)
        else:
            attributes |= describe(f"{prefix}.{name}", value)
    return attributes


def _positions(prefix: str, values: tuple[Any, ...]) -> dict[str, Any]:
    attributes: dict[str, Any] = {}
    for position, value in enumerate(values):
        attributes |= describe(f"{prefix}.{position}", value)
    return attributes


FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

_NAME = LightningSpanAttributes.OPERATION_NAME.value
_INPUT = LightningSpanAttributes.OPERATION_INPUT.value
_OUTPUT = LightningSpanAttributes.OPERATION_OUTPUT.value


class OperationContext:
    """Records a span around a `with` block, or around each call of a function that it decorates.

    As a decorator it may be used by many calls at once; as a block it is used by one at a time. The tracer is the
    one that is active when the block is entered or the function called.

    Args:
        name: The span's name.
        attributes: The attributes that the span begins with; nested ones are flattened with dots.
        propagate: False to make the spans without recording them; then no tracer is needed.

    Raises:
        ValueError: When `attributes` holds something that no attribute can be.
    """

    def __init__(self, name: str, attributes: Mapping[str, Any], propagate: bool = True) -> None:
        self.name = name
        self.initial_attributes = flatten_attributes(attributes)
        self.propagate = propagate
        self._block: AbstractContextManager[SpanRecordingContext] | None = None
        self._recording: SpanRecordingContext | None = None

    def __enter__(self) -> "OperationContext":
        """Begin the span.

        Raises:
            NoActiveTracer: Where no tracer is active.
            RuntimeError: When the block is entered already.
        """
        if self._block is not None:
            raise RuntimeError("this operation is open already; call operation() anew for another block")
        block = self._span(self.initial_attributes)
        self._recording = block.__enter__()
        self._block = block
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        """End the span; with an exception, as a failed one."""
        block, self._block = self._block, None
        if block is not None:
            block.__exit__(exc_type, exc_val, exc_tb)

    def set_input(self, *args: Any, **kwargs: Any) -> None:
        """Record what the block works on, as attributes `...input.args.0` and on, and `...input.NAME`.

        Raises:
            RuntimeError: Outside of the block.
        """
        attributes = _positions(f"{_INPUT}.args", args) | (describe(_INPUT, kwargs) if kwargs else {})
        self._open_recording().record_attributes(attributes)

    def set_output(self, output: Any) -> None:
        """Record the result of the block.

        Raises:
            RuntimeError: Outside of the block.
        """
        self._open_recording().record_attributes(describe(_OUTPUT, output))

    def span(self) -> SpanCoreFields:
        """Return the span of the block that was left, without an identity.

        Raises:
            RuntimeError: Before the block was left.
        """
        if self._recording is None or self._block is not None:
            raise RuntimeError("the span is not ready; ask for it after the `with` block")
        return self._recording.get_recorded_span()

    def __call__(self, fn: FunctionT) -> FunctionT:
        """Decorate a function: each call is a span, with the arguments by name as input, and the result as output.

        The function may be sync or async. `self` and `cls` are left out of the input.

        Raises:
            TypeError: When the function is a generator, which does its work after the call.
        """
        if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
            raise TypeError(f"operation cannot decorate the generator {fn!r}; write `with operation():` inside of it")
        signature = readable_signature(fn)
        attributes = {_NAME: getattr(fn, "__name__", type(fn).__name__), **self.initial_attributes}

        def span(args: tuple[Any, ...], kwargs: dict[str, Any]) -> AbstractContextManager[SpanRecordingContext]:
            return self._span({**attributes, **input_attributes(_INPUT, signature, args, kwargs)})

        if inspect.iscoroutinefunction(fn):

            @functools.wraps(fn)
            async def call_async(*args: Any, **kwargs: Any) -> Any:
                with span(args, kwargs) as recording:
                    result = await fn(*args, **kwargs)
                    recording.record_attributes(describe(_OUTPUT, result))
                return result

            return cast("FunctionT", call_async)

        @functools.wraps(fn)
        def call(*args: Any, **kwargs: Any) -> Any:
            with span(args, kwargs) as recording:
                result = fn(*args, **kwargs)
                recording.record_attributes(describe(_OUTPUT, result))
            return result

        return cast("FunctionT", call)

    def _span(self, attributes: Mapping[str, Any]) -> AbstractContextManager[SpanRecordingContext]:
        if not self.propagate:
            return record_locally(self.name, attributes)
        return require_active_sink("operation").operation_context(self.name, attributes)

    def _open_recording(self) -> SpanRecordingContext:
        if self._recording is None or self._block is None:
            raise RuntimeError("the operation is not open; record its input and output inside of its `with` block")
        return self._recording


@overload
def operation(
    fn: FunctionT, *, propagate: bool = True, name: str | None = None, **additional_attributes: Any
) -> FunctionT: ...


@overload
def operation(
    fn: None = None, *, propagate: bool = True, name: str | None = None, **additional_attributes: Any
) -> OperationContext: ...


def operation(
    fn: FunctionT | None = None,
    *,
    propagate: bool = True,
    name: str | None = None,
    **additional_attributes: Any,
) -> FunctionT | OperationContext:
    """Record a span around each call of a function, or around a block.

        @operation
        def search(query): ...

        @operation(kind="tool")
        async def search(query): ...

        with operation(name="search") as op:
            op.set_input(query=query)
            op.set_output(search(query))

    The span is named `agentlightning.operation`, whatever it is around; its `agentlightning.operation.name` is the
    function's name, or `name`. What is emitted inside of it becomes its child. What the function or block raises is
    recorded and goes on.

    Args:
        fn: The function to decorate; nothing else may be given by position.
        propagate: False to make the spans without recording them; then no tracer is needed.
        name: What the operation is called.
        **additional_attributes: More attributes of the span; nested ones are flattened with dots.

    Returns:
        The decorated function; without `fn`, what decorates one or opens a block.

    Raises:
        NoActiveTracer: On entering the block, or calling the function, where no tracer is active.
        TypeError: When `fn` is not a function, or a generator.
        ValueError: When the name is given twice, or an attribute is what no attribute can be.
    """
    if name is not None:
        if _NAME in additional_attributes:
            raise ValueError(f"the operation's name is given twice, as name={name!r} and as {_NAME!r}; leave one out")
        additional_attributes[_NAME] = name
    context = OperationContext(AGL_OPERATION, additional_attributes, propagate)
    if fn is None:
        return context
    if not callable(fn):
        raise TypeError(f"operation decorates a function, got {fn!r}; call the operation by its name with name={fn!r}")
    return context(fn)
