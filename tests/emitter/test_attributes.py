import pytest

from lightning_core.emitter import emit_message


def attributes_of(attributes: dict[str, object]) -> dict[str, object]:
    emitted = emit_message("m", attributes=attributes, propagate=False).attributes
    del emitted["agentlightning.message.body"]
    return emitted


def test_nested_attributes_are_joined_with_dots() -> None:
    assert attributes_of({"a": {"b": 1, "c": {"d": "x"}}, "e.f": True}) == {"a.b": 1, "a.c.d": "x", "e.f": True}


def test_list_of_one_type_stays_a_list_and_others_are_counted_from_0() -> None:
    nested = {"same": [1, 2], "mixed": [1, "x", None], "deep": [{"k": 1}, {"k": [2.0]}]}
    assert attributes_of(nested) == {
        "same": [1, 2],
        "mixed.0": 1,
        "mixed.1": "x",
        "mixed.2": None,
        "deep.0.k": 1,
        "deep.1.k": [2.0],
    }


def test_none_and_empty_values_survive() -> None:
    assert attributes_of({"n": None, "l": [], "d": {}}) == {"n": None, "l": [], "d": {}}


def test_names_must_be_strings_and_unique() -> None:
    with pytest.raises(ValueError, match=r"an attribute under 'a' is named 1 \(int\)"):
        attributes_of({"a": {1: "x"}})
    with pytest.raises(ValueError, match=r"'a\.b' is given twice"):
        attributes_of({"a": {"b": 1}, "a.b": 2})
