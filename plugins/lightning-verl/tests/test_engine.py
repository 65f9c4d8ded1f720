"""verl's client as a backend of the proxy: the algorithm says how tokens are drawn."""

import gc
import weakref
from typing import Any

import pytest
from lightning_verl.serving import VerlEngine
from toy_policy import Client, Letters

END = 8


def engine(client: Client, **more: Any) -> VerlEngine:
    return VerlEngine(
        client,
        tokenizer=Letters(),
        ends={END, 9},
        sampling={"temperature": 1.0, "top_p": 0.9, "top_k": -1},
        **{"max_response_tokens": 10, "max_context_tokens": 16, **more},
    )


async def test_an_agent_cannot_change_the_distribution_that_is_learned_from() -> None:
    client = Client()
    answer = await engine(client).generate(
        [1, 2], {"temperature": 0.1, "top_p": 0.5, "seed": 3, "stop": ["x"]}, request_id="at-1"
    )
    ((request_id, prompt, sampling),) = client.asked
    assert (request_id, prompt) == ("at-1", [1, 2])
    assert sampling == {
        "temperature": 1.0,
        "top_p": 0.9,
        "top_k": -1,
        "repetition_penalty": 1.0,
        "logprobs": True,
        "max_tokens": 10,
        "stop": ["x"],
    }
    assert (list(answer.token_ids), list(answer.logprobs or ())) == ([111, 107], [-0.5, -1.5])
    assert answer.finish_reason == "stop"


async def test_the_shortest_of_all_limits_holds() -> None:
    client = Client("length")
    policy = engine(client)
    assert (await policy.generate([1], {"max_tokens": 3}, request_id="a")).finish_reason == "length"
    await policy.generate([1], {"max_tokens": 300}, request_id="a")
    await policy.generate([1] * 14, {}, request_id="a")
    assert [sampling["max_tokens"] for _, _, sampling in client.asked] == [3, 10, 2]


async def test_after_its_end_no_call_reaches_verl() -> None:
    client = Client()
    policy = engine(client)
    policy.close()
    with pytest.raises(RuntimeError, match="the training has ended"):
        await policy.generate([1], {}, request_id="a")
    assert client.asked == []
    gone = weakref.ref(client)
    del client
    gc.collect()
    assert gone() is None, "Ray keeps an actor for as long as somebody has its handle"


@pytest.mark.parametrize("stop_reason", ["completed", None])
@pytest.mark.parametrize(
    ("answer", "asked", "finish_reason"),
    [
        pytest.param([7, 7], {"max_tokens": 2}, "length", id="cut"),
        pytest.param([7, 7], {"max_tokens": 3}, "stop", id="shorter"),
        pytest.param([7, 8], {"max_tokens": 2}, "stop", id="ended with its last token"),
        pytest.param([7, 9], {"max_tokens": 2}, "stop", id="ended as the model's author says"),
        pytest.param([7, 6], {"max_tokens": 2, "stop_token_ids": [6]}, "stop", id="ended as the agent says"),
        pytest.param([97, 98], {"max_tokens": 2, "stop": "b"}, "stop", id="ended with a text"),
        pytest.param([97, 98], {"max_tokens": 2, "stop": ["x", "y"]}, "length", id="cut before a text"),
    ],
)
async def test_an_answer_that_was_cut_off_is_told_from_one_that_ended_where_verl_says_the_same_of_both(
    stop_reason: str | None, answer: list[int], asked: dict[str, Any], finish_reason: str
) -> None:
    client = Client(stop_reason, answer)
    assert (await engine(client).generate([1], asked, request_id="a")).finish_reason == finish_reason


async def test_an_answer_that_the_context_has_no_room_for_was_cut_off() -> None:
    answer = await engine(Client(answer=[7, 7])).generate([1] * 14, {}, request_id="a")
    assert answer.finish_reason == "length"


async def test_an_answer_has_the_weights_that_verl_s_servers_sampled_it_with() -> None:
    over_two = await engine(Client(min_global_steps=3, max_global_steps=4)).generate([1], {}, request_id="a")
    assert over_two.weight_versions == (3, 4)
    before_any = await engine(Client(min_global_steps=None, max_global_steps=None)).generate([1], {}, request_id="a")
    assert before_any.weight_versions is None


async def test_what_ends_an_answer_behind_a_call_of_a_tool_ends_it_beside_what_the_agent_says() -> None:
    client = Client(answer=[7, 5])
    policy = engine(client, max_response_tokens=2, stop_token_ids=[5])
    answer = await policy.generate([1], {"stop_token_ids": [6]}, request_id="a")
    ((_, _, sampling),) = client.asked
    assert sampling["stop_token_ids"] == [5, 6]
    assert answer.finish_reason == "stop"
