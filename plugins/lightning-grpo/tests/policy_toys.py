"""Rows that a policy has sampled by itself, and what is learned of them."""

from typing import Any

from lightning_grpo import GRPO
from lightning_grpo.options import TrainingOptions
from lightning_grpo.policy import Policy
from lightning_tokens.batcher import Sampling
from lightning_tokens.learning.groups import LearnedRow
from lightning_tokens.learning.rows import Answer

PROMPTS = [[5, 6, 7], [9], [11, 12, 13, 14, 15, 16], [20, 21]]


def told(**changes: Any) -> TrainingOptions:
    """Return the options of a training."""
    return GRPO("x", **changes).options


def rows_of(policy: Policy, *, seed: int = 1) -> list[LearnedRow]:
    """Sample an answer to each prompt, and make a row of it; the first half is better than expected, the rest worse."""
    policy.begin(seed)
    answers = policy.generate(PROMPTS, Sampling(max_tokens=24, ignore_eos=True))
    return [
        LearnedRow(
            session=number,
            index=0,
            prompt_ids=prompt,
            response_ids=answer.token_ids,
            mask=[1] * len(answer.token_ids),
            logprobs=answer.logprobs,
            scores=[0.0] * len(answer.token_ids),
            answers=(Answer(0, 0, len(answer.token_ids), None, 1.0 if number < 2 else -1.0),),
            num_turns=1,
            versions=None,
        )
        for number, (prompt, answer) in enumerate(zip(PROMPTS, answers, strict=True))
    ]
