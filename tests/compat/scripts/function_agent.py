"""A function agent that emits its reward, tried out with `Trainer.dev`."""

import asyncio
import json

import lightning_core as agl

TASKS = [{"question": "2 + 2", "answer": 4}, {"question": "3 * 5", "answer": 15}, {"question": "9 - 9", "answer": 1}]


def calculate(expression: str) -> int:
    left, operator, right = expression.split()
    a, b = int(left), int(right)
    return {"+": a + b, "-": a - b, "*": a * b}[operator]


@agl.rollout
def solve(task: dict, prompt_template: agl.PromptTemplate) -> None:
    prompt = prompt_template.format(question=task["question"])
    agl.emit_message(prompt)
    agl.emit_reward(1.0 if calculate(prompt.removeprefix("Compute ")) == task["answer"] else 0.0)


async def outcome(store: agl.LightningStore) -> dict:
    rewards = {}
    for rollout in await store.query_rollouts():
        spans = await store.query_spans(rollout.rollout_id)
        rewards[rollout.input["question"]] = [rollout.status, agl.find_final_reward(spans)]
    return rewards


def main() -> None:
    store = agl.InMemoryLightningStore(thread_safe=True)
    tracer = agl.OtelTracer()
    trainer = agl.Trainer(
        algorithm=agl.Baseline(polling_interval=0.05, span_verbosity="none"),
        store=store,
        tracer=tracer,
        runner=agl.LitAgentRunner(tracer, poll_interval=0.05),
        strategy={"type": "shm", "main_thread": "algorithm"},
        initial_resources={"main_prompt": agl.PromptTemplate(template="Compute {question}", engine="f-string")},
    )
    trainer.dev(solve, TASKS)
    print(json.dumps(asyncio.run(outcome(store)), sort_keys=True))


if __name__ == "__main__":
    main()
