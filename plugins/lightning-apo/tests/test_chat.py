"""Whatever a model, its server or its client replies: one answer that cannot be used is one lost branch."""

import json
import traceback
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web
from lightning_apo.models import ModelFailed, ask
from toy_models import ToyModels


def choices(*choices: Any) -> str:
    return json.dumps({"id": "1", "object": "chat.completion", "created": 0, "model": "m", "choices": choices})


PARTS = [{"type": "text", "text": "Think first."}]
MALFORMED = {
    "half a reply": ('{"id": "1", "choi', "JSONDecodeError"),
    "no body": ("", "JSONDecodeError"),
    "no message": (choices({"index": 0, "finish_reason": "stop"}), "did not reply with a chat completion"),
    "message null": (choices({"index": 0, "message": None}), "did not reply with a chat completion"),
    "a text for a choice": (choices("x"), "did not reply with a chat completion"),
    "a text for choices": ('{"choices": "x"}', "did not reply with a chat completion"),
    "a text for a message": (choices({"message": "x"}), "did not reply with a chat completion"),
    "a list": ("[1]", "did not reply with a chat completion"),
    "parts": (choices({"message": {"role": "assistant", "content": PARTS}}), "gave no text"),
    "white space": (choices({"message": {"role": "assistant", "content": " \n"}}), "gave no text"),
    "no content": (choices({"message": {"role": "assistant"}, "finish_reason": "stop"}), "gave no text"),
}


@pytest.mark.parametrize("case", MALFORMED)
async def test_a_malformed_answer_is_a_model_that_failed(models: ToyModels, case: str) -> None:
    body, message = MALFORMED[case]
    models.reply = lambda seed: web.Response(text=body, content_type="application/json")
    async with models.client() as client:
        with pytest.raises(ModelFailed, match=message) as caught:
            await ask(client, "text", model="critic", temperature=1.0, seed=0)
    assert "model 'critic'" in str(caught.value)


@pytest.mark.parametrize("error", [TimeoutError("too slow"), ConnectionResetError("reset"), KeyError("choices")])
async def test_whatever_a_client_raises_is_a_model_that_failed(error: Exception) -> None:
    async def create(**request: Any) -> Any:
        raise error

    client: Any = SimpleNamespace(chat=SimpleNamespace(completions=SimpleNamespace(create=create)))
    with pytest.raises(ModelFailed, match=f"model 'm' gave no answer: {type(error).__name__}: ") as caught:
        await ask(client, "text", model="m", temperature=1.0, seed=0)
    assert caught.value.__cause__ is error


@pytest.mark.parametrize("password", ["hunter22", "hunt@er22"])
async def test_user_and_password_of_the_endpoint_are_not_shown(password: str) -> None:
    url = f"http://alice:{password}@127.0.0.1/v1"

    async def create(**request: Any) -> Any:
        raise RuntimeError(f"404 for url {url}/chat")

    completions = SimpleNamespace(create=create)
    client: Any = SimpleNamespace(chat=SimpleNamespace(completions=completions), base_url=url)
    with pytest.raises(ModelFailed, match=r"404 for url http://\*\*\*@127\.0\.0\.1/v1/chat") as raised:
        await ask(client, "text", model="m", temperature=1.0, seed=0)

    async def page(**request: Any) -> Any:
        return "<h1>Welcome</h1>"

    completions.create = page
    with pytest.raises(ModelFailed, match=r"http://\*\*\*@127\.0\.0\.1/v1 did not reply") as answered:
        await ask(client, "text", model="m", temperature=1.0, seed=0)
    shown = "".join(line for caught in (raised, answered) for line in traceback.format_exception(caught.value))
    assert "alice" not in shown
    assert "er22" not in shown
