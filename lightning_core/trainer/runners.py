"""The runners' side of a run: in this process, or sent to others."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lightning_core.agent import Grader, LitAgent
from lightning_core.model_proxy import ModelProxy
from lightning_core.plugins import Hooks
from lightning_core.registry import default_registry
from lightning_core.runner import LitAgentRunner, Runner
from lightning_core.runner.base import StopEvent
from lightning_core.store import LightningStore
from lightning_core.tracer import Tracer


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

    def __call__(self) -> Runner:
        """Make one runner.

        Raises:
            RegistryError: When it cannot be made.
        """
        if self.spec is None:
            return LitAgentRunner(self.tracer, self.max_rollouts, reward=self.reward)
        options = {"tracer": self.tracer, "max_rollouts": self.max_rollouts, "reward": self.reward}
        given = {name: option for name, option in options.items() if option is not None}
        return default_registry().build("runners", self.spec, expected=Runner, defaults=given)


@dataclass(eq=False, repr=False)
class RunnersSide:
    """Runs runners; see `RunnerBundle`.

    `lightning_http.sending` makes one in another process. There the agent has no trainer, names are looked up in what
    is installed, and the hooks are those of plugins that have hooks of runners, and of installed ones.
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
        if isinstance(runner, LitAgentRunner) and self.proxy is not None:
            runner.mint_key = self.proxy.attempt_key
        with runner.run_context(agent=self.agent, store=store, hooks=self.hooks, worker_id=worker_id):
            await (runner.iter() if event is None else runner.iter(event=event))

    @property
    def key(self) -> str | None:
        """What the keys of attempts are made of, where the model proxy wants such keys."""
        return None if self.proxy is None else self.proxy.key
