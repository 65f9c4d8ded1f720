"""Other people's texts on a terminal."""

import pytest

from lightning_core.texts import cut, shortened, visible


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b]0;title\x07\x1b[31mred", "\\x1b]0;title\\x07\\x1b[31mred"),
        ("a\tb\nc", "a\tb\nc"),
        ("a\rb\x9bc", "a\\rb\\x9bc"),
        ("left\u202eright", "left\\u202eright"),
        ("Größe 😀", "Größe 😀"),
    ],
)
def test_what_a_terminal_would_obey_is_shown_escaped(text: str, shown: str) -> None:
    assert visible(text) == shown


def test_value_is_told_as_json_in_one_line() -> None:
    assert shortened("two\n  lines", 20) == "two lines"
    assert shortened({"q": "Größe", "s": {1}}, 40) == '{"q": "Größe", "s": "{1}"}'
    assert shortened("abcdef", 4) == "abc…"
    assert shortened("\x1b[2J", 20) == "\\x1b[2J"


def test_line_is_cut_where_it_is_too_long() -> None:
    assert (cut("abcdef", 6), cut("abcdef", 5)) == ("abcdef", "abcd…")
