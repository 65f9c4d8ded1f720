"""How the model is made; how good it gets by it, test_train.py tells."""

import random
from pathlib import Path

import pytest
from demonstrations import demonstrate, in_pieces
from taught_model import Recipe, taught_model, well_formed_calls
from transformers import AutoTokenizer
from word_problems import Pair, make_problems, split_pairs

RECIPE = Recipe(steps=2, batch=2, hidden_size=16, layers=1)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return taught_model(tmp_path_factory.mktemp("taught"), RECIPE)


def test_it_is_made_once_for_what_it_is_made_of(model: Path) -> None:
    told: list[int] = []
    assert taught_model(model.parent, RECIPE, progress=told.append) == model
    assert told == []
    other = taught_model(model.parent, RECIPE, without=[Pair(6, 2)], progress=told.append)
    assert other != model
    assert told == [1, 2]


def test_what_a_kill_has_left_is_no_model(tmp_path: Path) -> None:
    made = taught_model(tmp_path, RECIPE)
    made.rename(made.with_name(f"{made.name}.unfinished"))
    (made.with_name(f"{made.name}.unfinished") / "config.json").write_text("half")
    assert taught_model(tmp_path, RECIPE) == made
    assert (made / "config.json").read_text() != "half"
    assert list(tmp_path.iterdir()) == [made]


def test_the_same_seed_makes_the_same_weights(model: Path, tmp_path: Path) -> None:
    again = taught_model(tmp_path, RECIPE)
    weights = "model.safetensors"
    assert (again / weights).read_bytes() == (model / weights).read_bytes()


def test_demonstrations_are_the_text_of_the_chat_template_and_survive_the_tokenizer(model: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(model)
    lot = random.Random(1)
    for _ in range(20):
        messages = demonstrate(lot)
        text = "".join(piece for piece, _ in in_pieces(messages))
        assert text == tokenizer.apply_chat_template(messages, tokenize=False)
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert tokenizer.decode(ids) == text
        assert ids == [
            token for piece, _ in in_pieces(messages) for token in tokenizer.encode(piece, add_special_tokens=False)
        ]


def test_demonstrations_leave_the_held_out_pairs_out_and_know_nothing_of_the_question() -> None:
    _, held_out = split_pairs(0)
    lot = random.Random(1)
    for _ in range(2000):
        question, call, *_ = demonstrate(lot, without=held_out)
        left, _, right = call["tool_calls"][0]["function"]["arguments"]["expression"].split()
        numbers = (int(left), int(right))
        assert (max(numbers), min(numbers)) not in held_out
        assert all(str(number) in question["content"] for number in numbers)


def test_a_model_that_was_taught_nothing_forms_no_call(model: Path) -> None:
    problems = make_problems(split_pairs(0)[1], 12, seed=0)
    assert well_formed_calls(model, problems, seed=0) == [False] * 12
