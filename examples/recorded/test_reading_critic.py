import pytest
from general_edits import EDITS, EDITS_BY_TOPIC
from lightning_apo.experiment import Experiment
from lightning_apo.messages import ShownPrompt, critic_request
from local_endpoint import ChatMessage, ChatRequest
from playback import asks_to_reason
from reading_critic import ReadingCritic, advice_on, criticise

from lightning_core import PromptTemplate

PROMPT = ShownPrompt.of("main", PromptTemplate(template="Answer.\n\n{question}"))
LONG = "First this, then that. " * 10


def critique_of(*runs: tuple[str, float | None]) -> str:
    """Return the critique of runs, a reply and a reward each, by way of the plugin's own request."""
    experiments = [
        Experiment(
            task="What is it?\n- (A) this\n- (B) that",
            turns=[],
            operations=[],
            messages=[f"Reply: {reply}", "The answer is right." if reward else "The last option is (A); right is (B)."],
            reward=reward,
            failure=None if reward is not None else "ValueError: no",
        )
        for reply, reward in runs
    ]
    return criticise(critic_request().fill_in(prompt=PROMPT, other_prompts=[], experiments=experiments))


@pytest.mark.parametrize(
    ("runs", "advice"),
    [
        ([("(A)", 0.0), (LONG, 1.0), ("(C)", None)], EDITS_BY_TOPIC["how to go about it"]),
        ([(LONG, 0.0), (LONG, 1.0)], EDITS_BY_TOPIC["care"]),
        ([(LONG * 10, 0.0), ("(A)", 1.0)], EDITS_BY_TOPIC["brevity"]),
        ([("(A)", 1.0)], EDITS),
        ([(LONG, 0.0)], EDITS),
    ],
    ids=["bare", "like right ones", "rambling", "nothing went wrong", "nothing to be seen"],
)
def test_wrong_answers_lack_what_they_show(runs: list[tuple[str, float | None]], advice: tuple[str, ...]) -> None:
    critique = critique_of(*runs)
    assert critique.count("\n") == 0
    assert advice_on(critique) == advice


def test_the_right_answers_are_not_looked_at() -> None:
    first = critique_of(("(A)", 0.0), ("(B)", 1.0))
    assert first == critique_of(("(B)", 0.0), ("(A)", 1.0))
    assert "(A)" not in first


@pytest.mark.parametrize("reads", [True, False])
def test_an_edit_comes_from_the_pool_and_the_seed_decides_which(reads: bool) -> None:
    text = (
        "<prompt_template>\nAnswer.\n\n{question}\n</prompt_template>\n"
        "<critique>\n- Bare. The prompt should say more about: how to go about it.\n</critique>"
    )
    replies = set()
    for seed in range(40):
        request = ChatRequest(model="m", messages=[ChatMessage(role="user", content=text)], seed=seed)
        reply = ReadingCritic(reads=reads).reply(request)
        assert reply == ReadingCritic(reads=reads).reply(request)
        assert reply is not None
        replies |= set(reply.splitlines()) & set(EDITS)
    assert len(replies) > 5
    assert replies <= set(EDITS_BY_TOPIC["how to go about it"])


def test_no_topic_is_all_about_reasoning() -> None:
    for edits in EDITS_BY_TOPIC.values():
        assert sum(map(asks_to_reason, edits)) <= len(edits) / 2
