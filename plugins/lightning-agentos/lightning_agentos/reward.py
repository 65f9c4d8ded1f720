"""The grader `agentos`: a reward that falls with each violation of a policy."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lightning_agentos.governance import KernelSpec, count_violations, make_kernel
from lightning_core.agent import Grader
from lightning_core.agent.graders import GraderSpec
from lightning_core.emitter import emit_reward, get_rewards_from_span
from lightning_core.errors import ConfigError
from lightning_core.types import AttemptedRollout, NamedResources, Span


class PolicyReward(Grader):
    """Scores an attempt by another grader, less a penalty for each violation.

    Violations are the calls that `AgentOSRunner` recorded as denied, and one more where the kernel denies what the
    agent returned, which it sees as `output`. The reward is `final`; `base` and `policy_penalty` stand beside it, and
    so do further rewards of the other grader.

    Args:
        kernel: Judges what the agent returned; see `AgentOSRunner`. None to count recorded violations only.
        base_reward_fn: Another grader, a function, or the path of one; None for 1, since only what succeeded is graded.
        penalty: What one violation costs.

    Raises:
        ConfigError: When the policies cannot be read, or the penalty is below 0.
    """

    def __init__(
        self,
        kernel: KernelSpec | None = None,
        *,
        base_reward_fn: GraderSpec | None = None,
        penalty: float = 1.0,
    ) -> None:
        if not penalty >= 0:
            raise ConfigError(f"penalty is {penalty}; it is 0 or more, and is taken from the reward")
        super().__init__(_score_one)
        self.kernel = None if kernel is None else make_kernel(kernel)
        self.base = Grader.of(base_reward_fn) or Grader(_score_one)
        self.penalty = penalty

    @property
    def name(self) -> str:
        """What it is called in messages."""
        return f"agentos ({self.base.name})"

    def is_async(self) -> bool:
        """Whether the other grader is a coroutine function."""
        return self.base.is_async()

    def bind(
        self, *, result: Any, spans: Sequence[Span], rollout: AttemptedRollout, resources: NamedResources
    ) -> Callable[[], Any]:
        """Return what scores the attempt when it is called; see `Grader.bind`."""
        score = self.base.bind(result=result, spans=spans, rollout=rollout, resources=resources)
        violations = count_violations(spans)
        if self.kernel is not None and not self.kernel.evaluate({"output": result}).allowed:
            violations += 1

        def grade() -> dict[str, float]:
            return self._reduce(score(), violations)

        async def grade_async() -> dict[str, float]:
            return self._reduce(await score(), violations)

        return grade_async if self.is_async() else grade

    def _reduce(self, score: float | Mapping[str, float], violations: int) -> dict[str, float]:
        first, *others = get_rewards_from_span(emit_reward(score, propagate=False))
        lost = self.penalty * violations
        rewards = {"final": first.value - lost, "base": first.value, "policy_penalty": -lost}
        more = {each.name: each.value for each in others}
        if taken := rewards.keys() & more.keys():
            raise ValueError(f"{self.base.name} gives rewards {sorted(taken)}, which are this grader's; rename them")
        return rewards | more


def _score_one(result: Any) -> float:
    return 1.0
