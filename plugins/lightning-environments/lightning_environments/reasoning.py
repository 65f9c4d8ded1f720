"""The tasks of reasoning-gym, and their scorers.

https://github.com/open-thought/reasoning-gym
"""

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from lightning_core.agent import Environment, LitAgent
from lightning_core.errors import ConfigError
from lightning_core.registry import did_you_mean
from lightning_environments.agents import library, one_call

_UNSTABLE = frozenset(
    {
        *("isomorphic_strings", "knight_swap", "list_functions", "polynomial_multiplication", "ransom_note"),
        "word_ladder",
    }
)
"""Tasks of 0.1.25 that are others with another `PYTHONHASHSEED`, or draw from the shared generator of `random`. They
are made in a process of their own."""

_NOT_ALONE = frozenset({"composite"})
"""What is made of other tasks, and has none of its own."""

_TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


class ReasoningGym(Environment):
    """One of the tasks of reasoning-gym, such as `basic_arithmetic`.

    A task is `question`, `answer`, and `metadata`, which its scorer reads: a literal of Python. An answer in
    `<answer>` tags counts without what is around them.

    Args:
        task: Its name.
        seed: Of the first question; those of neighbouring seeds are mostly the same.
        config: Options of the task, such as `max_terms`.

    Raises:
        ConfigError: When reasoning-gym is not installed, has no such task, or the task refuses an option.
    """

    prompt = "{question}\n\nReply with the answer alone, between <answer> and </answer>."

    def __init__(self, task: str, *, seed: int = 0, config: dict[str, Any] | None = None) -> None:
        known = self.names()
        if task not in known:
            raise ConfigError(f"task is {task!r}, which reasoning_gym does not have{did_you_mean(task, known)}")
        self._task = task
        self._options = {"seed": seed, **(config or {})}
        self._scorer = self._made(1)

    @classmethod
    def names(cls) -> list[str]:
        """Return the names of all tasks."""
        factory = library("reasoning_gym.factory", extra="reasoning-gym")
        return sorted(factory.DATASETS.keys() - _NOT_ALONE)

    def _made(self, size: int) -> Any:
        gym = library("reasoning_gym", extra="reasoning-gym")
        try:
            return gym.create_dataset(self._task, **self._options, size=size)
        except (AssertionError, TypeError, ValueError) as exc:
            raise ConfigError(f"config is not what task {self._task!r} takes: {exc}") from exc

    def tasks(self, count: int) -> Iterator[dict[str, Any]]:
        """Yield tasks of one seed; the first ones do not depend on `count`."""
        return self._elsewhere(count) if self._task in _UNSTABLE else self.tasks_here(count)

    def tasks_here(self, count: int) -> Iterator[dict[str, Any]]:
        """Yield tasks that are made in this process."""
        made = self._made(count)
        for index in range(count):
            row = made[index]
            yield {"question": row["question"], "answer": row["answer"], "metadata": repr(_plain(row["metadata"]))}

    def _elsewhere(self, count: int) -> Iterator[dict[str, Any]]:
        script = (
            "import json, random, sys; from lightning_environments.reasoning import ReasoningGym; random.seed(0); "
            "task, options, count = json.loads(sys.argv[1]); made = ReasoningGym(task, **options).tasks_here(count); "
            "[print(json.dumps(each), flush=True) for each in made]"
        )
        given = json.dumps([self._task, {"config": self._options}, count])
        environment = {**os.environ, "PYTHONHASHSEED": "0"}
        command = [sys.executable, "-c", script, given]
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
            try:
                for line in process.stdout or ():
                    yield json.loads(line)
                if status := process.wait():
                    raise ConfigError(f"tasks of {self._task!r} cannot be made: the process ended with {status}")
            finally:
                process.kill()  # the caller has enough of them

    def question(self, task: dict[str, Any]) -> str:
        """Return the text of the question."""
        return str(task["question"])

    def agent(self) -> LitAgent[Any]:
        """Return an agent that asks the model once."""
        return one_call

    def score(self, task: dict[str, Any], answer: Any) -> float:
        """Score an answer with the task's own scorer."""
        tagged = _TAGGED.findall(str(answer))
        row = {**task, "metadata": ast.literal_eval(task["metadata"])}
        return float(self._scorer.score_answer(tagged[-1].strip() if tagged else str(answer).strip(), row))

    def reference(self, task: dict[str, Any]) -> str | None:
        """Return the answer that reasoning-gym gives; None for the tasks that it has none for."""
        answer = task["answer"]
        return answer if isinstance(answer, str) else None


def _plain(value: Any) -> Any:
    """Return it with the values of Python for those of NumPy, which are not literals."""
    if isinstance(value, dict):
        return {_plain(name): _plain(each) for name, each in value.items()}
    if type(value) in (list, tuple, set, frozenset):
        return type(value)(map(_plain, value))
    return value.item() if hasattr(value, "item") else value
