"""A kernel that decides what tools may do, and what happens when it denies a call."""

import functools
import inspect
import json
import sys
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ParamSpec, Protocol, TypeAlias, TypeVar
from warnings import catch_warnings, simplefilter

from lightning_core.emitter import emit_annotation
from lightning_core.errors import AgentError, ConfigError
from lightning_core.types import Span

VIOLATION = "agent_os.violation"
POLICY = "agent_os.policy"
RULE = "agent_os.rule"
TOOL = "agent_os.tool"
REASON = "agent_os.reason"
ARGUMENTS = "agent_os.arguments"

P = ParamSpec("P")
T = TypeVar("T")


class Decision(Protocol):
    """What a kernel says, as `agent_os.policies.PolicyDecision` does."""

    allowed: bool
    matched_rule: str | None
    reason: str
    audit_entry: dict[str, Any]


class Kernel(Protocol):
    """What decides, as `agent_os.policies.PolicyEvaluator` does."""

    def evaluate(self, context: dict[str, Any], /) -> Decision:
        """Decide on an action: a mapping with `tool_name` and the tool's arguments by name, or with `output`."""
        ...


KernelSpec: TypeAlias = Kernel | str | Path
"""A kernel, or the path of a policy document (YAML) or of a folder with some."""


def make_kernel(kernel: KernelSpec) -> Kernel:
    """Return a kernel as it is, or one that has the policies of a file or folder.

    A relative path is looked up here, and then where modules are, such as in the folder of a config file.

    Raises:
        ConfigError: When there are none, or they cannot be read.
    """
    if not isinstance(kernel, str | Path):
        return kernel
    with catch_warnings():  # its own use of pydantic is deprecated there
        simplefilter("ignore", DeprecationWarning)
        from agent_os.policies import PolicyDocument, PolicyEvaluator

    path = next((found for place in ("", *sys.path) if (found := Path(place, kernel)).exists()), Path(kernel))
    files = sorted([*path.glob("*.yaml"), *path.glob("*.yml")]) if path.is_dir() else [path]
    if not files:
        raise ConfigError(f"kernel {str(path)!r} is a folder without policies; put a .yaml file into it")
    try:
        evaluator: Kernel = PolicyEvaluator([PolicyDocument.from_yaml(file) for file in files])
    except (OSError, ValueError, TypeError) as exc:
        raise ConfigError(f"kernel {str(path)!r} cannot be read as a policy of Agent OS: {exc}") from exc
    return evaluator


class PolicyViolationError(AgentError):
    """A policy denied what an agent wanted to do; `tool`, `rule` and `reason` say what and why."""

    def __init__(self, tool: str, rule: str | None, reason: str) -> None:
        super().__init__(f"tool {tool} was denied by rule {rule!r}: {reason}")
        self.tool = tool
        self.rule = rule
        self.reason = reason


@dataclass
class Governance:
    """The kernel over one attempt, and what it denied there."""

    kernel: Kernel
    emit_violations: bool
    violations: list[PolicyViolationError] = field(default_factory=list)

    def check(self, tool: str, arguments: Mapping[str, Any]) -> None:
        """Ask the kernel.

        Raises:
            PolicyViolationError: When it denies the call.
        """
        decision = self.kernel.evaluate({**arguments, "tool_name": tool})
        if decision.allowed:
            return
        violation = PolicyViolationError(tool, decision.matched_rule, decision.reason)
        self.violations.append(violation)
        if self.emit_violations:
            emit_annotation(
                {
                    VIOLATION: True,
                    POLICY: decision.audit_entry.get("policy") or "",
                    RULE: decision.matched_rule or "",
                    REASON: decision.reason,
                    TOOL: tool,
                    ARGUMENTS: json.dumps(arguments, default=repr),
                }
            )
        raise violation


current: ContextVar[Governance | None] = ContextVar("lightning_agentos_governance", default=None)
"""That of the attempt that runs in this context."""


def governed(tool: Callable[P, T]) -> Callable[P, T]:
    """Let the kernel of `AgentOSRunner` decide on every call of a tool, sync or async, before it is made.

    The kernel sees the function's name as `tool_name`, and the arguments by their names. A denied call raises
    `PolicyViolationError`; the tool does not run. Outside of such a runner the tool is as it was.
    """
    signature = inspect.signature(tool)

    def check(*args: Any, **kwargs: Any) -> None:
        governance = current.get()
        if governance is not None:
            given = signature.bind(*args, **kwargs)
            given.apply_defaults()
            governance.check(tool.__name__, given.arguments)

    if inspect.iscoroutinefunction(tool):

        @functools.wraps(tool)
        async def call_async(*args: P.args, **kwargs: P.kwargs) -> Any:
            check(*args, **kwargs)
            return await tool(*args, **kwargs)

        return call_async  # type: ignore[return-value]  # a coroutine function, as the tool

    @functools.wraps(tool)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        check(*args, **kwargs)
        return tool(*args, **kwargs)

    return call


def count_violations(spans: Iterable[Span]) -> int:
    """Count what a kernel denied in an attempt, as its spans have it."""
    return sum(bool(span.attributes.get(VIOLATION)) for span in spans)
