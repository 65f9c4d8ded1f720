"""What the model that rewrites prompts reads."""

from lightning_apo.experiment import Experiment
from lightning_apo.messages import ShownPrompt
from lightning_gepa.search import record_of, request_for

from lightning_core import PromptTemplate

RUN = Experiment(
    task="What does a pen cost?",
    turns=["user: What does a pen cost?", "assistant calls the tool look_up with {}", "tool: 1.40"],
    operations=["search(query=pen) failed: out of order"],
    messages=["Right is 1.50."],
    reward=0.5,
    failure=None,
    rewards={"accuracy": 0.5, "speed": 1.0},
)


def test_a_run_is_shown_with_its_conversation_tools_errors_messages_and_rewards() -> None:
    prompt = PromptTemplate(template="Answer {{ question }}", engine="jinja")
    request = request_for(prompt.template, [record_of(RUN)], ShownPrompt.of("main", prompt))
    expected = """# Example 1
## Task
What does a pen cost?

## Conversation, with calls of tools and their results
### Item 1
user: What does a pen cost?

### Item 2
assistant calls the tool look_up with {}

### Item 3
tool: 1.40

## Operations
### Item 1
search(query=pen) failed: out of order

## Messages of the agent
### Item 1
Right is 1.50.

## Reward
accuracy 0.5, speed 1
"""
    assert expected in request
    assert "```\nAnswer {{ question }}\n```" in request
    assert "In place of {{ question }} each task has its own text" in request


def test_a_run_that_failed_is_shown_with_the_reason_in_place_of_a_reward() -> None:
    failed = Experiment(task="t", turns=[], operations=[], messages=[], reward=None, failure="ValueError: no answer")
    assert record_of(failed) == {"Task": "t", "Failure": "ValueError: no answer"}


def test_a_prompt_without_placeholders_is_to_stay_without() -> None:
    prompt = PromptTemplate(template="Be brief.")
    assert request_for("Be brief.", [record_of(RUN)], ShownPrompt.of("main", prompt)).endswith("use no placeholders.")
