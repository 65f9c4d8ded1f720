from hypothesis import given, strategies

from lightning_core.adapter.attributes import decoded, entries, nested, unflatten
from lightning_core.emitter.attributes import flatten_attributes

keys = strategies.text("ab0", min_size=1, max_size=2)
leaves = strategies.one_of(strategies.integers(), strategies.text(max_size=3), strategies.none())
trees = strategies.recursive(
    leaves,
    lambda below: strategies.one_of(
        strategies.lists(strategies.dictionaries(keys, below, min_size=1, max_size=3), min_size=1, max_size=3),
        strategies.dictionaries(keys, below, min_size=1, max_size=3),
    ),
    max_leaves=8,
)


def _lists_where_names_count(tree):
    if isinstance(tree, list):
        return [_lists_where_names_count(item) for item in tree]
    if not isinstance(tree, dict):
        return tree
    items = {name: _lists_where_names_count(value) for name, value in tree.items()}
    counted = set(items) == {str(position) for position in range(len(items))}
    return [items[str(position)] for position in range(len(items))] if counted else items


@given(strategies.dictionaries(keys, trees, min_size=1, max_size=3))
def test_what_was_flattened_is_nested_again(tree):
    assert unflatten(flatten_attributes(tree).items()) == _lists_where_names_count(tree)


def test_names_that_do_not_count_from_zero_without_a_gap_stay_names():
    assert nested({"p.0.a": 1, "p.2.a": 2}, "p") == {"0": {"a": 1}, "2": {"a": 2}}
    assert nested({"p.0.a": 1, "p.note": 2}, "p") == {"0": {"a": 1}, "note": 2}
    assert entries({"10": "c", "2": "b", "note": "x"}) == ["b", "c"]


def test_the_first_prefix_that_is_there_counts():
    attributes = {"two.a": 1, "three": "plain", "twofold": 3}
    assert nested(attributes, "one", "two") == {"a": 1}
    assert nested(attributes, "three") == "plain"
    assert nested(attributes, "one") is None


def test_a_name_that_is_a_value_and_a_prefix_keeps_what_stands_under_it():
    assert nested({"p.a": 1, "p.a.b": 2}, "p") == nested({"p.a.b": 2, "p.a": 1}, "p") == {"a": {"b": 2}}


def test_json_is_decoded_and_other_text_kept():
    assert decoded('[{"a": null}]') == [{"a": None}]
    assert decoded("hello") == "hello"
    assert decoded("[not json") == "[not json"
    assert decoded("[" * 10_000) == "[" * 10_000
