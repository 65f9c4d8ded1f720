"""One training: verl's loop in a thread of its own, from the start of Ray to its end, and what comes of it."""

import asyncio
import logging
import numbers
import os
import sys
import threading
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning_tokens.prompts import reasoning_marks
from omegaconf import DictConfig, OmegaConf, open_dict

from lightning_core.algorithm import Algorithm
from lightning_core.concurrency import in_daemon_thread
from lightning_core.errors import ConfigError
from lightning_core.types import NamedResources, RolloutMode
from lightning_verl.bridge import Bridge, Enough
from lightning_verl.checkpoints import Schedule
from lightning_verl.config import Settings
from lightning_verl.manager import RolloutManager
from lightning_verl.rules import fault_of_positions, longest_conversation, set_context_of_servers
from lightning_verl.serving import Policy, Serving

logger = logging.getLogger(__name__)

_SEED = 1
"""Where shuffling begins, unless the config says: a run that is taken up again goes through the tasks as before."""

_PLATFORM = "VERL_PLATFORM"
_VARIABLES = {
    "VERL_LOGGING_LEVEL": "WARNING",
    "TQ_LOGGING_LEVEL": "ERROR",
    "RAY_USAGE_STATS_ENABLED": "0",  # no report of Ray's use to its makers
}
"""Read by verl, TransferQueue and Ray when they are imported; set unless somebody has."""


class Training:
    """One training.

    It names the model after each step, has it measured, and reports it. While it is measured, agents call it by what it
    is: the model that the training began with, the folder of the checkpoint that it was saved in, or `NAME:step-N`
    where it was not saved.

    Args:
        algorithm: Takes reports, and says whether the budget is used up.
        settings: The config.
        n_samples: How many there are, by partition.
        checkpoints: Where checkpoints are kept, and continued from where there are some.
        trainer_cls: What goes before verl's trainer; see `make_trainer_class`.
        bridge: To the event loop.
        manager: Runs rollouts; knows what is learned, and whether the training is to end early.
        serving: Serves the policy.
        end_seconds: How long the thread may take to end when it is interrupted; what is left ends with the process.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        settings: Settings,
        *,
        n_samples: Mapping[RolloutMode, int],
        checkpoints: Path,
        trainer_cls: type | str | None,
        bridge: Bridge,
        manager: RolloutManager,
        serving: Serving,
        end_seconds: float = 10.0,
    ) -> None:
        self._algorithm = algorithm
        self.settings = settings
        """The config, as it was given."""
        self._n_samples = n_samples
        self._checkpoints = checkpoints
        self._trainer_cls = trainer_cls
        self.bridge = bridge
        """To the event loop."""
        self.manager = manager
        """Runs rollouts."""
        self.serving = serving
        """Serves the policy."""
        self.schedule = Schedule(settings.checkpoint_seconds)
        """After which steps it is saved, besides those that verl's config names."""
        path = str(settings.verl.actor_rollout_ref.model.path)
        is_local = Path(path).expanduser().is_dir()
        self._start = str(Path(path).expanduser().absolute()) if is_local else path
        self._end_seconds = end_seconds
        self._saved: set[int] = set()
        self._reported: int | None = None
        self._trainer: Any = None
        self._killing = threading.Lock()

    async def run(self) -> None:
        """Train to the end. Cancelling it kills the workers; when the budget is used up, what was learned is kept."""
        self._reported = await self._algorithm.get_store().load_state(self._reported_as)
        thread = in_daemon_thread(self._work, name="verl")
        try:
            await asyncio.shield(thread)
        except asyncio.CancelledError:
            try:
                trainer = self._trainer  # of its thread, which may take it away at any moment
                if self._is_spent() and trainer is not None and trainer.has_more_to_keep:
                    self.manager.ending.ask()
                    self.bridge.tell()
                    await asyncio.shield(thread)
            finally:
                self.bridge.stop()
                await asyncio.to_thread(self._kill_workers)
                await asyncio.wait((thread,), timeout=self._end_seconds)
                if thread.done() and not thread.cancelled():
                    thread.exception()  # seen: it was interrupted
            raise

    def _is_spent(self) -> bool:
        """Whether the budget has ended the run: a call was refused, or the time is over."""
        budget = self._algorithm.get_budget()
        return budget is not None and (budget.refused is not None or budget.is_time_over)

    # In the event loop. Once the training is to end, what measures the model raises `Enough`

    async def begin(self, step: int) -> None:
        """Say what the training begins with, and measure it on the held-out samples.

        Args:
            step: Where it begins: not at 0 when it goes on from a checkpoint, before which that was measured.
        """
        resources = self.serving.measure(self._start)
        await self.serving.resources_id(resources)
        self._algorithm.set_initial_resources(resources)
        if step:
            self._saved.add(step)
        elif self._n_samples["test"]:
            self._algorithm.report({"test_reward_initial": await self._test(resources, 0)})

    async def validate(self, step: int) -> dict[str, float]:
        """Run the validation set with the model after a step, and return what it says."""
        resources = self.serving.measure(self._model(step))
        return await self.manager.ending.unless(self.manager.validate(resources, step=step))

    async def save(self, step: int) -> None:
        """Say that the model after a step is saved."""
        self._saved.add(step)
        self._algorithm.report({}, best_resources=self.serving.measured(self._model(step)))

    async def end(self, step: int) -> None:
        """Measure the model after the last step on the held-out samples, and report it."""
        resources = self.serving.measure(self._model(step))
        self._algorithm.report({}, best_resources=resources)
        if self._n_samples["test"]:
            self._algorithm.report({"test_reward": await self._test(resources, step)})

    async def _test(self, resources: NamedResources, step: int) -> float:
        return await self.manager.ending.unless(self.manager.test(resources, step=step))

    def _model(self, step: int) -> str:
        if step in self._saved:
            return str(self._checkpoints / f"global_step_{step}" / self.settings.weights_folder)
        return f"{self.serving.name}:step-{step}" if step else self._start

    # In its thread

    def report(self, metrics: Mapping[str, Any], step: int) -> None:
        """Report the measurements of a step; of step 0 before the training.

        A step that a killed run takes again, from its checkpoint or from the start, was reported before, and is not
        again.
        """
        if self._reported is not None and step <= self._reported:
            return
        numbers_only = {name: float(value) for name, value in metrics.items() if isinstance(value, numbers.Real)}
        self._algorithm.report(numbers_only, step=step or None)
        self._reported = step
        self.bridge.call(self._algorithm.get_store().save_state(self._reported_as, step))

    @property
    def _reported_as(self) -> str:
        """Under which name the store has the last step that was reported."""
        return f"{self._checkpoints.name}/reported"

    def _work(self) -> None:
        config = OmegaConf.create(self.settings.verl)
        _choose_platform(str(config.trainer.device))
        from lightning_verl.cluster import ray_cluster
        from lightning_verl.tools import check_form
        from lightning_verl.trainer import RAY_ENDS, check_with_verl

        check_form(config.actor_rollout_ref.rollout.multi_turn.format)
        self._complete(config)
        model_config = told_of(config.actor_rollout_ref.model)
        if fault := fault_of_positions(model_config, str(config.actor_rollout_ref.model.path)):
            raise ConfigError(fault)
        set_context_of_servers(config, model_config, row=self._row)
        check_with_verl(config)
        OmegaConf.resolve(config)
        with ray_cluster(config):
            RAY_ENDS.clear()
            try:
                self._train(config)
            finally:
                RAY_ENDS.set()
                self.serving.close()
                self._kill_workers(is_last=True)

    def _train(self, config: DictConfig) -> None:
        from lightning_verl.queue import TransferQueueRows, own_queue
        from lightning_verl.trainer import make_trainer_class

        with own_queue(config.transfer_queue):
            self.manager.write_to(TransferQueueRows())
            trainer_cls = make_trainer_class(config.trainer.v1.trainer_mode, self._trainer_cls)
            try:
                self._trainer = trainer_cls(config, self)
            except (AssertionError, ValueError) as exc:
                raise ConfigError(f"verl refuses its configuration: {exc}") from exc
            self._trainer.init()
            self.bridge.call(self.serving.start(self._policy(config)))
            try:
                self.bridge.call(self.begin(self._trainer.learned_steps))
                self._trainer.fit(self.manager)
                self.bridge.call(self.manager.cancel_rest())
                self.bridge.call(self.end(self._trainer.learned_steps))
            except Enough as exc:
                logger.info("lightning_verl.ended_early learned=%d: %s", self._trainer.learned_steps, exc)
                self.bridge.call(self.manager.cancel_rest())
                self._trainer.keep_learned()

    def _complete(self, config: DictConfig) -> None:
        """Put in what only the run knows."""
        with open_dict(config):
            config.transfer_queue.enable = True
            config.data.train_files = str(self._n_samples["train"])
            config.data.val_files = str(self._n_samples["val"] or 1)  # verl makes a loader, which is not read from then
            config.data.custom_cls = {"path": "pkg://lightning_verl.queue", "name": "TaskNumbers"}
            config.data.dataloader_num_workers = 0  # numbers need no process to read them
            if config.data.seed is None:
                config.data.seed = _SEED
            config.trainer.default_local_dir = str(self._checkpoints)
            if config.critic.enable is None:  # verl decides the same, with a warning
                config.critic.enable = config.algorithm.adv_estimator == "gae"
            if not self._n_samples["val"]:
                config.trainer.val_before_train = False
                config.trainer.test_freq = -1

    def _policy(self, config: DictConfig) -> Policy:
        from lightning_tokens.generator import end_tokens
        from verl.utils.fs import copy_to_local
        from verl.utils.model import get_generation_config

        from lightning_verl.tools import VerlToolParser, warn_of_other_form

        model, rollout = (config.actor_rollout_ref.model, config.actor_rollout_ref.rollout)
        train = {"temperature": rollout.temperature, "top_p": rollout.top_p, "top_k": rollout.top_k}
        val = {name: rollout.val_kwargs[name] for name in train}
        if not rollout.val_kwargs.do_sample:
            val = {"temperature": 0, "top_p": 1.0, "top_k": -1}
        tools = VerlToolParser(rollout.multi_turn.format, self._trainer.tokenizer)
        warn_of_other_form(rollout.multi_turn.format, self._trainer.tokenizer)
        generation = get_generation_config(copy_to_local(str(model.path)), trust_remote_code=model.trust_remote_code)
        return Policy(
            name=Path(str(model.path)).name,
            client=self._trainer.get_llm_client(),
            tokenizer=self._trainer.tokenizer,
            ends=end_tokens(self._trainer.tokenizer, generation),
            sampling={"train": train, "val": val},
            chat_template=OmegaConf.to_container(config.data.apply_chat_template_kwargs),
            max_response_tokens=rollout.response_length,
            max_context_tokens=longest_conversation(config, told_of(model), row=self._row),
            tool_parser=tools,
            reasoning=reasoning_marks(self._trainer.tokenizer),
            stop_token_ids=tools.stop_token_ids,
        )

    @property
    def _row(self) -> int:
        return self.manager.options.max_prompt_length + self.manager.options.max_response_length

    # In any thread

    def _kill_workers(self, *, is_last: bool = False) -> None:
        """Kill the workers: they have no waiters, and a Ray that goes on keeps none of them."""
        with self._killing:
            if self._trainer is None:
                return
            import ray

            if ray.is_initialized():
                for worker in self._trainer.workers():
                    ray.kill(worker)
            if is_last:
                self._trainer = None  # Ray ends next, and who killed a worker then would start it again


def told_of(model: DictConfig) -> Mapping[str, Any]:
    """Return a model's own configuration, as transformers reads it; nothing where verl fetches it later.

    Args:
        model: `actor_rollout_ref.model`.

    Raises:
        ConfigError: When there is none.
    """
    if "://" in str(model.path):
        return {}
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(model.path, trust_remote_code=model.trust_remote_code)
    except (OSError, ValueError, TypeError) as exc:
        raise ConfigError(
            f"actor_rollout_ref.model.path is {model.path!r}, which is neither a model's folder nor its name on the "
            f"Hugging Face hub: {exc}"
        ) from exc
    fields: Mapping[str, Any] = config.to_dict()
    return fields


def _choose_platform(device: str) -> None:
    """Choose verl's platform for this process and those that it starts.

    verl looks at the variable when it is first imported, and never again.

    Raises:
        ConfigError: When verl was imported already, for another platform.
    """
    for name, value in _VARIABLES.items():
        os.environ.setdefault(name, value)
    if device == "cpu":
        os.environ[_PLATFORM] = "cpu"
    already = "verl" in sys.modules
    warnings.filterwarnings("ignore", module=r"(verl|torchdata)\b")  # of engines that are not installed
    from verl.utils.device import get_device_name

    if (platform := get_device_name()) != device:
        why = "verl was imported before with another platform; " if already else ""
        raise ConfigError(
            f"verl runs on {platform!r} here, not on {device!r} ({why}trainer.device, agentlightning.device or the "
            f"variable {_PLATFORM} says what it runs on)"
        )
