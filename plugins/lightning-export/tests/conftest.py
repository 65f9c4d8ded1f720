"""A run with rollouts whose calls have the engine's tokens."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from lightning_sqlite import SqliteLightningStore

from lightning_core.adapter.conversation import chat_text
from lightning_core.runs.folder import RunFolder
from lightning_core.runs.manifest import Manifest, Origin, now
from lightning_core.types import Span

TOOLS = '[{"type": "function", "name": "weather", "description": "", "parameters": {"type": "object"}}]'
CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Bern"}'}}
ASKED = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Rain in Bern?"}]
TOLD = [
    *ASKED,
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "content": "wet", "tool_call_id": "c1"},
]

Make = Callable[..., RunFolder]


def attempt_spans(answer: str | None, rewards: dict[str, float]) -> list[Span]:
    """Return what was recorded of two calls, the second of which continues the first, and a reward.

    Without an answer it is the reward alone.
    """
    first = [{"role": "assistant", "content": None, "tool_calls": [CALL]}]
    second = [{"role": "assistant", "content": answer, "reasoning_content": "So it rains."}]
    given: dict[str, Any] = {}
    for index, (name, value) in enumerate(rewards.items()):
        given |= {f"agentlightning.reward.{index}.name": name, f"agentlightning.reward.{index}.value": value}
    calls = [
        call_attributes(ASKED, first, [1, 2], [3, 4], [-0.5, -0.25]),
        call_attributes(TOLD, second, [1, 2, 3, 4, 5], [6], [-1.0]),
    ]
    return [
        Span.from_attributes(attributes=each, name="a span", start_time=10.0 + place, end_time=10.5 + place)
        for place, each in enumerate([*([] if answer is None else calls), given])
        if each
    ]


def call_attributes(
    messages: list[dict[str, Any]],
    answers: list[dict[str, Any]],
    prompt: list[int],
    response: list[int],
    logprobs: list[float],
) -> dict[str, Any]:
    return {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "small",
        "gen_ai.input.messages": chat_text(messages),
        "gen_ai.output.messages": chat_text(answers, ["stop"]),
        "gen_ai.tool.definitions": TOOLS,
        "gen_ai.response.finish_reasons": ["stop"],
        "prompt_token_ids": prompt,
        "response_token_ids": response,
        "response_logprobs": logprobs,
    }


@pytest.fixture
def make_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Return a function that makes a run of these: task, mode, answer, rewards; a rollout without rewards failed.

    The spans `more` are added to the first rollout, and other arguments to the run's config.
    """
    monkeypatch.setenv("AGL_RUNS_DIR", str(tmp_path / "runs"))
    monkeypatch.chdir(tmp_path)

    def make(
        *rollouts: tuple[Any, Any, str | None, dict[str, float]], more: Sequence[Span] = (), **config: Any
    ) -> RunFolder:
        folder = RunFolder.create(tmp_path / "runs", "run-x1")

        async def fill() -> None:
            store = SqliteLightningStore(folder.store_file, run_id=folder.run_id)
            for place, (task, mode, answer, rewards) in enumerate(rollouts):
                begun = await store.start_rollout(task, mode)
                ids = {"rollout_id": begun.rollout_id, "attempt_id": begun.attempt.attempt_id}
                spans = [*attempt_spans(answer, rewards), *(() if place else more)]
                await store.add_many_spans([span.model_copy(update=ids) for span in spans])
                status = "succeeded" if rewards else "failed"
                await store.update_attempt(begun.rollout_id, begun.attempt.attempt_id, status)
            await store.aclose()

        asyncio.run(fill())
        Manifest(
            run_id=folder.run_id,
            algorithm="baseline",
            outcome="succeeded",
            start=now(),
            store="sqlite",
            store_file=folder.store_file.name,
            origin=Origin(config={"agent": "weather:forecast", **config}),
        ).write(folder.manifest_file)
        return folder

    return make
