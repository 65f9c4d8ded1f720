"""Runs of the optimiser on the recorded answers, and what they are held against, for `proof.py` and the tests.

The optimiser, the trainer, the store and the runners are the real ones; only the agent asks the recording directly,
without HTTP, so that a run takes about a second.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from general_edits import EDITS
from lightning_apo import APO
from local_endpoint import ChatMessage, ChatRequest, serve
from openai import AsyncOpenAI
from playback import recorded_reply
from prompt_editor import PromptEditor
from question_agent import grade, judge
from reading_critic import ReadingCritic
from recorded_data import Question, Split

from lightning_core import PromptTemplate, Trainer, rollout
from lightning_core.algorithm.estimates import PairedDifference, paired_difference

CONFIG: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("config.yaml").read_text(encoding="utf-8"))
FIRST: str = CONFIG["initial_resources"]["main_prompt"]["template"]

FULL: dict[str, Any] = {
    name: CONFIG["algorithm"][name]
    for name in ("beam_width", "branch_factor", "beam_rounds", "gradient_batch_size", "val_batch_size", "max_rollouts")
}
"""How long a search is in `config.yaml`."""

SMALL: dict[str, Any] = {**FULL, "beam_width": 2, "branch_factor": 2, "beam_rounds": 2, "val_batch_size": 25}
"""Eight edits in all. A long search finds what there is to find in any way; a short one has to know where to look."""

TINY: dict[str, Any] = {**FULL, "beam_width": 1, "branch_factor": 2, "beam_rounds": 2, "val_batch_size": 25}
"""Four edits in all."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one search."""

    prompt: str
    gain: PairedDifference
    """On the held-out questions, against the first prompt."""
    calls: int
    """Rollouts and calls of critic and editor that the search took, without the held-out questions."""


async def optimise(split: Split, *, seed: int, options: dict[str, Any] = FULL, reads: bool = True) -> Outcome:
    """Search with the optimiser.

    Args:
        split: The questions.
        seed: Of the search.
        options: Its size.
        reads: False to have the critic say nothing, see `ReadingCritic`.
    """

    @rollout
    async def agent(task: Question, prompt_template: PromptTemplate) -> float:
        return judge(task, reply_to(prompt_template.template, task["question"]))

    def improve(request: ChatRequest) -> str:
        reply = critic.reply(request)
        assert reply is not None
        return reply

    critic = ReadingCritic(reads=reads)
    async with serve(improve) as url, AsyncOpenAI(base_url=url, api_key="local") as client:
        algorithm = APO(client, gradient_model="critic", apply_edit_model="editor", seed=seed, **options)
        trainer = Trainer(
            algorithm=algorithm,
            n_runners=8,
            initial_resources={"main_prompt": PromptTemplate(template=FIRST)},
        )
        result = await trainer.fit_async(agent, split.train, val_dataset=split.val)
    calls = result.rollouts.succeeded + result.rollouts.failed
    calls += round(result.metrics["critic_calls"] + result.metrics["editor_calls"])
    best = algorithm.get_best_prompt().template
    return Outcome(best, held_out_gain(best, split), calls)


def search_at_random(split: Split, *, seed: int, calls: int, options: dict[str, Any] = FULL) -> Outcome:
    """Search without runs to learn from: draw edits from the same pool, and keep what scores best.

    It has as many calls as it is given. Like the optimiser it first measures the first prompt on the whole validation
    set, tries each new prompt once on a hand of `val_batch_size` questions, and at the end measures the best
    `beam_width` on the whole validation set. A prompt has 1 to `beam_rounds` edits, as many as the optimiser's can
    have; making it costs one call, however many there are. Prompts that it knows already cost nothing.
    """
    lot = random.Random(seed)
    val, width = split.val, options["beam_width"]
    hand = lot.sample(val, min(options["val_batch_size"], len(val)))
    spent = len(val)
    scores = {FIRST: mean_reward(FIRST, hand)}
    final = width * (len(val) - len(hand))
    draws = 0
    while spent + 1 + len(hand) + final <= calls and draws < 10 * calls:
        draws += 1
        prompt = FIRST
        for _ in range(lot.randint(1, options["beam_rounds"])):
            prompt = edited(prompt, seed=lot.getrandbits(31))
        if prompt not in scores:
            spent += 1 + len(hand)
            scores[prompt] = mean_reward(prompt, hand)
    finalists = sorted(scores, key=lambda prompt: -scores[prompt])[:width]
    spent += sum(len(val) - len(hand) for prompt in finalists if prompt != FIRST)
    best = max([FIRST, *finalists], key=lambda prompt: mean_reward(prompt, val))
    return Outcome(best, held_out_gain(best, split), spent)


def shuffled(split: Split, *, seed: int) -> Split:
    """Return the questions with each other's targets, so that no prompt can be better than another one."""
    parts = []
    for number, part in enumerate(split):
        targets = [question["target"] for question in part]
        random.Random(f"{seed} {number}").shuffle(targets)
        parts.append(
            [
                Question(id=question["id"], question=question["question"], target=target)
                for question, target in zip(part, targets, strict=True)
            ]
        )
    return Split(*parts)


def held_out_gain(prompt: str, split: Split) -> PairedDifference:
    """Compare a prompt with the first one on the held-out questions."""
    difference = paired_difference(rewards(FIRST, split.held_out), rewards(prompt, split.held_out))
    assert difference is not None
    return difference


def rewards(prompt: str, questions: Sequence[Question]) -> list[float]:
    """Return the reward of each question with a prompt."""
    return [grade(reply_to(prompt, question["question"]), question["target"])[0] for question in questions]


def mean_reward(prompt: str, questions: Sequence[Question]) -> float:
    """Return the mean of the rewards."""
    return sum(rewards(prompt, questions)) / len(questions)


@cache
def reply_to(prompt: str, question: str) -> str:
    """Return the recorded answer that a prompt gets to a question."""
    return recorded_reply(PromptTemplate(template=prompt).format(question="\n"), question)


def edited(prompt: str, *, seed: int) -> str:
    """Return a prompt with one edit from the whole pool."""
    text = f"<prompt_template>\n{prompt}\n</prompt_template>\n<critique>\n-\n</critique>"
    request = ChatRequest(model="editor", messages=[ChatMessage(role="user", content=text)], seed=seed)
    reply = PromptEditor(EDITS, max_edits=1).reply(request)
    assert reply is not None
    return reply
