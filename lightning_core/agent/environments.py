"""Environments: tasks by name, with the scorer that belongs to them, and an agent that does them."""

import hashlib
import inspect
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, SupportsFloat, get_args

from lightning_core.agent.base import LitAgent
from lightning_core.agent.graders import Grader
from lightning_core.concurrency import in_daemon_thread
from lightning_core.errors import ConfigError, Fault
from lightning_core.registry import SHIPS_IN, default_registry
from lightning_core.texts import shortened
from lightning_core.types import NamedResources, Rollout, sample_key

logger = logging.getLogger(__name__)

Split = Literal["train", "val", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)

Reward = float | Mapping[str, float]

_PARTS: tuple[Split, ...] = ("train", "train", "train", "val", "test")


def split_of(question: Any) -> Split:
    """Return which split a question belongs to: three in five are for training, one each for validation and test.

    It depends on the question alone. So a question never moves to another split, whatever else is made or imported.
    """
    digest = hashlib.sha256(sample_key(question).encode()).digest()
    return _PARTS[int.from_bytes(digest[:8], "big") % len(_PARTS)]


class Environment(ABC):
    """Makes tasks and scores answers to them.

    A subclass implements `tasks`, and `score` unless its agent returns the reward itself. Tasks have to be JSON: they
    are kept in the run's folder, and scored after they were read from there.
    """

    reward_range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    """The lowest and the highest reward that there should be."""
    prompt: ClassVar[str | None] = None
    """The template that the agent's prompt starts from; None where the agent has no prompt."""

    @classmethod
    def names(cls) -> list[str]:
        """Return the names of the tasks that `task=` takes; empty where it has no such option."""
        return []

    @abstractmethod
    def tasks(self, count: int) -> Iterable[Any]:
        """Yield up to `count` tasks, the same ones in the same order each time. Repeats are dropped by the caller."""

    def question(self, task: Any) -> Any:
        """Return what the agent is asked: tasks with the same question are the same."""
        return task

    def agent(self) -> LitAgent[Any]:
        """Return an agent that does these tasks. It returns its answer, or the reward where there is no `score`.

        Raises:
            ConfigError: When this environment has none.
        """
        raise ConfigError(f"environment {type(self).__name__} has no agent of its own; name one under 'agent'")

    def set_up(self) -> None:  # noqa: B027  # most need nothing
        """Make what scoring needs. Called once before the first answer is scored; an error in it is a fault."""

    def score(self, task: Any, answer: Any) -> Reward | Awaitable[Reward]:
        """Return the reward of an answer; may be a coroutine function.

        Args:
            task: One of `tasks`, after it was written and read as JSON.
            answer: What the agent returned.

        Raises:
            Fault: When something that it needs is out of reach; so is any `OSError`.
            Exception: When it cannot read the answer, which is worth 0 then.
        """
        raise NotImplementedError

    def reference(self, task: Any) -> str | None:
        """Return an answer that gets the highest reward; None where there is none."""
        return None

    @property
    def has_scorer(self) -> bool:
        """Whether it scores answers. If not, its agent returns rewards."""
        return type(self).score is not Environment.score


_SET_UP = threading.Lock()


def set_up(environment: Environment) -> None:
    """Make what scoring needs.

    Raises:
        Fault: When that fails.
    """
    try:
        environment.set_up()
    except Exception as exc:
        name = type(environment).__name__
        raise Fault(f"the scorer of {name} cannot be set up: {type(exc).__name__}: {exc}") from exc


class Scoring:
    """Scores answers with the scorer of an environment, as the function of a `Grader`.

    A scorer that raises on an answer gives 0. An error in its set-up, and an `OSError`, is a `Fault`. The first such
    answer is logged, and the first reward outside of `reward_range`.

    Args:
        environment: The environment.
    """

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._is_ready = False
        self._warned: set[str] = set()

    def __call__(self, task: Any, result: Any) -> Reward | Awaitable[Reward]:
        """Score an answer. It may take long, so call it in a thread of its own."""
        with _SET_UP:
            if not self._is_ready:
                set_up(self._environment)
                self._is_ready = True
        try:
            reward = self._environment.score(task, result)
        except Exception as exc:
            return self._of_failed(exc, result)
        return self._awaited(reward, result) if inspect.isawaitable(reward) else self._checked(reward)

    @property
    def _name(self) -> str:
        return type(self._environment).__name__

    async def _awaited(self, reward: Awaitable[Reward], result: Any) -> Reward:
        try:
            return self._checked(await reward)
        except Exception as exc:
            return self._of_failed(exc, result)

    def _of_failed(self, error: Exception, result: Any) -> float:
        if isinstance(error, Fault):
            raise error
        if isinstance(error, OSError):
            raise Fault(f"the scorer of {self._name} cannot reach what it needs: {error}") from error
        message = (
            f"it raised {type(error).__name__}: {error}, on the answer {shortened(result, 80)}; that is a reward of 0"
        )
        self._tell("lightning.scorer_raised", message)
        return 0.0

    def _checked(self, reward: Reward) -> Reward:
        low, high = self._environment.reward_range
        for value in reward.values() if isinstance(reward, Mapping) else (reward,):
            if isinstance(value, SupportsFloat) and not low <= value <= high:  # any other is refused as a reward
                self._tell("lightning.reward_out_of_range", f"{value:g} is not from {low:g} to {high:g}")
        return reward

    def _tell(self, event: str, message: str) -> None:
        if event not in self._warned:
            self._warned.add(event)
            logger.warning("%s environment=%s: %s (said once)", event, self._name, message)


class _SelfScoring(LitAgent[Any]):
    def __init__(self, agent: LitAgent[Any], scoring: Scoring) -> None:
        super().__init__()
        self._agent, self._scoring = agent, scoring

    async def rollout_async(self, task: Any, resources: NamedResources, rollout: Rollout) -> Any:
        if self._agent.is_async():
            answer = await self._agent.rollout_async(task, resources, rollout)
        else:
            answer = await in_daemon_thread(lambda: self._agent.rollout(task, resources, rollout), name="agent")
        reward = await in_daemon_thread(lambda: self._scoring(task, answer), name="scorer")
        return await reward if inspect.isawaitable(reward) else reward


class TaskRows(list[Any]):
    """Tasks of an environment, which a run keeps in its folder."""


class EnvironmentTasks(NamedTuple):
    """What `environment` gives: all that `Trainer.fit` takes."""

    agent: LitAgent[Any]
    """Does a task and returns its reward."""
    train: TaskRows
    val: TaskRows
    test: TaskRows


def environment(
    name: str | Environment, *, train: int = 100, val: int = 50, test: int = 50, **options: Any
) -> EnvironmentTasks:
    """Make tasks by name, with an agent that does them and returns the reward.

    Args:
        name: As `"reasoning_gym:basic_arithmetic"`: an environment, and its option `task`; the path of a class, as
            `"my_module:MyEnvironment"`; or an environment.
        train: How many tasks to learn from.
        val: How many to choose by.
        test: How many are held out. No task is in two of them.
        options: Options of the environment.

    Raises:
        RegistryError: When there is no such environment, or it does not take the options.
        ConfigError: When it has fewer tasks.
    """
    made = name if isinstance(name, Environment) else make_environment(name, options)
    rows = take(made, {"train": train, "val": val, "test": test})
    agent = made.agent()
    return EnvironmentTasks(_SelfScoring(agent, Scoring(made)) if made.has_scorer else agent, **rows)


def make_environment(name: str, options: Mapping[str, Any]) -> Environment:
    """Make an environment; see `environment`.

    Raises:
        RegistryError: When there is no such environment, or it does not take the options.
        ValueError: When it refuses the value of an option.
    """
    registry = default_registry()
    known = {component.name for component in registry.components("environments")} | set(SHIPS_IN["environments"])
    first, _, task = name.partition(":")
    given = {"name": name, **options}
    if task and first in known:
        given = {"name": first, "task": task, **options}
    return registry.build("environments", given, expected=Environment)


def take(environment: Environment, sizes: Mapping[Split, int]) -> dict[Split, TaskRows]:
    """Return so many tasks for each split, none of them twice.

    Raises:
        ConfigError: When the environment has too few.
    """
    rows: dict[Split, TaskRows] = {split: TaskRows() for split in sizes}
    if not any(sizes.values()):
        return rows
    seen: set[str] = set()
    limit = 20 * max(sizes.values(), default=0) + 200
    for task in environment.tasks(limit):
        key = sample_key(question := environment.question(task))
        split = split_of(question)
        if key not in seen and len(rows.get(split, ())) < sizes.get(split, 0):
            rows[split].append(task)
        seen.add(key)
        if all(len(rows[split]) >= size for split, size in sizes.items()):
            return rows
    for split, size in sizes.items():
        if len(rows[split]) < size:
            raise ConfigError(
                f"size is {size}, but {type(environment).__name__} has only {len(rows[split])} tasks for {split} among "
                f"{len(seen):,} different ones; ask for fewer"
            )
    return rows


def grader_of(environment: Environment) -> Grader | None:
    """Return a grader that scores with an environment's scorer; None where its agent returns rewards."""
    return Grader(Scoring(environment)) if environment.has_scorer else None


def kept_rows(folder: Path, key: str) -> Path:
    """Return where a run's folder has the tasks of a dataset, such as `train_dataset`."""
    return folder / f"{key}.jsonl"
