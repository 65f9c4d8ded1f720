"""Record model calls of a program that knows nothing of it: the proxy stands between it and the model."""

import asyncio
import sys
from pathlib import Path

from openai import AsyncOpenAI

from lightning_core import InMemoryLightningStore, LLMProxy, TracerTraceToTriplet

sys.path.append(str(Path(__file__).resolve().parents[1]))  # what the examples share

from local_endpoint import serve


async def main() -> None:
    """Call a model through the proxy, for one attempt, and show what is known of the call."""
    store = InMemoryLightningStore()
    async with serve(lambda request: "five") as url:  # played; any OpenAI-compatible endpoint will do
        model = {
            "model_name": "small",
            "litellm_params": {"model": "hosted_vllm/played", "api_base": url, "api_key": "any"},
        }
        proxy = LLMProxy(store=store, model_list=[model], port=0)
        await proxy.start()
        try:
            attempt = await store.start_rollout({"question": "2+3"})
            llm = proxy.as_resource(attempt.rollout_id, attempt.attempt.attempt_id)
            async with AsyncOpenAI(base_url=llm.endpoint, api_key=llm.api_key or "none") as client:
                said = await client.chat.completions.create(
                    model=llm.model, messages=[{"role": "user", "content": "What is 2+3?"}]
                )
            print(said.choices[0].message.content)
        finally:
            await proxy.stop()
    [triplet] = TracerTraceToTriplet()(await store.query_spans(attempt.rollout_id))
    print(len(triplet.prompt["token_ids"]), "tokens in,", len(triplet.response["token_ids"]), "out")


asyncio.run(main())
