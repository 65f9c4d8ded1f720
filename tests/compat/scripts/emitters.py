"""All that an agent can say about a rollout, and how it is read back."""

import asyncio
import json

import lightning_core as agl


class Talker(agl.LitAgent):
    def rollout(self, task: str, resources: agl.NamedResources, rollout: agl.Rollout) -> None:
        @agl.operation
        def search(query: str) -> list:
            agl.emit_message(f"searching {query}")
            return [query.upper()]

        hits = search(task)
        agl.emit_object({"hits": hits})
        agl.emit_annotation({"stage": "ranking"})
        try:
            raise KeyError("no index")
        except KeyError as error:
            agl.emit_exception(error)
        agl.emit_reward({"quality": 0.75, "speed": 0.5}, primary_key="quality")


async def main() -> None:
    store = agl.InMemoryLightningStore()
    runner = agl.LitAgentRunner(agl.OtelTracer())
    with runner.run_context(agent=Talker(), store=store):
        prompt = agl.PromptTemplate(template="Search {query}", engine="f-string")
        rollout = await runner.step("tea", resources={"main_prompt": prompt})
    spans = await store.query_spans(rollout.rollout_id)
    by_name: dict = {}
    for span in spans:
        by_name.setdefault(span.name, []).append(span)
    (called,) = by_name["agentlightning.operation"]
    (message,) = by_name["agentlightning.message"]
    (failure,) = by_name["agentlightning.exception"]
    outcome = {
        "names": sorted(by_name),
        "message": agl.get_message_value(message),
        "is below": message.parent_id == called.span_id,
        "operation": called.attributes["agentlightning.operation.name"],
        "object": [agl.get_object_value(span) for span in by_name["agentlightning.object"]],
        "exception": [failure.attributes["exception.type"], failure.attributes["exception.message"]],
        "rewards": [
            [[reward.name, reward.value] for reward in agl.get_rewards_from_span(span)]
            for span in agl.find_reward_spans(spans)
        ],
        "final": agl.find_final_reward(spans),
    }
    print(json.dumps(outcome, sort_keys=True))


if __name__ == "__main__":
    asyncio.run(main())
