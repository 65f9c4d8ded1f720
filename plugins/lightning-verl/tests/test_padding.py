import pytest
from hypothesis import given, strategies as st
from lightning_verl.padding import (
    get_left_padded_ids_and_attention_mask,
    get_right_padded_ids_and_attention_mask,
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


def test_the_pad_token_is_the_one_that_was_given():
    assert get_left_padded_ids_and_attention_mask([5], 3, 7) == ([7, 7, 5], [0, 0, 1])
    assert get_right_padded_ids_and_attention_mask([5], 3, 7) == ([5, 7, 7], [1, 0, 0])


@given(st.lists(st.integers(1, 9), max_size=8), st.integers(0, 10))
def test_both_are_as_long_as_asked_and_the_mask_marks_what_was_given(ids, length):
    for pad, kept in (
        (get_left_padded_ids_and_attention_mask, ids[max(len(ids) - length, 0) :]),
        (get_right_padded_ids_and_attention_mask, ids[:length]),
    ):
        padded, mask = pad(ids, length, 0)
        assert len(padded) == len(mask) == length
        assert [one for one, there in zip(padded, mask, strict=True) if there] == kept
        assert {one for one, there in zip(padded, mask, strict=True) if not there} <= {0}


def test_the_ids_that_were_given_are_left_alone():
    ids = [1, 2, 3]
    padded, _ = get_left_padded_ids_and_attention_mask(ids, 3, 0)
    padded.append(4)
    assert ids == [1, 2, 3]
