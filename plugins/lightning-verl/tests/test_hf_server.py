"""The generating server over HTTP."""

import asyncio
import warnings
from pathlib import Path

import aiohttp
from lightning_tokens.batcher import Batcher
from lightning_tokens.generator import Generator
from lightning_tokens.testing import make_tiny_model

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of verl
    from lightning_verl.hf.server import HttpFront


async def test_over_http_it_answers_with_the_fields_of_vllm(tmp_path: Path) -> None:
    generator = Generator.load(str(make_tiny_model(tmp_path)))
    batcher = Batcher(generator)
    running = asyncio.create_task(batcher.run())
    front = HttpFront(batcher, generator.tokenizer)
    url = f"http://{await front.start('127.0.0.1')}/v1"
    messages = [{"role": "user", "content": "hello"}]
    try:
        async with aiohttp.ClientSession() as http:
            asked = {"messages": messages, "max_tokens": 3, "logprobs": True, "return_token_ids": True}
            async with http.post(f"{url}/chat/completions", json=asked) as response:
                answer = await response.json()
            async with http.post(f"{url}/chat/completions", json={**asked, "top_p": 7}) as response:
                assert response.status == 400
                assert "top_p" in (await response.json())["error"]["message"]
    finally:
        await front.stop()
        running.cancel()
    text = generator.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert answer["prompt_token_ids"] == generator.tokenizer.encode(text, add_special_tokens=False)
    (choice,) = answer["choices"]
    assert len(choice["token_ids"]) == len(choice["logprobs"]["content"]) <= 3
    assert choice["message"]["content"] == generator.tokenizer.decode(choice["token_ids"], skip_special_tokens=True)
