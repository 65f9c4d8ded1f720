"""Names under the module paths of agentlightning 0.3."""

import importlib
import logging
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import lightning_core as agl
from lightning_core import former
from lightning_core.logs import reset_logging


@pytest.mark.parametrize("path", ["reward", "emitter", "emitter.reward"])
async def test_the_decorator_reward_emits_what_a_function_returns(path: str) -> None:
    reward = importlib.import_module(f"lightning_core.{path}").reward

    @reward
    def grade() -> float:
        return 0.25

    @reward
    async def grade_later() -> float:
        return 0.5

    tracer = agl.OtelTracer()
    tracer.init()
    async with tracer.trace_context("t") as trace:
        assert grade() == 0.25
        assert await grade_later() == 0.5
    tracer.teardown()
    assert [agl.get_reward_value(span) for span in trace.spans] == [0.25, 0.5]


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("types.core", "Rollout"),
        ("types.tracer", "Span"),
        ("litagent", "LitAgent"),
        ("reward", "find_final_reward"),
        ("utils.otel", "query_linked_spans"),
        ("store.threading", "LightningStoreThreaded"),
    ],
)
def test_a_star_gives_the_names_of_a_module_that_is_made(path: str, name: str) -> None:
    names: dict[str, Any] = {}
    exec(f"from lightning_core.{path} import *", names)
    assert names[name] is getattr(importlib.import_module(f"lightning_core.{path}"), name)


def test_configure_logger_shows_the_logs_of_one_logger():
    with pytest.warns(DeprecationWarning, match="configure_logger is deprecated; call setup_logging"):
        logger = agl.configure_logger(logging.WARNING)
    try:
        assert (logger.name, logger.level) == ("lightning_core", logging.WARNING)
        assert any(isinstance(handler, logging.StreamHandler) for handler in logger.handlers)
    finally:
        reset_logging()


def test_an_import_of_each_name_that_this_plugin_adds_to_a_module_says_so_without_it(monkeypatch: pytest.MonkeyPatch):
    core = Path(str(agl.__file__)).parent
    listed = core.parent / "tests" / "docs" / "agentlightning_0_3_modules.txt"
    unsaid = []
    for path, *names in map(str.split, listed.read_text(encoding="utf-8").splitlines()):
        if not core.joinpath(*path.split(".")).with_suffix(".py").is_file():
            continue
        module = importlib.import_module(f"lightning_core.{path}")
        with monkeypatch.context() as without:
            without.setattr(former, "find_former", lambda: None)
            lacks = [name for name in names if not _has(module, name)]
        unsaid += [f"{path}.{name}" for name in lacks if _has(module, name)]
    assert unsaid == []


def _has(module: ModuleType, name: str) -> bool:
    try:
        return hasattr(module, name)
    except ImportError:
        return True
