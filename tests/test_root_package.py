"""The root package offers its names lazily, and offers just those that it declares."""

import ast
from pathlib import Path

import pytest

import lightning_core
from lightning_core.former import SUPPLIED, supplied


def test_importing_everything_gives_the_names_that_type_checkers_see():
    tree = ast.parse(Path(lightning_core.__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    declared = {alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    given: dict[str, object] = {}
    exec("from lightning_core import *", given)
    assert given.keys() - {"__builtins__"} == declared
    assert all(value is not None for value in given.values())
    assert declared <= set(dir(lightning_core))


def test_a_name_that_a_plugin_supplies_says_which_one_to_install(monkeypatch):
    monkeypatch.setitem(SUPPLIED, "LLMProxy", "lightning_absent")
    with pytest.raises(ImportError, match=r"LLMProxy ships in lightning-absent, which is not installed. Install it"):
        supplied("LLMProxy")


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'lightning_core' has no attribute 'Trainr'"):
        lightning_core.Trainr  # noqa: B018
