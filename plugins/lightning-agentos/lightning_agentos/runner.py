"""The runner `agentos`: an agent's tools under the policies of a kernel."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from opentelemetry.context import attach, detach, set_value

from lightning_agentos.governance import GOVERNANCE, Governance, Kernel, KernelSpec, make_kernel, tools, working
from lightning_core.agent import Grader, LitAgent
from lightning_core.errors import ConfigError
from lightning_core.runner import LitAgentRunner
from lightning_core.tracer import Tracer
from lightning_core.types import NamedResources, Rollout, RolloutMode


class AgentOSRunner(LitAgentRunner[Any]):
    """Runs an agent whose tools, marked with `@governed`, a kernel may deny.

    A denied call does not happen: it raises `PolicyViolationError` in the agent, which may go on without it. Tools that
    the agent runs in a process of its own are not governed; an agent that is a program or a service is refused, and
    attempts in a process without any governed tool fail.

    Args:
        kernel: Decides: a `PolicyEvaluator` of `agent_os.policies`, anything with its `evaluate`, or the path of a
            policy document or of a folder with some.
        fail_on_violation: Whether an attempt with a denied call fails, also where its agent went on.
        tracer: See `LitAgentRunner`, as for the others.
        max_rollouts: How many rollouts `iter` runs; None for no limit.
        reward: A grader, such as `PolicyReward`.
        heartbeat_interval: The most seconds between two signs of life while it works.

    Raises:
        ConfigError: When the policies cannot be read.
    """

    def __init__(
        self,
        kernel: KernelSpec,
        *,
        fail_on_violation: bool = False,
        tracer: Tracer,
        max_rollouts: int | None = None,
        reward: Grader | Callable[..., Any] | str | None = None,
        heartbeat_interval: float = 10.0,
    ) -> None:
        super().__init__(tracer, max_rollouts, heartbeat_interval=heartbeat_interval, reward=reward)
        self.kernel = make_kernel(kernel)
        self.fail_on_violation = fail_on_violation

    def init(self, agent: LitAgent[Any], *, hooks: object = None) -> None:
        if agent.runs_elsewhere:
            raise ConfigError(
                f"runner 'agentos' governs the tools of its own process, and {type(agent).__name__} runs elsewhere; "
                "run it with another runner, or name a Python agent whose tools are marked with @governed"
            )
        governed_agent = _GovernedAgent(agent, self.kernel, self.fail_on_violation)
        super().init(governed_agent, hooks=hooks)
        working.add(self)

    def teardown(self) -> None:
        working.discard(self)
        super().teardown()


class _GovernedAgent(LitAgent[Any]):
    def __init__(self, agent: LitAgent[Any], kernel: Kernel, fail_on_violation: bool) -> None:
        self.__wrapped__ = agent
        self._kernel = kernel
        self._fail_on_violation = fail_on_violation

    def is_async(self) -> bool:
        return self.__wrapped__.is_async()

    def method_for(self, mode: RolloutMode | None) -> Any:
        method = self.__wrapped__.method_for(mode)

        def run(task: Any, resources: NamedResources, rollout: Rollout) -> Any:
            with self._governing():
                return method(task, resources, rollout)

        async def run_async(task: Any, resources: NamedResources, rollout: Rollout) -> Any:
            with self._governing():
                return await method(task, resources, rollout)

        return run_async if self.is_async() else run

    @contextmanager
    def _governing(self) -> Iterator[None]:
        governance = Governance(self._kernel)
        token = attach(set_value(GOVERNANCE, governance))
        try:
            yield
        finally:
            detach(token)
        if not tools:
            raise ConfigError("no tool of this process asks the policies of runner 'agentos'; mark them with @governed")
        if self._fail_on_violation and governance.violations:
            raise governance.violations[0]
