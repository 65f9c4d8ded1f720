"""The conformance suite of environments."""

import asyncio
import inspect
import json
from collections.abc import Mapping
from typing import Any, ClassVar

from lightning_core.agent import Environment, LitAgent
from lightning_core.agent.environments import SPLITS, Split, split_of, take
from lightning_core.errors import ConfigError
from lightning_core.types import sample_key


class EnvironmentSuite:
    """Proves that an environment makes the same tasks each time, keeps the splits apart, and pays for right answers.

    Subclass it in a test file, and say how to make the environment:

        from lightning_core.testing import EnvironmentSuite
        from my_package import MyEnvironment


        class TestMyEnvironment(EnvironmentSuite):
            def make_environment(self):
                return MyEnvironment()  # new each time

    One that has no scorer has to have an agent.
    """

    size: ClassVar[int] = 5
    """How many tasks of each split are made."""
    junk: ClassVar[str] = "foo"
    """An answer that is wrong for every task."""

    def make_environment(self) -> Environment:
        """Return a new environment, each time with the same options."""
        raise NotImplementedError("override make_environment: return a new environment")

    def rows(self, environment: Environment) -> dict[Split, list[Any]]:
        """Return tasks as a run gets them back from its folder: through JSON."""
        made = take(environment, dict.fromkeys(SPLITS, self.size))
        return {split: json.loads(json.dumps(rows)) for split, rows in made.items()}

    def test_the_same_options_make_the_same_tasks(self) -> None:
        assert self.rows(self.make_environment()) == self.rows(self.make_environment())

    def test_no_question_is_in_two_splits_or_twice_in_one(self) -> None:
        environment = self.make_environment()
        keys = [sample_key(environment.question(row)) for rows in self.rows(environment).values() for row in rows]
        assert len(set(keys)) == len(keys) == len(SPLITS) * self.size

    def test_a_task_that_was_kept_belongs_to_the_same_split(self) -> None:
        environment = self.make_environment()
        for split, rows in self.rows(environment).items():
            assert {split_of(environment.question(row)) for row in rows} == {split}

    def test_a_larger_set_begins_with_the_smaller_one(self) -> None:
        small = take(self.make_environment(), {"train": 2})["train"]
        large = take(self.make_environment(), {"train": self.size, "test": 1})["train"]
        assert [sample_key(row) for row in large[:2]] == [sample_key(row) for row in small]

    def test_the_reference_gets_the_highest_reward_and_junk_does_not(self) -> None:
        environment = self.make_environment()
        low, high = environment.reward_range
        for row in self.rows(environment)["train"] if environment.has_scorer else ():
            reference = environment.reference(row)
            if reference is not None:
                assert self.score(environment, row, reference) == high
            assert low <= self.score(environment, row, self.junk) < high

    def test_the_same_answer_gets_the_same_reward(self) -> None:
        environment = self.make_environment()
        for row in self.rows(environment)["train"] if environment.has_scorer else ():
            answer = environment.reference(row) or self.junk
            assert self.score(environment, row, answer) == self.score(environment, row, answer)

    def test_it_has_an_agent_or_a_scorer(self) -> None:
        environment = self.make_environment()
        try:
            assert isinstance(environment.agent(), LitAgent)
        except ConfigError:
            assert environment.has_scorer

    def score(self, environment: Environment, row: Any, answer: Any) -> float:
        """Return the primary reward of an answer; an exception on junk is a reward of 0."""
        environment.set_up()
        try:
            reward: Any = environment.score(row, answer)
            if inspect.isawaitable(reward):
                reward = asyncio.run(_result(reward))
        except Exception:
            if answer != self.junk:
                raise
            return 0.0
        return float(next(iter(reward.values())) if isinstance(reward, Mapping) else reward)


async def _result(reward: Any) -> Any:
    return await reward
