"""What the critic is told of model calls, tool calls and operations."""

import json
from typing import Any

from lightning_apo.experiment import MAX_MESSAGES, Experiment
from lightning_apo.messages import ShownPrompt, critic_request
from toy_models import ToyModels
from toy_run import FIRST, ToyRun, fit

from lightning_core import PromptTemplate, Trainer, emit_reward, operation, rollout
from lightning_core.algorithm import Algorithm, RolloutOutcome, run_batch
from lightning_core.types import Rollout, Span

MESSAGES = [
    {"role": "system", "content": "Answer."},
    {"role": "user", "content": [{"type": "text", "text": "How much is a pen?"}, {"type": "image_url"}]},
]
CALL = {"id": "c1", "type": "function", "function": {"name": "look_up", "arguments": '{"name": "pen"}'}}


def call(number: int, messages: list[dict[str, Any]], answer: dict[str, Any]) -> Span:
    attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.response.id": f"r{number}",
        "gen_ai.input.messages": json.dumps(messages),
        "gen_ai.output.messages": json.dumps([answer]),
    }
    return Span.from_attributes(
        name="chat", attributes=attributes, rollout_id="ro-1", attempt_id="at-1", sequence_id=number
    )


def experiment(*spans: Span) -> Experiment:
    rollout = Rollout(rollout_id="ro-1", input="task", start_time=0.0, status="succeeded")
    return Experiment.from_outcome(RolloutOutcome(rollout, spans, 1.0))


def test_a_conversation_is_told_once_with_its_tool_calls_and_what_tools_answered() -> None:
    asked = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    answered = {"role": "tool", "tool_call_id": "c1", "content": "1.50"}
    first = call(1, MESSAGES, asked)
    second = call(2, [*MESSAGES, asked, answered], {"role": "assistant", "content": "It is 1.50."})
    assert experiment(first, second).turns == [
        "system: Answer.",
        "user: How much is a pen?\n[image_url]",
        'assistant calls the tool look_up with {"name": "pen"}',
        "tool: 1.50",
        "assistant: It is 1.50.",
    ]


def test_another_conversation_is_set_apart() -> None:
    answer = {"role": "assistant", "content": "Yes."}
    turns = experiment(call(1, MESSAGES[:1], answer), call(2, [{"role": "user", "content": "Why?"}], answer)).turns
    assert turns[2] == "--- another conversation ---"
    assert turns[3:] == ["user: Why?", "assistant: Yes."]


def test_a_run_of_many_turns_has_its_middle_left_out() -> None:
    talk = [{"role": "user", "content": f"message {number}"} for number in range(100)]
    turns = experiment(call(1, talk, {"role": "assistant", "content": "end"})).turns
    assert len(turns) == MAX_MESSAGES + 1
    assert turns[MAX_MESSAGES // 2] == "[... 61 left out ...]"
    assert (turns[0], turns[-1]) == ("user: message 0", "assistant: end")


class TryOnce(Algorithm):
    """Runs the agent once."""

    async def run(self, train_dataset: Any = None, val_dataset: Any = None) -> None:
        [self.outcome] = (await run_batch(self.get_store(), ["task"], mode="train")).outcomes


async def test_operations_and_named_rewards_are_told() -> None:
    @operation
    def look_up(name: str) -> str:
        return f"{name} costs 1.50"

    @operation(name="pay")
    def pay(amount: float) -> None:
        raise RuntimeError("no money")

    @rollout
    async def agent(task: str) -> None:
        look_up("pen")
        try:
            pay(1.5)
        except RuntimeError:
            emit_reward({"right": 0.5, "cheap": 1.0})

    algorithm = TryOnce()
    await Trainer(algorithm=algorithm).fit_async(agent)
    told = Experiment.from_outcome(algorithm.outcome)
    assert told.operations == ["look_up(name=pen) gave pen costs 1.50", "pay(amount=1.5) failed: no money"]
    assert told.rewards == {"right": 0.5, "cheap": 1.0}
    text = critic_request().fill_in(
        prompt=ShownPrompt.of("main", PromptTemplate(template=FIRST)), other_prompts=[], experiments=[told]
    )
    for part in ("look_up(name=pen) gave", "Reward: 0.5", "- right: 0.5", "- cheap: 1.0"):
        assert part in text
    assert "left no messages" not in text


async def test_the_critic_is_sent_what_there_is(models: ToyModels) -> None:
    await fit(ToyRun(), models, beam_rounds=1)
    assert "I was asked: Answer the question." in models.texts("critic")[0]
