"""What an agent outside of this process has to know of one attempt."""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from lightning_http.post import as_json
from lightning_proxy.owner import ATTEMPT_HEADER, ROLLOUT_HEADER
from lightning_proxy.routes import report_url

from lightning_core.agent.functions import main_or_first, resolved
from lightning_core.errors import AgentError, InvalidAgent, InvalidResult
from lightning_core.registry import did_you_mean
from lightning_core.texts import shortened
from lightning_core.types import LLM, AttemptedRollout, NamedResources, PromptTemplate, ProxyLLM, Rollout

NO_KEY = "none"
"""Stands for the key where none is needed: clients of models do not start without one."""


@dataclass(frozen=True, slots=True)
class Briefing:
    """What a program or a service gets to know."""

    task: Any
    mode: str | None
    rollout_id: str
    attempt_id: str
    llm: LLM | None
    """The model, ready to be called for this attempt; None where the rollout has none."""
    prompt_template: PromptTemplate | None
    report_url: str | None
    """Where it may report a reward; None where its model is not behind the proxy."""

    @classmethod
    def of(cls, task: Any, resources: NamedResources, rollout: Rollout) -> Self:
        """Say what there is to know.

        Raises:
            AgentError: When the rollout has no attempt, so that no runner runs it.
        """
        if not isinstance(rollout, AttemptedRollout):
            raise AgentError(f"rollout {rollout.rollout_id} has no attempt; let a runner run the agent")
        attempt_id = rollout.attempt.attempt_id
        given = main_or_first(resources, LLM)
        return cls(
            task=task,
            mode=rollout.mode,
            rollout_id=rollout.rollout_id,
            attempt_id=attempt_id,
            llm=main_or_first(resolved(resources, rollout), LLM),
            prompt_template=main_or_first(resources, PromptTemplate),
            report_url=report_url(given, rollout.rollout_id, attempt_id) if isinstance(given, ProxyLLM) else None,
        )

    @property
    def key(self) -> str:
        """The key for the model and for reports."""
        return (self.llm.api_key if self.llm is not None else None) or NO_KEY

    def headers(self) -> dict[str, str]:
        """Return the headers by which the proxy tells whose call it is, whatever the URL."""
        return {ROLLOUT_HEADER: self.rollout_id, ATTEMPT_HEADER: self.attempt_id}

    def task_json(self) -> bytes:
        """Return the task as JSON, without spaces.

        Raises:
            InvalidTask: When it is not JSON.
        """
        return as_json(self.task)

    def prompt(self) -> str | None:
        """Return the prompt, filled in with the task's fields; None where there is none, or the task lacks a field."""
        if self.prompt_template is None:
            return None
        names = self.prompt_template.placeholders()
        fields = self.task if isinstance(self.task, Mapping) else {}
        if not names <= fields.keys():
            return None
        return self.prompt_template.format(**{name: fields[name] for name in names})


Reward = float | dict[str, float]

WANTED = 'a number or a JSON object of numbers, such as 0.5 or {"right": 1, "short": 0.5}'


def check_reward(reward: str, ways: Sequence[str]) -> None:
    """Check the option that says where a reward is.

    Raises:
        InvalidAgent: When it is none of the ways.
    """
    if reward not in ways:
        raise InvalidAgent(f"reward is {reward!r}; it is one of {', '.join(ways)}{did_you_mean(reward, ways)}")


def reward_of_text(text: str, where: str) -> Reward:
    """Read a reward from a text.

    Args:
        text: A number, or JSON.
        where: Where it stands, for the message.

    Raises:
        InvalidResult: When it is none.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise InvalidResult(f"{where} is not a reward: {shortened(text, 120)}; it is {WANTED}") from exc
    return reward_of_value(value, where)


def reward_of_value(value: Any, where: str) -> Reward:
    """Read a reward from a value of JSON; one under the name `reward` alone is that.

    Raises:
        InvalidResult: When it is none.
    """
    if isinstance(value, Mapping) and value.keys() == {"reward"}:
        value = value["reward"]
    if _is_number(value):
        return float(value)
    if isinstance(value, Mapping) and value and all(map(_is_number, value.values())):
        return {str(name): float(number) for name, number in value.items()}
    raise InvalidResult(f"{where} is not a reward: {shortened(json.dumps(value, default=str), 120)}; it is {WANTED}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and -sys.float_info.max <= value <= sys.float_info.max
