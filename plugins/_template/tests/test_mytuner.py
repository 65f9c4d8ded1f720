"""What the algorithm promises, on an agent that needs no model."""

import pytest
from lightning_mytuner import MyTuner

from lightning_core import Algorithm, PromptTemplate, Trainer, rollout
from lightning_core.errors import AlgorithmError
from lightning_core.testing import AlgorithmSuite

PROMPT = PromptTemplate(template="Answer: {question}", engine="f-string")


@rollout
def agent(task: str, prompt_template: PromptTemplate) -> float:
    """An agent that does better the more often its prompt says `please`."""
    return prompt_template.format(question=task).count("please") / 2


def test_the_best_sentence_is_kept() -> None:
    tuner = MyTuner(sentences=["Think.", "please, please", "please"])
    result = Trainer(algorithm=tuner, initial_resources={"main_prompt": PROMPT}).fit(agent, ["one", "two"])
    best = (result.best_resources or {})["main_prompt"]
    assert isinstance(best, PromptTemplate)
    assert best.template == "Answer: {question}\nplease, please"
    assert result.metrics["train_reward"] == 1.0


def test_it_is_found_by_its_name_and_takes_options() -> None:
    named = {"name": "mytuner", "sentences": ["please"]}
    result = Trainer(algorithm=named, initial_resources={"main_prompt": PROMPT}).fit(agent, ["one"])
    assert result.metrics["train_reward"] == 0.5


def test_without_a_prompt_it_says_what_it_needs() -> None:
    with pytest.raises(AlgorithmError, match="mytuner needs a train_dataset, and a PromptTemplate 'main_prompt'"):
        Trainer(algorithm=MyTuner()).fit(agent, ["one"])


class TestMyTuner(AlgorithmSuite):
    """It can be stopped and continued, and takes failures for what they are; a dozen tests that come with the core."""

    def make_algorithm(self, *, seed: int) -> Algorithm:
        return MyTuner(sentences=["Think.", "Be brief."])
