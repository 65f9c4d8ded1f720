"""The runners' side of a run: in this process, or sent to others."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from lightning_core.agent import Grader, LitAgent
from lightning_core.execution.pickling import packed, unpacked
from lightning_core.model_proxy import ModelProxy
from lightning_core.plugins import Hooks
from lightning_core.registry import Registry, default_registry
from lightning_core.rewards import sound_final_reward
from lightning_core.runner import LitAgentRunner, Runner
from lightning_core.runner.base import StopEvent
from lightning_core.runner.outcome import has_succeeded_by
from lightning_core.runs.result import FAILED_HOOKS, failed_hooks
from lightning_core.store import LightningStore
from lightning_core.tracer import Tracer
from lightning_core.types import Attempt, AttemptedRollout
from lightning_core.types.hook import Hook

_HOOKS_OF_RUNNERS = (
    "lightning_rollout_start",
    "lightning_trace_start",
    "lightning_trace_end",
    "lightning_rollout_end",
)


@dataclass(frozen=True)
class RunnerFactory:
    """Makes runners."""

    spec: object
    """The runner, in a form that the registry takes; None for a `LitAgentRunner`."""
    tracer: Tracer
    """What records what the agent does."""
    max_rollouts: int | None
    """How many rollouts each runner runs; None for no limit."""
    reward: Grader | None
    """Scores what the agent returned; None where agents score themselves."""
    registry: Registry
    """Where names are looked up."""

    def __call__(self) -> Runner:
        """Make one runner.

        Raises:
            RegistryError: When it cannot be made.
        """
        if self.spec is None:
            return LitAgentRunner(self.tracer, self.max_rollouts, reward=self.reward)
        options = {"tracer": self.tracer, "max_rollouts": self.max_rollouts, "reward": self.reward}
        given = {name: option for name, option in options.items() if option is not None}
        return self.registry.build("runners", self.spec, expected=Runner, defaults=given)


@dataclass(eq=False, repr=False)
class RunnersSide:
    """Runs runners; see `RunnerBundle`.

    It can be pickled. In another process, the agent has no trainer, names are looked up in what is installed there, and
    the hooks are those of plugins that have hooks of runners, and of installed ones.
    """

    agent: LitAgent[Any]
    """What runs."""
    make_runner: RunnerFactory
    plugins: Sequence[object]
    """The trainer's plugins with hooks, as they were given."""
    hooks: Hooks
    """What tells those plugins, and others of the run, in this process."""
    trainer: object | None = None
    """What the agent is attached to; None in another process than the trainer's."""
    proxy: ModelProxy | None = None
    """The model proxy, which makes the keys of attempts in this process; None for none."""

    async def __call__(self, store: LightningStore, worker_id: int, event: StopEvent | None = None) -> None:
        """Run one runner until it is cancelled, is told to stop, or has reached its own limit."""
        runner = self.make_runner()
        if self.trainer is not None:
            self.agent.set_trainer(self.trainer)
        if isinstance(runner, LitAgentRunner):
            if self.proxy is not None:
                runner.mint_key = self.proxy.attempt_key
            if self.trainer is None:  # it does not see what fails here
                runner.statistics = self.statistics
        with runner.run_context(agent=self.agent, store=store, hooks=self.hooks, worker_id=worker_id):
            await (runner.iter() if event is None else runner.iter(event=event))

    @property
    def key(self) -> str | None:
        """What the keys of attempts are made of, where the model proxy wants such keys."""
        return None if self.proxy is None else self.proxy.key

    @property
    def observer(self) -> "_Onlookers | None":
        """Tells plugins that stay here of rollouts that run elsewhere; None where there are none."""
        staying = self.hooks.only(_stays)
        return _Onlookers(staying, self.agent) if any(map(staying.has, _HOOKS_OF_RUNNERS)) else None

    def statistics(self) -> dict[str, Any]:
        """Return what plugins have failed at in this process, for the heartbeats of its workers."""
        failed = [asdict(each) for each in failed_hooks([], self.hooks.failures)]
        return {FAILED_HOOKS: failed} if failed else {}

    def __reduce__(self) -> Any:
        factory = self.make_runner
        sent = (
            packed(f"agent {_name_of(self.agent)}", self.agent),
            packed("the runner", factory.spec),
            packed(f"tracer {type(factory.tracer).__name__}", factory.tracer),
            packed("grader " + ("" if factory.reward is None else factory.reward.name), factory.reward),
        )
        plugins = [
            packed(f"plugin {_name_of(plugin)}", plugin)
            for plugin in self.plugins
            if _has_hooks_of_runners(plugin) and not _stays(plugin)
        ]
        return _arrived, (sent, plugins, factory.max_rollouts)


class _Onlookers:
    """Tells plugins that stay with the algorithm of rollouts that run in other processes."""

    def __init__(self, hooks: Hooks, agent: LitAgent[Any]) -> None:
        self._hooks = hooks
        self._agent = agent

    async def began(self, rollout: AttemptedRollout) -> None:
        if self._hooks.has("lightning_rollout_start"):
            await self._tell("lightning_rollout_start", rollout=rollout, attempt=rollout.attempt)

    async def ended(self, store: LightningStore, attempt: Attempt) -> None:
        if not self._hooks.has("lightning_rollout_end"):
            return
        rollout = await store.get_rollout_by_id(attempt.rollout_id)
        if rollout is None:
            return
        spans = list(await store.query_spans(attempt.rollout_id, attempt.attempt_id))
        reward = sound_final_reward(spans) if has_succeeded_by(rollout, attempt) else None
        await self._tell("lightning_rollout_end", rollout=rollout, attempt=attempt, reward=reward, spans=spans)

    async def _tell(self, hook: str, **arguments: Any) -> None:
        await self._hooks.emit(hook, agent=self._agent, runner=None, **arguments)


def _arrived(sent: Sequence[bytes], plugins: Sequence[bytes], max_rollouts: int | None) -> RunnersSide:
    agent, spec, tracer, reward = map(unpacked, sent)
    factory = RunnerFactory(spec, tracer, max_rollouts, reward, default_registry())
    own = [unpacked(plugin) for plugin in plugins]
    hooks = Hooks(own, load_entry_points=True).only(lambda plugin: not _stays(plugin))
    return RunnersSide(agent, factory, own, hooks)


def _name_of(value: object) -> str:
    return str(getattr(value, "__qualname__", type(value).__qualname__))


def _has_hooks_of_runners(plugin: object) -> bool:
    is_listener = isinstance(plugin, Hook) or (isinstance(plugin, type) and issubclass(plugin, Hook))
    return is_listener or any(hasattr(plugin, name) for name in _HOOKS_OF_RUNNERS)


def _stays(plugin: object) -> bool:
    return bool(getattr(plugin, "stays_with_algorithm", False))
