"""The runners' side of a run: in this process, or sent to others."""

from collections.abc import Sequence
from dataclasses import asdict
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
from lightning_core.runs.result import failed_hooks
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


def make_runner(
    spec: object, *, tracer: Tracer, max_rollouts: int | None, reward: Grader | None, registry: Registry
) -> Runner:
    """Make one runner.

    Args:
        spec: The runner, in a form that the registry takes.
        tracer: What records what the agent does.
        max_rollouts: How many rollouts it runs; None for no limit.
        reward: Scores what the agent returned; None where agents score themselves.
        registry: Where names are looked up.

    Raises:
        RegistryError: When it cannot be made.
    """
    options: dict[str, Any] = {"tracer": tracer}
    if max_rollouts is not None:
        options["max_rollouts"] = max_rollouts
    if reward is not None:
        options["reward"] = reward
    return registry.build("runners", spec, expected=Runner, defaults=options)


class RunnersSide:
    """Runs runners; see `RunnerBundle`.

    It can be pickled. In another process, the agent has no trainer, names are looked up in what is installed there, and
    the hooks are those of plugins that have hooks of runners, and of installed ones.

    Args:
        agent: What runs.
        trainer: What the agent is attached to, in this process.
        proxy: The model proxy, which makes the keys of attempts in this process; None for none.
        runner: How to make a runner, in a form that the registry takes.
        tracer: See `make_runner`.
        max_rollouts: See `make_runner`.
        reward: See `make_runner`.
        plugins: The trainer's plugins with hooks, as they were given.
        hooks: What tells those plugins, and others of the run, in this process.
        registry: Where names are looked up.
    """

    def __init__(
        self,
        agent: LitAgent[Any],
        trainer: object,
        *,
        proxy: ModelProxy | None,
        runner: object,
        tracer: Tracer,
        max_rollouts: int | None,
        reward: Grader | None,
        plugins: Sequence[object],
        hooks: Hooks,
        registry: Registry,
    ) -> None:
        self._agent = agent
        self._trainer: object | None = trainer
        self._proxy = proxy
        self._runner = runner
        self._tracer = tracer
        self._max_rollouts = max_rollouts
        self._reward = reward
        self._plugins = plugins
        self._hooks = hooks
        self._registry = registry

    async def __call__(self, store: LightningStore, worker_id: int, event: StopEvent | None = None) -> None:
        """Run one runner until it is cancelled, is told to stop, or has reached its own limit."""
        runner = make_runner(
            self._runner,
            tracer=self._tracer,
            max_rollouts=self._max_rollouts,
            reward=self._reward,
            registry=self._registry,
        )
        if self._trainer is not None:
            self._agent.set_trainer(self._trainer)
        if self._proxy is not None and isinstance(runner, LitAgentRunner):
            runner.mint_key = self._proxy.attempt_key
        with runner.run_context(agent=self._agent, store=store, hooks=self._hooks, worker_id=worker_id):
            await (runner.iter() if event is None else runner.iter(event=event))

    @property
    def key(self) -> str | None:
        """What the keys of attempts are made of, where the model proxy wants such keys."""
        return None if self._proxy is None else self._proxy.key

    @property
    def observer(self) -> "_Onlookers | None":
        """Tells plugins that stay here of rollouts that run elsewhere; None where there are none."""
        staying = self._hooks.only(_stays)
        return _Onlookers(staying, self._agent) if any(map(staying.has, _HOOKS_OF_RUNNERS)) else None

    @property
    def failed_hooks(self) -> list[dict[str, Any]]:
        """What plugins have failed at in this process, for its heartbeats; nothing where the trainer sees it itself."""
        return [] if self._trainer is not None else [asdict(each) for each in failed_hooks([], self._hooks.failures)]

    def __reduce__(self) -> Any:
        parts: dict[str, tuple[str, object]] = {
            "agent": (f"agent {_name_of(self._agent)}", self._agent),
            "runner": ("the runner", self._runner),
            "tracer": (f"tracer {type(self._tracer).__name__}", self._tracer),
            "reward": ("grader " + ("" if self._reward is None else self._reward.name), self._reward),
        }
        plugins = [
            packed(f"plugin {_name_of(plugin)}", plugin)
            for plugin in self._plugins
            if _has_hooks_of_runners(plugin) and not _stays(plugin)
        ]
        sent = {name: packed(what, part) for name, (what, part) in parts.items()}
        return _arrived, (sent, plugins, self._max_rollouts)


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


def _arrived(sent: dict[str, bytes], plugins: Sequence[bytes], max_rollouts: int | None) -> RunnersSide:
    side = RunnersSide.__new__(RunnersSide)
    side._agent = unpacked(sent["agent"])
    side._runner = unpacked(sent["runner"])
    side._tracer = unpacked(sent["tracer"])
    side._reward = unpacked(sent["reward"])
    side._plugins = [unpacked(plugin) for plugin in plugins]
    side._max_rollouts = max_rollouts
    side._trainer = side._proxy = None
    side._registry = default_registry()
    side._hooks = Hooks(side._plugins, load_entry_points=True).only(lambda plugin: not _stays(plugin))
    return side


def _name_of(value: object) -> str:
    return str(getattr(value, "__qualname__", type(value).__qualname__))


def _has_hooks_of_runners(plugin: object) -> bool:
    is_listener = isinstance(plugin, Hook) or (isinstance(plugin, type) and issubclass(plugin, Hook))
    return is_listener or any(hasattr(plugin, name) for name in _HOOKS_OF_RUNNERS)


def _stays(plugin: object) -> bool:
    return bool(getattr(plugin, "stays_with_algorithm", False))
