"""The algorithm that evaluates an agent: each sample some times, with the outcome of each trial."""

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean, quantiles
from typing import Any, Final, Self

from pydantic import BaseModel, ConfigDict, PositiveInt, ValidationError

from lightning_core.adapter.usage import usage_in
from lightning_core.algorithm.base import FastAlgorithm
from lightning_core.algorithm.batch import RolloutOutcome, continued, run_batch, store_resources
from lightning_core.algorithm.estimates import Estimate, estimate
from lightning_core.errors import ConfigError, InvalidInput, NoRewards, RunFolderError, first_fault
from lightning_core.lifecycle import RUN_KILLED, RUN_STOPPED
from lightning_core.runs.manifest import write_atomically
from lightning_core.secrets import hide_keys, hide_keys_in
from lightning_core.store import LightningStore
from lightning_core.texts import cut
from lightning_core.types import LLM, Dataset, RolloutConfig, RolloutMode, sample_key, samples_of

FILE: Final = "evaluation.json"
"""Where an evaluation is kept in the folder of its run."""

_MAX_TASK = 300
"""How many characters of a task are kept, to name it by."""

_NEARLY = 1e-9


class Trial(BaseModel):
    """How one rollout of a sample went."""

    model_config = ConfigDict(frozen=True)

    rollout_id: str
    reward: float | None
    """None where there is none."""
    failure: str | None = None
    """Why there is none, in one line."""
    is_fault: bool = False
    """Whether that is a fault of the infrastructure: then the trial says nothing of the agent."""
    faults: int = 0
    """How many of its attempts ended in a fault; after each but the last it was run again."""
    seconds: float | None = None
    """How long its last attempt took."""
    cost_usd: float | None = None
    """What its model calls cost; None where that is not known."""


class SampleTrials(BaseModel):
    """All trials of one sample."""

    model_config = ConfigDict(frozen=True)

    key: str
    """The same for equal samples."""
    task: str
    """The beginning of the sample, to name it by, without secrets."""
    trials: list[Trial]

    @property
    def reward(self) -> float | None:
        """The mean reward of the trials that gave one; None when none did."""
        rewards = [trial.reward for trial in self.trials if trial.reward is not None]
        return fmean(rewards) if rewards else None


class Evaluation(BaseModel):
    """What an evaluation found, sample by sample, as its file has it."""

    model_config = ConfigDict(frozen=True)

    run_id: str
    samples: list[SampleTrials]

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a file.

        Raises:
            RunFolderError: When there is none, or it is not one.
        """
        try:
            return cls.model_validate_json(path.read_bytes())
        except OSError as exc:
            raise RunFolderError(f"cannot read an evaluation from {path}: {exc.strerror}") from exc
        except ValidationError as exc:
            raise RunFolderError(f"{path} is not an evaluation: {first_fault(exc)}") from exc

    def write(self, path: Path) -> None:
        """Write it down.

        Raises:
            RunFolderError: When that is not possible.
        """
        write_atomically(path, self.model_dump_json(indent=1) + "\n")


class Evaluate(FastAlgorithm):
    """Runs the agent on each sample some times, with the initial resources, and reports how good and how dear that is.

    The samples are the validation samples, or else the training samples. The metrics are `test_reward` (it is named
    after the mode), `pass@k` and `pass^k` for k of 1, 2, 4, ... and `repeat`, `rollout_seconds`, `rollout_seconds_p95`
    and `rollout_cost_usd`; each but the p95 with `_low` and `_high` where there is an interval. The outcome of each
    trial is kept in `evaluation.json` of the run's folder.

    Args:
        repeat: How often each sample is run.
        max_samples: How many samples are run, from the first on; None for all.
        pass_at: The reward from which on a trial passes. A trial in which the agent failed, or that has no reward,
            does not pass. A fault is no trial.
        mode: What the samples are: `train` or `val` where something was chosen by them before.
    """

    def __init__(
        self,
        *,
        repeat: PositiveInt = 1,
        max_samples: PositiveInt | None = None,
        pass_at: float = 1.0,
        mode: RolloutMode = "test",
    ) -> None:
        if not math.isfinite(pass_at):
            raise ValueError(f"pass_at is {pass_at}; it is a reward, a finite number")
        self.repeat = repeat
        self.max_samples = max_samples
        self.pass_at = pass_at
        self.mode: RolloutMode = mode
        self.evaluation: Evaluation | None = None
        """What was found; None before the end."""

    async def run(self, train_dataset: Dataset[Any] | None = None, val_dataset: Dataset[Any] | None = None) -> None:
        """Evaluate the agent.

        Raises:
            InvalidInput: When there is no sample.
            NoRewards: When no trial gave a reward.
        """
        dataset = train_dataset if val_dataset is None else val_dataset
        samples = [] if dataset is None else samples_of(dataset)[: self.max_samples]
        if not samples:
            raise InvalidInput("there is nothing to evaluate on; give samples")
        async with continued(self.get_store(), "evaluate", of=[len(samples), self.repeat]) as key:
            found = await self.try_samples(samples, repeat=self.repeat, key=key)
        self.keep(found)
        require_reward([trial for sample in found for trial in sample.trials], step="the evaluation")
        self.report(summarise(found, repeat=self.repeat, pass_at=self.pass_at, mode=self.mode))

    async def try_samples(self, samples: Sequence[Any], *, repeat: int, key: str, part: int = 0) -> list[SampleTrials]:
        """Run the agent on each sample some times.

        Args:
            samples: The inputs.
            repeat: How often each is run.
            key: Names the work within the run; the same key and part again continue it.
            part: Which part of the work this is.
        """
        resources_id = await store_resources(self.get_store(), self.get_initial_resources(), key=key)
        self.report({}, best_resources=self.get_initial_resources())
        trials = await run_trials(
            self.get_store(),
            samples,
            repeat,
            resources_id=resources_id,
            config=self.get_rollout_config(),
            request_id=f"{key}/{part}",
            mode=self.mode,
        )
        return [
            SampleTrials(key=key_of(sample), task=_named(sample), trials=trials[at * repeat : (at + 1) * repeat])
            for at, sample in enumerate(samples)
        ]

    def keep(self, found: Sequence[SampleTrials]) -> None:
        """Write down what was found, where the run has a folder."""
        self.evaluation = Evaluation(run_id=self.get_store().run_id, samples=list(found))
        recording = self.get_trainer().recording
        if recording is not None:
            self.evaluation.write(recording.folder.path / FILE)


class EvaluateModel(Evaluate):
    """`Evaluate` with a trained model, which vLLM serves while that lasts, in the place of one of the proxy's.

    Args:
        model: A folder, such as `agl export RUN --to model` writes, or a name at Hugging Face.
        replaces: The name in the proxy's model_list whose place it takes; None where there is only one. The others,
            such as a judge's, stay.
        arguments: vLLM's own.
        python: The interpreter of the environment that vLLM is installed in; None for this one.
        repeat: As with `Evaluate`, as what follows.
    """

    def __init__(
        self,
        *,
        model: str,
        replaces: str | None = None,
        arguments: Sequence[str] = (),
        python: str | None = None,
        repeat: PositiveInt = 1,
        max_samples: PositiveInt | None = None,
        pass_at: float = 1.0,
        mode: RolloutMode = "test",
    ) -> None:
        super().__init__(repeat=repeat, max_samples=max_samples, pass_at=pass_at, mode=mode)
        self.model = model
        self.replaces = replaces
        self.arguments = arguments
        self.python = python

    async def run(self, train_dataset: Dataset[Any] | None = None, val_dataset: Dataset[Any] | None = None) -> None:
        """Serve, and evaluate.

        Raises:
            ConfigError: When lightning-tokens is not installed.
            InvalidInput: When it is not clear whose place the model takes, or agents call one past the proxy.
            VLLMFailed: When vLLM does not start.
        """
        try:
            from lightning_proxy import LLMProxy
            from lightning_tokens.vllm import VLLMServer
        except ImportError as exc:
            raise ConfigError(
                "a model is served with lightning-tokens, which is not installed: from a checkout of Lightning Core, "
                "pip install . ./plugins/lightning-{http,proxy,tokens}"
            ) from exc
        proxy = self.get_llm_proxy()
        if not isinstance(proxy, LLMProxy) or not proxy.model_list:
            raise InvalidInput(
                "the model takes the place of one of the proxy, and there is none; give llm_proxy a model_list with "
                "the name that the agent asks for"
            )
        names = proxy.models()
        name = names[0] if self.replaces is None else self.replaces
        if name not in names or (self.replaces is None and len(names) > 1):
            raise InvalidInput(
                f"the model takes the place of one of {', '.join(names)}; say which with --as NAME, or with replaces "
                f"from Python; got {self.replaces!r}"
            )
        past = [name for name, each in (self.get_initial_resources() or {}).items() if type(each) is LLM]
        if past:
            raise InvalidInput(f"initial_resources: the calls of {past[0]!r} do not go through the proxy; leave it out")
        async with VLLMServer(self.model, arguments=self.arguments, python=self.python) as server:
            before = list(proxy.model_list)
            others = [each for each in before if each["model_name"] != name]
            proxy.update_model_list([*others, server.model_config(name)])
            try:
                await super().run(train_dataset, val_dataset)
            finally:
                proxy.update_model_list(before)


def key_of(sample: Any) -> str:
    """Return a short text that is the same for equal samples."""
    return hashlib.sha256(sample_key(sample).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def require_reward(trials: Sequence[Trial], *, step: str) -> None:
    """Stop where there is nothing to tell.

    Raises:
        NoRewards: When no trial gave a reward; says the first cause.
    """
    if all(trial.reward is None for trial in trials):
        cause = trials[0].failure if trials else "there was none"
        raise NoRewards(f"{step}: none of {len(trials)} rollouts gave a reward; the first: {cause}")


def pass_at_k(n: int, passed: int, k: int) -> float:
    """Return the probability that at least one of k trials passes, estimated from n trials without bias.

    1 - C(n - passed, k) / C(n, k): Chen et al. 2021, arXiv:2107.03374, equation 1.
    """
    return 1 - math.comb(n - passed, k) / math.comb(n, k)


def pass_hat_k(n: int, passed: int, k: int) -> float:
    """Return the probability that all of k trials pass, estimated from n trials without bias.

    C(passed, k) / C(n, k): Yao et al. 2024, arXiv:2406.12045, section 3.
    """
    return math.comb(passed, k) / math.comb(n, k)


def summarise(
    samples: Sequence[SampleTrials], *, repeat: int, pass_at: float, mode: RolloutMode = "test"
) -> dict[str, float]:
    """Return the metrics of an evaluation; see `Evaluate`.

    A sample counts once, with the mean of its trials.
    """
    metrics = _with_ends(f"{mode}_reward", estimate(sample.reward for sample in samples))
    for k in _ks(repeat):
        metrics |= _with_ends(f"pass@{k}", estimate(_passes(samples, k, pass_at, pass_at_k)))
    for k in _ks(repeat)[1:]:  # of one trial both are the same
        metrics |= _with_ends(f"pass^{k}", estimate(_passes(samples, k, pass_at, pass_hat_k)))
    seconds = [trial.seconds for sample in samples for trial in sample.trials if trial.seconds is not None]
    metrics |= _with_ends("rollout_seconds", _measure(samples, "seconds"))
    if len(seconds) > 1:
        metrics["rollout_seconds_p95"] = quantiles(seconds, n=20, method="inclusive")[-1]
    return metrics | _with_ends("rollout_cost_usd", _measure(samples, "cost_usd"))


def _measure(samples: Sequence[SampleTrials], what: str) -> Estimate | None:
    known = [[value for trial in sample.trials if (value := getattr(trial, what)) is not None] for sample in samples]
    return estimate((fmean(values) if values else None for values in known), scale=(0.0, math.inf))


def _ks(repeat: int) -> list[int]:
    return sorted({repeat, *(2**power for power in range(repeat.bit_length()))})


def _passes(
    samples: Sequence[SampleTrials], k: int, pass_at: float, estimator: Callable[[int, int, int], float]
) -> list[float | None]:
    values: list[float | None] = []
    for sample in samples:
        trials = [trial for trial in sample.trials if not trial.is_fault]
        passed = sum(trial.reward is not None and trial.reward >= pass_at - _NEARLY for trial in trials)
        values.append(estimator(len(trials), passed, k) if len(trials) >= k else None)
    return values


def _with_ends(name: str, found: Estimate | None) -> dict[str, float]:
    if found is None:
        return {}
    ends = {f"{name}_low": found.low, f"{name}_high": found.high}
    return {name: found.mean} | {end: value for end, value in ends.items() if value is not None}


async def run_trials(
    store: LightningStore,
    samples: Sequence[Any],
    repeat: int = 1,
    *,
    resources_id: str | None,
    config: RolloutConfig | None,
    request_id: str,
    mode: RolloutMode = "test",
) -> list[Trial]:
    """Run the agent on each sample some times, and return how that went, sample by sample.

    The same `request_id` again continues what was begun; see `run_batch`, as for the other arguments.
    """
    inputs = [sample for sample in samples for _ in range(repeat)]
    batch = await run_batch(store, inputs, mode=mode, resources_id=resources_id, config=config, request_id=request_id)
    return [await _trial(store, outcome) for outcome in batch.outcomes]


async def _trial(store: LightningStore, outcome: RolloutOutcome) -> Trial:
    attempt = outcome.attempt
    attempts = [] if attempt is None else [attempt]
    if attempt is not None and attempt.sequence_id > 1:
        attempts = list(await store.query_attempts(outcome.rollout.rollout_id))
    ended = None if attempt is None else attempt.end_time
    return Trial(
        rollout_id=outcome.rollout.rollout_id,
        reward=outcome.reward,
        failure=outcome.failure,
        is_fault=_is_fault(outcome),
        faults=sum(
            (each.metadata or {}).get("fault", RUN_STOPPED) not in (RUN_STOPPED, RUN_KILLED) for each in attempts
        ),
        seconds=None if attempt is None or ended is None else max(0.0, ended - attempt.start_time),
        cost_usd=None if attempt is None else usage_in(attempt.metadata).cost,
    )


def _is_fault(outcome: RolloutOutcome) -> bool:
    """Whether a rollout has no reward, and neither the agent nor its grader is the reason."""
    attempt = outcome.attempt
    if outcome.reward is not None or outcome.rollout.status == "succeeded":
        return False
    return attempt is None or not (attempt.status == "timeout" or "failure" in (attempt.metadata or {}))


def _named(sample: Any) -> str:
    text = sample if isinstance(sample, str) else json.dumps(hide_keys_in(sample), ensure_ascii=False, default=repr)
    return cut(hide_keys(text), _MAX_TASK)  # without keys, as the file is to be committed
