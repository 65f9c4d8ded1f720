"""Text that can be written down."""

from typing import Any

import pytest
from hypothesis import given, strategies as st

from lightning_core.types.text import well_formed, well_formed_value

anything = st.text(st.characters(exclude_categories=()))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ""),
        ("plain", "plain"),
        ("é漢😀\ufeff", "é漢😀\ufeff"),
        ("\ufeffa\ud800", "\ufeffa\ufffd"),
        ("a\ud800", "a\ufffd"),
        ("\udcffb", "\ufffdb"),
        ("\ud800\ud800c", "\ufffd\ufffdc"),
        ("\ud83d\ude00", "😀"),
        ("\ude00\ud83d", "\ufffd\ufffd"),
        ("漢\ud800😀", "漢\ufffd😀"),
    ],
    ids=ascii,
)
def test_lone_surrogates_are_replaced_and_nothing_else_is(text: str, expected: str) -> None:
    assert well_formed(text) == expected


@given(anything)
def test_every_text_can_be_written_down_afterwards(text: str) -> None:
    mended = well_formed(text)
    assert mended.encode().decode() == mended
    assert well_formed(mended) is mended
    if not any("\ud800" <= character <= "\udfff" for character in text):
        assert mended is text


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (3, 3),
        (None, None),
        (["\ud800", 1, ("\ud800",)], ["\ufffd", 1, ("\ufffd",)]),
        ({"\ud800": {"a": ["\ud800"]}, 1: "b"}, {"\ufffd": {"a": ["\ufffd"]}, 1: "b"}),
    ],
    ids=ascii,
)
def test_texts_are_replaced_however_deep_they_lie(value: Any, expected: Any) -> None:
    assert well_formed_value(value) == expected
