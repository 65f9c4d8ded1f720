"""The root package offers its names lazily, and offers just those that it declares."""

import ast
from pathlib import Path

import pytest

import lightning_core


def test_every_declared_name_can_be_imported():
    for name in lightning_core.__all__:
        assert getattr(lightning_core, name) is not None
    assert set(lightning_core.__all__) <= set(dir(lightning_core))


def test_type_checkers_and_the_running_program_see_the_same_names():
    tree = ast.parse(Path(lightning_core.__file__).read_text(encoding="utf-8"))
    (guard,) = (node for node in tree.body if isinstance(node, ast.If))
    declared = {
        alias.name: node.module for node in guard.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert set(declared) == set(lightning_core.__all__)
    for name, module in declared.items():
        assert f"lightning_core.{lightning_core._HOMES[name]}" == module


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'lightning_core' has no attribute 'Trainr'"):
        lightning_core.Trainr  # noqa: B018
