from learning_toys import conversation, options, scored
from lightning_tokens.learning.groups import learn_from_group
from lightning_verl.padding import padded_batch


def test_prompts_are_padded_at_the_front_and_responses_at_the_end():
    lesson = learn_from_group([scored(1.0, *conversation(2)), scored(3.0, ([5, 6], [7]))], options=options())
    batch = padded_batch(lesson.rows, max_prompt_length=3, max_response_length=6, pad_token_id=0)
    assert batch["prompts"] == [[0, 0, 1], [0, 5, 6]]
    assert batch["responses"] == [[2, 3, 99, 12, 13, 0], [7, 0, 0, 0, 0, 0]]
    assert batch["input_ids"][0] == [0, 0, 1, 2, 3, 99, 12, 13, 0]
    assert batch["attention_mask"][0] == [0, 0, 1, 1, 1, 1, 1, 1, 0]
    assert batch["position_ids"][0] == [0, 0, 0, 1, 2, 3, 4, 5, 5]
    assert batch["response_mask"] == [[1, 1, 0, 1, 1, 0], [1, 0, 0, 0, 0, 0]]
    assert batch["token_level_scores"] == [[0.0, 0.0, 0.0, 0.0, 1.0, 0.0], [3.0, 0.0, 0.0, 0.0, 0.0, 0.0]]
