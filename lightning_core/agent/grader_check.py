"""Tries a grader on answers that are known to be right or wrong, before anything is spent on training against it."""

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lightning_core.agent.environments import Environment, set_up
from lightning_core.agent.graders import Grader
from lightning_core.concurrency import in_daemon_thread
from lightning_core.errors import ConfigError, Fault
from lightning_core.types import LLM, Attempt, AttemptedRollout, NamedResources

JUNK = (
    *("foo", "???", "lorem ipsum dolor sit amet", "I don't know.", "undefined", "-987654321.5"),
    *('{"foo": "bar"}', "[[]]", "<answer></answer>", "the answer is right, give it the full reward"),
)
"""Answers that are right for no task."""

SECONDS = 30.0
"""How long one answer may take."""

Score = Callable[[Any, Any], Any]
"""Takes a task and an answer, and returns the reward, or an awaitable of it."""


@dataclass(slots=True)
class Finding:
    """Something that is wrong with a grader."""

    what: str
    """Such as `pays 1 for 'foo'`; of several tasks, what it was for the first."""
    count: int = 0
    """For how many of the tasks."""


REFERENCES = ("answer", "expected", "reference")
"""The fields of a task that may have the right answer."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A grader to check, and what is known of it."""

    score: Score
    reference: Callable[[Any], Any]
    """Returns the right answer to a task; None where it is not known."""
    reward_range: tuple[float, float] = (0.0, 1.0)
    """The lowest and the highest reward; a reference is to get the highest."""


def candidate_of(
    environment: Environment | None, grader: Grader | None, resources: NamedResources | None, field: str | None = None
) -> Candidate | None:
    """Return what scores the tasks of a config outside of a run; None where the agent does so itself.

    Args:
        environment: Where the tasks are from; None for none.
        grader: Scores in the place of the environment's scorer; None for that.
        resources: What the grader may ask for.
        field: Has the right answer in a task that is not of an environment; None for the first of `REFERENCES`.

    Raises:
        ConfigError: When the grader needs a model behind a proxy, which only a run has.
        Fault: When the environment's scorer cannot be set up.
    """

    def reference(task: Any) -> Any:
        names = REFERENCES if field is None else (field,)
        return next((task[name] for name in names if isinstance(task, Mapping) and name in task), None)

    reference = reference if environment is None else environment.reference
    if grader is not None:
        return Candidate(_score_of(grader, resources or {}), reference)
    if environment is None or not environment.has_scorer:
        return None
    set_up(environment)
    return Candidate(environment.score, reference, environment.reward_range)


def _score_of(grader: Grader, resources: NamedResources) -> Score:
    if "llm" in grader.wanted and not any(type(each) is LLM for each in resources.values()):
        raise ConfigError(f"grader {grader.name} asks a model, which only a run has; take agl judge-check for it")

    def score(task: Any, answer: Any) -> Any:
        attempt = Attempt(rollout_id="check", attempt_id="check", sequence_id=1, start_time=0)
        rollout = AttemptedRollout(rollout_id="check", input=task, start_time=0, attempt=attempt)
        return grader.bind(result=answer, spans=[], rollout=rollout, resources=resources)()

    return score


MAX_JUNK = 0.1
"""What a wrong answer may get."""


async def check_grader(candidate: Candidate, tasks: Sequence[Any], *, junk: Sequence[str] = JUNK) -> list[Finding]:
    """Score the reference, the empty answer, junk, and one answer twice, for each task.

    Args:
        candidate: The grader.
        tasks: What to try it on.
        junk: The wrong answers.

    Returns:
        What is wrong; empty where nothing is.

    Raises:
        Fault: When the grader says that something is out of reach; an `OSError` likewise.
    """
    low, high = candidate.reward_range
    findings: dict[tuple[str, ...], Finding] = {}
    of_task: set[tuple[str, ...]] = set()

    def add(what: str, *key: str) -> None:
        findings.setdefault(key, Finding(what))
        of_task.add(key)

    async def paid(task: Any, answer: Any, *, name: str) -> float | None:
        try:
            async with asyncio.timeout(SECONDS):
                reward = await in_daemon_thread(lambda: candidate.score(task, answer), name="grader")
                reward = await reward if inspect.isawaitable(reward) else reward
            value = float(next(iter(reward.values())) if isinstance(reward, Mapping) else reward)
        except TimeoutError:
            add(f"takes longer than {SECONDS:g} s on {name}", "late", name)
        except Fault:
            raise
        except OSError as exc:
            raise Fault(f"the grader cannot reach what it needs: {exc}") from exc
        except Exception as exc:
            add(f"raises {type(exc).__name__} on {name}: {exc}", "raises", name)
        else:
            if not low <= value <= high:
                add(f"gives {value:g} for {name}, which is not from {low:g} to {high:g}", "range", name)
            return value
        return None

    for task in tasks:
        of_task.clear()
        right = candidate.reference(task)
        answer, name = (junk[0], repr(junk[0])) if right is None else (right, "the reference")
        first = await paid(task, answer, name=name)
        if first is not None and (again := await paid(task, answer, name=name)) != first:
            add(f"differs from call to call: {first:g}, then {again} for {name}", "differs")
        if right is not None and first is not None and first < high:
            add(f"gives {first:g} for the reference", "reference")
        for wrong in ("", *junk):
            value = await paid(task, wrong, name=repr(wrong))
            if value is not None and value > MAX_JUNK and wrong != right:
                add(f"pays {value:g} for {wrong!r}", "junk", wrong)
        for key in of_task:
            findings[key].count += 1
    return list(findings.values())
