"""On which line each value of a TOML file stands."""

import json
import tomllib
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from lightning_core.config.files import toml_lines

TEXT = '''# a comment = 1
agent = "a:b"  # = [
"quoted key".'and.more' = 1979-05-27 07:32:00
text = """
[not.a.table]
key = "no" \\""" ""\"""
literal = \'\'\'
it's [x]
\'\'\'
list = [[1, 2.5],
  [3], # ]
  {a = "}", b = [4]},
]

[algorithm]
name = "apo"
deep.er = {x = 1, y.z = 2}

[ algorithm . "sub" ]
seed = +1e-5

[[samples]]
q = 1

[[samples]]
q = 2
[samples.more]
n = ""

[[samples.inner]]
k = 'v'
'''


def places(value: Any, place: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [each for key, inner in items for each in ((*place, key), *places(inner, (*place, key)))]


def test_every_value_has_the_line_on_which_it_stands() -> None:
    lines = toml_lines(TEXT)
    assert set(places(tomllib.loads(TEXT))) == set(lines)
    assert {place: lines[place] for place in lines if len(place) == 1} == {
        ("agent",): 2,
        ("quoted key",): 3,
        ("text",): 4,
        ("literal",): 7,
        ("list",): 10,
        ("algorithm",): 15,
        ("samples",): 22,
    }
    assert [lines["list", 0, 1], lines["list", 1, 0], lines["list", 2, "b", 0]] == [10, 11, 12]
    assert [lines["algorithm", "deep", "er", "y", "z"], lines["algorithm", "sub", "seed"]] == [17, 20]
    assert [lines["samples", 0, "q"], lines["samples", 1, "q"], lines["samples", 1, "inner", 0, "k"]] == [23, 26, 31]


@pytest.mark.parametrize(
    "text", ["", "\n\n", "# nothing", "a=1", "a=[]", "a=[[[]]]", "a={}", "[a]\n[b]", 'a=""', "a=''''''"]
)
def test_small_texts(text: str) -> None:
    assert set(toml_lines(text)) == set(places(tomllib.loads(text)))


names = st.text("ab.#=[]{}\"'\\ ü", max_size=5)
scalars = st.integers(-10, 10) | st.booleans() | st.floats(allow_nan=False, allow_infinity=False, width=16) | names
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3), max_leaves=10
)


def written(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{quoted(key)} = {written(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[\n" + "".join(f"{written(inner)} , # ]\n" for inner in value) + "]"
    return quoted(value) if isinstance(value, str) else json.dumps(value)


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(names, values, max_size=4))
def test_every_value_of_any_text_has_a_line_in_the_order_of_the_text(table: dict[str, Any]) -> None:
    text = "\n".join(f"{quoted(key)} = {written(value)}" for key, value in table.items())
    lines = toml_lines(text)
    found = tomllib.loads(text)
    assert set(places(found)) == set(lines)
    in_order = [lines[place] for place in places(found)]
    assert in_order == sorted(in_order)
