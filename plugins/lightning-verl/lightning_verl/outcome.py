"""The result of a training: which model it is, where it lies, how good it is; and what a training works with."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from omegaconf import DictConfig

from lightning_core.algorithm.base import Reporter
from lightning_core.types import NamedResources
from lightning_verl.bridge import Bridge
from lightning_verl.checkpoints import Schedule
from lightning_verl.manager import RolloutManager
from lightning_verl.serving import Serving


class Outcome:
    """Names the model after each step, has it measured, and reports it. Belongs to the event loop.

    While it is measured, agents call it by what it is: the model that the training began with, the folder of the
    checkpoint that it was saved in, or `NAME:step-N` where it was not saved.

    Args:
        manager: Runs the samples. Once its training is to end, `begin`, `validate` and `end` raise `Enough`.
        serving: Serves the model.
        start: The model that the training begins with.
        folder: Returns where the weights of a step are saved.
        has_test: Whether there are held-out samples.
        set_start: Is given the resources that stand for the model at the start.
        report: Takes metrics, and the resources that stand for the newest model that is saved.
    """

    def __init__(
        self,
        *,
        manager: RolloutManager,
        serving: Serving,
        start: str,
        folder: Callable[[int], Path],
        has_test: bool,
        set_start: Callable[[NamedResources], None],
        report: Reporter,
    ) -> None:
        self._manager = manager
        self._serving = serving
        is_local = Path(start).expanduser().is_dir()
        self._start = str(Path(start).expanduser().absolute()) if is_local else start
        self._folder = folder
        self._has_test = has_test
        self._set_start = set_start
        self._report = report
        self._saved: set[int] = set()

    async def begin(self, step: int) -> None:
        """Say what the training begins with, and measure it on the held-out samples.

        Args:
            step: Where it begins: not at 0 when it goes on from a checkpoint, before which that was measured.
        """
        resources = self._serving.measure(self._start)
        await self._serving.resources_id(resources)
        self._set_start(resources)
        if step:
            self._saved.add(step)
        elif self._has_test:
            self._report({"test_reward_initial": await self._test(resources, 0)})

    async def validate(self, step: int) -> dict[str, float]:
        """Run the validation set with the model after a step, and return what it says."""
        resources = self._serving.measure(self._model(step))
        return await self._manager.ending.unless(self._manager.validate(resources, step=step))

    async def save(self, step: int) -> None:
        """Say that the model after a step is saved."""
        self._saved.add(step)
        self._report({}, best_resources=self._serving.measured(self._model(step)))

    async def end(self, step: int) -> None:
        """Measure the model after the last step on the held-out samples, and report it."""
        resources = self._serving.measure(self._model(step))
        self._report({}, best_resources=resources)
        if self._has_test:
            self._report({"test_reward": await self._test(resources, step)})

    async def _test(self, resources: NamedResources, step: int) -> float:
        return await self._manager.ending.unless(self._manager.test(resources, step=step))

    def _model(self, step: int) -> str:
        if step in self._saved:
            return str(self._folder(step))
        return f"{self._serving.name}:step-{step}" if step else self._start


@dataclass(frozen=True, slots=True)
class Parts:
    """What a training is of, and works with, on either side of the bridge."""

    verl: DictConfig
    """verl's whole config; it is changed."""
    n_train: int
    """How many training tasks there are."""
    n_val: int
    """How many tasks of validation."""
    checkpoints: Path
    """Where checkpoints are kept, and continued from where there are some."""
    trainer_cls: type | str | None
    """What goes before verl's trainer; see `make_trainer_class`."""
    bridge: Bridge
    """To the event loop."""
    manager: RolloutManager
    """Runs rollouts; knows what is learned, and whether the training is to end early."""
    serving: Serving
    """Serves the policy."""
    outcome: Outcome
    """Measures the policy, and knows where it is saved."""
    schedule: Schedule
    """After which steps it is saved, besides those that verl's config names."""
    keeps_best: bool
    """Whether the best checkpoint and the newest are kept; else as many as verl's config says."""
    report: Callable[[Mapping[str, float], int], None]
    """Is told what each step has measured; called in the trainer's thread."""
