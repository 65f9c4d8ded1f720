"""What docs/proxy-models.md says of Azure reaches a server as Azure wants it."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from lightning_core import LLM, Trainer, rollout
from tests.docs.run_page import blocks

PAGE = Path(__file__).parents[2] / "docs" / "proxy-models.md"
ANSWER = {
    "id": "c",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "42"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4},
}


@pytest.fixture
async def azure() -> AsyncIterator[tuple[str, list[tuple[str, str | None]]]]:
    """Serve what records the path and the key of each call; yield its URL and the record."""
    asked: list[tuple[str, str | None]] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append((request.path_qs, request.headers.get("Authorization")))
        return web.json_response(ANSWER)

    app = web.Application()
    app.router.add_post("/{rest:.*}", answer)
    async with TestServer(app) as server:
        yield str(server.make_url("")).rstrip("/"), asked


@rollout
async def asks(task: int, llm: LLM) -> float:
    async with openai.AsyncOpenAI(base_url=llm.get_base_url(), api_key=llm.api_key) as client:
        said = await client.chat.completions.create(model=llm.model, messages=[{"role": "user", "content": "hi"}])
    return float(said.choices[0].message.content == "42")


async def test_an_agent_reaches_the_api_without_versions(azure: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    url, asked = azure
    monkeypatch.setenv("AZURE_OPENAI_API_KEY", "a-key")
    names: dict[str, Any] = {"AZURE": url}
    [code] = [each.code for each in blocks(PAGE.read_text(encoding="utf-8")) if "AZURE_OPENAI_API_KEY" in each.code]
    exec(code, names)
    model_list = names["llm_proxy"]["model_list"][:1]
    result = await Trainer(algorithm="baseline", llm_proxy={"model_list": model_list}).fit_async(asks, [1])
    assert result.metrics["train_reward"] == 1.0, result.failures
    assert asked == [("/openai/v1/chat/completions", "Bearer a-key")]
