"""The names of agentops that are not public: what they do in the version that is pinned, and why they are replaced."""

from collections.abc import Iterator

import pytest
from agentops_parts import CALL, USER
from lightning_agentops import AgentOpsTracer, library


@pytest.fixture(autouse=True)
def on() -> Iterator[None]:
    with AgentOpsTracer().lifespan():
        yield


def test_its_tracer_is_told_another_provider_than_the_global_one() -> None:
    core = library.part(library.CORE).tracer
    assert core.initialized
    assert core.get_tracer("any")._provider is core.provider


def test_what_is_imported_is_instrumented_also_beside_a_framework() -> None:
    instrumentation = library.part(library.INSTRUMENTATION)
    keys = [each._agentops_instrumented_package_key for each in instrumentation._active_instrumentors]
    assert keys.count("openai") == 1
    assert "langgraph" not in instrumentation.TARGET_PACKAGES
    assert instrumentation._has_agentic_library is False
    instrumentation._uninstrument_providers()
    assert keys == [each._agentops_instrumented_package_key for each in instrumentation._active_instrumentors]


def test_handlers_read_requests_and_answers_without_headers() -> None:
    handle = library.part(library.STREAMS).handle_chat_attributes
    assert handle(kwargs={"model": "m", "messages": USER})["gen_ai.prompt.0.content"] == "hi"
    answer = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "ok", "tool_calls": [CALL]}}]}
    assert handle(return_value=answer)["gen_ai.completion.0.content"] == "ok"
    for name in ("handle_chat_attributes", *library._HANDLERS):
        holder = library.STREAMS if name == "handle_chat_attributes" else library.OPENAI
        read = getattr(library.part(holder), name)(kwargs={"model": "m", "extra_headers": {"X": "s3cret"}})
        assert "s3cret" not in str(read)
        assert read
