"""A kernel that decides what tools may do, and what happens when it denies a call."""

import functools
import inspect
import json
import logging
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ParamSpec, Protocol, TypeAlias, TypeVar, cast
from warnings import catch_warnings, simplefilter

from opentelemetry.context import create_key, get_value

from lightning_core.emitter import emit_annotation
from lightning_core.errors import AgentError, ConfigError
from lightning_core.types import Span

logger = logging.getLogger(__name__)

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

    A relative path is looked up in the working folder and where the user's modules are, such as in the folder of a
    config file.

    Raises:
        ConfigError: When there are none, they cannot be read, or a relative path means several.
    """
    if not isinstance(kernel, str | Path):
        if not hasattr(kernel, "evaluate"):
            raise ConfigError(f"kernel is {kernel!r}; it is the path of a policy, or has a method evaluate(context)")
        return kernel
    with catch_warnings():  # its own use of pydantic is deprecated there
        simplefilter("ignore", DeprecationWarning)
        from agent_os.policies import PolicyDocument, PolicyEvaluator

    path = _find(kernel)
    logger.info("lightning.policy_kernel path=%s", path)
    files = sorted([*path.glob("*.yaml"), *path.glob("*.yml")]) if path.is_dir() else [path]
    if not files:
        raise ConfigError(f"kernel {str(path)!r} is a folder without policies; put a .yaml file into it")
    try:
        evaluator: Kernel = PolicyEvaluator([PolicyDocument.from_yaml(file) for file in files])
    except (OSError, ValueError, TypeError) as exc:
        raise ConfigError(f"kernel {str(path)!r} cannot be read as a policy of Agent OS: {exc}") from exc
    return evaluator


def _find(kernel: str | Path) -> Path:
    if not str(kernel):
        raise ConfigError("kernel is empty; it is the path of a policy document or of a folder with some")
    places = [place for place in ("", *sys.path) if {"site-packages", "dist-packages"}.isdisjoint(Path(place).parts)]
    paths = dict.fromkeys(path.resolve() for place in places if (path := Path(place, kernel)).exists())
    if len(paths) > 1:  # a guess could be the wrong policy
        raise ConfigError(f"kernel {str(kernel)!r} may be any of {', '.join(map(str, paths))}; give the whole path")
    return next(iter(paths), Path(kernel))


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


GOVERNANCE = create_key("lightning-agentos-governance")
"""That of the attempt, in OpenTelemetry's context: tracers carry it into threads and executors, as they do spans."""

working: set[object] = set()
"""The runners of this process that govern attempts."""

tools: set[str] = set()
"""The names of the tools of this process that ask."""


def governed(tool: Callable[P, T]) -> Callable[P, T]:
    """Let the kernel of `AgentOSRunner` decide on every call of a tool, sync or async, before it is made.

    The kernel sees the function's name as `tool_name`, and the arguments by their names, also those that `**kwargs`
    takes. A denied call raises `PolicyViolationError`; the tool does not run. In a process without such a runner the
    tool is as it was. In one that has some, a call that belongs to no attempt, as in a thread that does not know its
    caller's context, is refused with a `ConfigError`: there is nobody who could allow it.

    Raises:
        ConfigError: When the tool takes `*args`, which have no names that a rule could be about.
    """
    signature = inspect.signature(tool)
    name = getattr(tool, "__name__", type(tool).__name__)
    parameters = signature.parameters.values()
    if any(each.kind is each.VAR_POSITIONAL for each in parameters):
        raise ConfigError(f"tool {name} takes *args, which no rule can name; give its parameters names")
    tools.add(name)
    others = next((each.name for each in parameters if each.kind is each.VAR_KEYWORD), None)

    def check(*args: Any, **kwargs: Any) -> None:
        governance = cast("Governance | None", get_value(GOVERNANCE))
        if governance is None:
            if working:
                raise ConfigError(
                    f"tool {name} was called under runner 'agentos', but outside of any attempt: in a grader, or in a "
                    "thread that does not know the attempt; start it with contextvars.copy_context().run"
                )
            return
        given = signature.bind(*args, **kwargs)
        given.apply_defaults()
        arguments = dict(given.arguments)
        more = arguments.pop(others) if others is not None else {}
        if twice := more.keys() & arguments.keys():
            raise ConfigError(f"tool {name} was given {sorted(twice)} twice, by position and by name")
        governance.check(name, arguments | more)

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
