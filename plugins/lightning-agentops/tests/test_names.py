"""The names of agentops that are not public: what they do in the version that is pinned, and why they are replaced."""

from collections.abc import Iterator

import openai
import pytest
from lightning_agentops import AgentOpsTracer, library


@pytest.fixture(autouse=True)
def on() -> Iterator[None]:
    with AgentOpsTracer().lifespan():
        yield


def test_what_is_imported_is_instrumented_also_beside_a_framework() -> None:
    instrumentation = library.part(library.INSTRUMENTATION)
    keys = [each._agentops_instrumented_package_key for each in instrumentation._active_instrumentors]
    assert keys.count("openai") == 1
    assert "langgraph" not in instrumentation.TARGET_PACKAGES
    assert instrumentation._has_agentic_library is False
    instrumentation._uninstrument_providers()
    assert keys == [each._agentops_instrumented_package_key for each in instrumentation._active_instrumentors]


@pytest.mark.parametrize(("place", "name", "factory"), library.OPENAI_CALLS)
def test_what_agentops_does_not_come_to_is_wrapped_once(place: str, name: str, factory: str) -> None:
    import importlib

    owner, function = name.split(".")
    wrapped = vars(getattr(importlib.import_module(place), owner))[function]
    ours = 0
    while hasattr(wrapped, "__wrapped__"):
        ours += getattr(getattr(wrapped, "_self_wrapper", None), "__module__", "").startswith("lightning_agentops")
        wrapped = wrapped.__wrapped__
    assert ours == 1
    assert int(openai.__version__.partition(".")[0]) >= 2
