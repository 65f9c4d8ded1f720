"""Runs that tests look into."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from live_stores import trained
from opentelemetry import trace

from lightning_core import PromptTemplate, emit_message, rollout
from lightning_core.algorithm import Algorithm, run_batch
from lightning_core.runs.folder import RunFolder
from lightning_core.types import Dataset, NamedResources

HOSTILE = "</script><img src=x onerror=\"document.title='owned'\">&amp;"
KEY = "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789"


class Improves(Algorithm):
    """Tries prompts on the same samples, and reports a step for each; each is better than those before, but the first.

    Without prompts it tries one, then a better one, then the first again.
    """

    def __init__(self, templates: Sequence[str] = ("first\n{task}", "first\nthink\n{task}", "first\n{task}")) -> None:
        super().__init__()
        self.templates = templates

    async def run(self, train_dataset: Dataset[Any] | None = None, val_dataset: Dataset[Any] | None = None) -> None:
        store = self.get_store()
        best: NamedResources | None = None
        parent_id: str | None = None
        assert val_dataset is not None
        for step, template in enumerate(self.templates):
            resources: NamedResources = {"main_prompt": PromptTemplate(template=template)}
            parent_id = resources_id = (await store.add_resources(resources, parent_id=parent_id)).resources_id
            if step > 0 and template != self.templates[0]:
                best = resources
            batch = await run_batch(store, list(val_dataset), mode="val", resources_id=resources_id)
            self.report({"val_reward": batch.mean_reward}, step=step, best_resources=best)


@rollout
async def agent(task: Any, prompt_template: PromptTemplate) -> float:
    emit_message(f"asked {task['question']} with {KEY}")
    if task["question"] == "fails":
        raise ValueError("cannot add 17 apples")
    return 1.0 if "think" in prompt_template.template or task["question"] == "easy" else 0.0


TASKS = [{"question": "easy"}, {"question": "hard"}, {"question": HOSTILE}, {"question": "fails"}]

PROMPTS = (
    "Answer the customer's question.\n\n{question}",
    "Answer the customer's question.\nSay which order you mean.\n\n{question}",
    "Answer the customer's question in one sentence.\nSay which order you mean.\n\n{question}",
)
QUESTIONS = [
    f"{asks} {things}?"
    for asks in ("Where is", "When do I get", "May I return", "Why was I charged twice for")
    for things in (
        "my red shoes",
        "order 1042",
        "the lamp that I bought on Monday",
        "both of the books",
        "the gift card",
    )
]


@rollout
async def shop(task: dict[str, Any], prompt_template: PromptTemplate) -> float:
    """Answers a question with a tool call between two model calls; it knows more with a better prompt."""
    tracer = trace.get_tracer("shop")
    place, better = QUESTIONS.index(task["question"]), PROMPTS.index(prompt_template.template)
    asked = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "small-model",
        "gen_ai.prompt.0.role": "user",
        "gen_ai.prompt.0.content": prompt_template.template.format(**task),
        "gen_ai.usage.input_tokens": 61,
        "gen_ai.usage.output_tokens": 18,
    }
    called = {
        "gen_ai.completion.0.role": "assistant",
        "gen_ai.completion.0.tool_calls.0.name": "find_order",
        "gen_ai.completion.0.tool_calls.0.arguments": json.dumps({"customer": 7 + place}),
    }
    ids = [number * number % 32_000 for number in range(700)]
    first = {"prompt_token_ids": ids[:300], "response_token_ids": ids[300:320], "response_logprobs": [-0.4] * 20}
    second = {
        "prompt_token_ids": ids[:400],
        "response_token_ids": ids[400:],
        "response_logprobs": [-0.1, -2.5, -0.7] * 100,
    }
    with tracer.start_as_current_span("answer a customer"):
        with tracer.start_as_current_span("chat small-model", attributes={**asked, **called, **first}):
            pass
        with tracer.start_as_current_span("find_order", attributes={"customer": 7 + place, "rows": 1}):
            if place % 9 == 8 and better == 0:
                raise LookupError(f"there is no order of customer {7 + place}")
        told = {
            "gen_ai.prompt.1.role": "assistant",
            "gen_ai.prompt.1.content": "find_order",
            "gen_ai.prompt.2.role": "tool",
            "gen_ai.prompt.2.content": json.dumps({"order": 1042, "state": "sent", "days": place % 5}),
            "gen_ai.completion.0.role": "assistant",
            "gen_ai.completion.0.content": f"Order 1042 was sent, and comes within {place % 5 + 1} days.",
        }
        with tracer.start_as_current_span("chat small-model", attributes={**asked, **told, **second}):
            pass
    return 1.0 if (place * 7) % 20 < 7 + 5 * better else 0.0


async def make_run(root: Path) -> RunFolder:
    """Make a run that has something for each page; it has ended."""
    first: NamedResources = {"main_prompt": PromptTemplate(template=PROMPTS[0])}
    questions = [{"question": each} for each in QUESTIONS]
    return await trained(shop, root, val=questions, algorithm=Improves(PROMPTS), n_runners=4, initial_resources=first)
