"""A completion that repeats its prompt: what is recorded of its tokens."""

import json
from typing import Any

import pytest
from lightning_proxy.answer import Answer
from lightning_proxy.apis import DIALECTS, Assembler
from lightning_proxy.sse import ServerEvent

PROMPT, ANSWER = [10, 11, 12], [20, 21]
OF_PROMPT, OF_ANSWER = [None, -0.1, -0.2], [-0.3, -0.4]


def choice(ids: list[int], logprobs: list[float | None], **more: Any) -> dict[str, Any]:
    return {"index": 0, "text": "x", "token_ids": ids, "logprobs": {"token_logprobs": logprobs}, **more}


def read(*pieces: dict[str, Any], stream: bool) -> Answer:
    """Read an answer as vLLM gives it: `token_ids` are those of the answer, log-probabilities all that were asked."""
    dialect = DIALECTS["/completions"]
    if not stream:
        (whole,) = pieces
        return dialect.read({"id": "cmpl-1", "choices": [whole]})
    assembler = Assembler(dialect)
    for piece in pieces:
        fields = {"id": "cmpl-1", "choices": [piece]}
        data = json.dumps(fields).encode()
        assembler.feed(ServerEvent(b"data: " + data + b"\n\n", "", data), fields)
    return assembler.answer()


@pytest.mark.parametrize("echoed", [OF_PROMPT, []], ids=["echo", "no echo"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_logprobs_are_those_of_the_answers_tokens(echoed: list[float | None], stream: bool) -> None:
    if stream:
        first = choice(ANSWER[:1], [*echoed, *OF_ANSWER[:1]], prompt_token_ids=PROMPT)
        pieces = [first, choice(ANSWER[1:], [*OF_ANSWER[1:]], finish_reason="stop")]
    else:
        pieces = [choice(ANSWER, [*echoed, *OF_ANSWER], prompt_token_ids=PROMPT, finish_reason="stop")]

    answer = read(*pieces, stream=stream)

    assert answer.prompt_token_ids == PROMPT
    assert (answer.choices[0].token_ids, answer.choices[0].logprobs) == (ANSWER, OF_ANSWER)
