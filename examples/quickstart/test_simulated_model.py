"""What the simulation must be like for the quickstart to show a search at work."""

import functools
import json
from pathlib import Path
from statistics import mean

import endpoint
import pytest
import simulated_model
import yaml
from agent import call_tool, grade
from beam_search import beam_search
from endpoint import editor
from local_endpoint import ChatMessage, ChatRequest
from prompt_edits import EDITS
from simulated_model import ADDS_UP, COVERS_ALL, ENDS_WITH_ANSWER, LOOKS_UP
from skill import Skill

FOLDER = Path(__file__).parent
ORDERS = [json.loads(line) for line in (FOLDER / "val.jsonl").read_text(encoding="utf-8").splitlines()]
CONFIG = yaml.safe_load((FOLDER / "config.yaml").read_text(encoding="utf-8"))
FIRST: str = CONFIG["initial_resources"]["main_prompt"]["template"]
SKILLS = [LOOKS_UP, COVERS_ALL, ADDS_UP, ENDS_WITH_ANSWER]


def reward(template: str, order: dict[str, str]) -> float:
    messages = [ChatMessage(role="user", content=template.replace("{question}", order["question"]))]
    reply = endpoint.answer(ChatRequest(model="m", messages=messages))
    if isinstance(reply, list):
        results = [call_tool(call.name, json.dumps(call.arguments)) for call in reply]
        messages += [ChatMessage(role="tool", content=result) for result in results]
        reply = endpoint.answer(ChatRequest(model="m", messages=messages))
    assert isinstance(reply, str)
    return grade(reply, order["total"])[0]


@functools.cache
def score(template: str) -> float:
    return mean(reward(template, order) for order in ORDERS)


def with_edits(*edits: str) -> str:
    return FIRST.replace("\n\n", "\n" + "\n".join(edits) + "\n\n")


def test_the_first_prompt_scores_low_and_the_best_prompts_high() -> None:
    helpful = [next(edit for edit in EDITS if skill.helps.search(edit)) for skill in SKILLS]
    assert 0.2 <= score(FIRST) <= 0.35
    assert score(with_edits(*helpful)) >= 0.85


@pytest.mark.parametrize("skill", SKILLS, ids=lambda skill: skill.name)
def test_several_edits_help_each_skill_and_some_hurt_it(skill: Skill) -> None:
    assert not skill.helps.search(FIRST)
    assert sum(bool(skill.helps.search(edit)) for edit in EDITS) >= 2
    assert sum(bool(skill.hurts.search(edit)) for edit in EDITS) >= 2


def test_no_single_edit_does_what_a_search_does() -> None:
    singles = [score(with_edits(edit)) for edit in EDITS]
    assert max(singles) < score(FIRST) + 0.2
    assert mean(singles) <= score(FIRST)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_beam_search_raises_the_score_by_a_quarter(seed: int) -> None:
    best = beam_search(FIRST, score=score, editor=editor, width=2, branch=4, rounds=4, seed=seed)
    assert score(best) >= score(FIRST) + 0.25


def test_the_same_request_gets_the_same_reply_and_another_prompt_or_seed_other_mistakes() -> None:
    rewards = [reward(FIRST, order) for order in ORDERS]
    assert rewards == [reward(FIRST, order) for order in ORDERS]
    assert rewards != [reward(with_edits("Be polite."), order) for order in ORDERS]
    shown = [[LOOKS_UP.shown(f"prompt {number}", seed) for number in range(50)] for seed in (0, 1)]
    assert shown[0] != shown[1]


def test_a_skill_is_shown_as_often_as_it_says() -> None:
    def share(instruction: str) -> float:
        return mean(LOOKS_UP.shown(f"{instruction} {number}", 0) for number in range(2000))

    assert share("Please answer.") == pytest.approx(LOOKS_UP.unasked, abs=0.03)
    assert share("Use the tools.") == pytest.approx(LOOKS_UP.asked, abs=0.03)
    assert share("Use the tools. A good estimate is enough.") == pytest.approx(LOOKS_UP.asked / 2, abs=0.03)


def test_a_message_without_an_order_is_answered_as_a_model_would() -> None:
    request = ChatRequest(model="m", messages=[ChatMessage(role="user", content="Hello")])
    assert "no order" in simulated_model.answer(request)
