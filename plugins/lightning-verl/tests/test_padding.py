import pytest
from learning_toys import conversation, options, scored
from lightning_tokens.learning.groups import learn_from_group
from lightning_verl.daemon import (
    get_left_padded_ids_and_attention_mask,
    get_right_padded_ids_and_attention_mask,
    padded_batch,
)


@pytest.mark.parametrize(
    ("ids", "length", "left", "right"),
    [
        ([1, 2, 3], 5, ([0, 0, 1, 2, 3], [0, 0, 1, 1, 1]), ([1, 2, 3, 0, 0], [1, 1, 1, 0, 0])),
        ([1, 2, 3], 3, ([1, 2, 3], [1, 1, 1]), ([1, 2, 3], [1, 1, 1])),
        ([1, 2, 3], 2, ([2, 3], [1, 1]), ([1, 2], [1, 1])),
        ([], 2, ([0, 0], [0, 0]), ([0, 0], [0, 0])),
        ([1, 2], 0, ([], []), ([], [])),
    ],
)
def test_the_left_keeps_the_last_ids_and_the_right_the_first(ids, length, left, right):
    assert get_left_padded_ids_and_attention_mask(ids, length, 0) == left
    assert get_right_padded_ids_and_attention_mask(ids, length, 0) == right


def test_the_ids_that_were_given_are_left_alone():
    ids = [1, 2, 3]
    padded, _ = get_left_padded_ids_and_attention_mask(ids, 3, 0)
    padded.append(4)
    assert ids == [1, 2, 3]


def test_prompts_are_padded_at_the_front_and_responses_at_the_end():
    lesson = learn_from_group([scored(1.0, *conversation(2)), scored(3.0, ([5, 6], [7]))], options=options())
    made = padded_batch(lesson.rows, max_prompt_length=3, max_response_length=6, pad_token_id=0)
    batch = {name: tensor.tolist() for name, tensor in made.items()}
    assert batch["prompts"] == [[0, 0, 1], [0, 5, 6]]
    assert batch["responses"] == [[2, 3, 99, 12, 13, 0], [7, 0, 0, 0, 0, 0]]
    assert batch["input_ids"][0] == [0, 0, 1, 2, 3, 99, 12, 13, 0]
    assert batch["attention_mask"][0] == [0, 0, 1, 1, 1, 1, 1, 1, 0]
    assert batch["position_ids"][0] == [0, 0, 0, 1, 2, 3, 4, 5, 5]
    assert batch["response_mask"] == [[1, 1, 0, 1, 1, 0], [1, 0, 0, 0, 0, 0]]
    assert batch["token_level_scores"] == [[0.0, 0.0, 0.0, 0.0, 1.0, 0.0], [3.0, 0.0, 0.0, 0.0, 0.0, 0.0]]
