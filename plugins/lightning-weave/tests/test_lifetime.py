"""From `init` to `teardown`: what is turned on in the process, and that all of it is put back."""

import os
import subprocess
import sys
import threading
import warnings
from typing import Any

import pytest
import weave
from lightning_weave import WeaveTracer, private, session
from weave.trace import api, weave_init
from weave.trace.context import call_context

from lightning_core import Trainer
from lightning_core.errors import TracerError
from lightning_core.registry import default_registry
from lightning_core.tracer.exclusive import claim_process


def state() -> dict[str, Any]:
    return {
        "client": weave.get_client(),
        "init": weave_init.init_weave,
        "finish": weave_init.finish,
        "init_disabled": weave_init.init_weave_disabled,
        "settings": api.replace_settings,
        "push": call_context.push_call,
        "pop": call_context.pop_call,
        "threads": set(threading.enumerate()),
    }


def check_as(before: dict[str, Any]) -> None:
    """Check that all is as it was; a thread of an earlier test may have ended meanwhile."""
    now = state() | {"threads": before["threads"]}
    assert now == before
    assert set(threading.enumerate()) <= before["threads"]


async def test_weave_traces_nothing_when_the_last_tracer_is_gone() -> None:
    before = state()
    one, other = WeaveTracer(), WeaveTracer()
    with one.lifespan():
        with other.lifespan():
            assert weave.get_client() is not before["client"]
        async with one.trace_context() as trace:
            weave.op(lambda: 1, name="still_here")()
        assert [span.name for span in trace.spans] == ["still_here"]
        now = state() | {"threads": before["threads"]}
        assert {name for name, value in now.items() if value != before[name]} == before.keys() - {"threads"}
    check_as(before)
    assert weave.op(lambda: 1, name="later")() == 1


async def test_what_a_run_raises_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    before = state()
    monkeypatch.setattr(private, "replace_init", lambda *args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        WeaveTracer().init()
    monkeypatch.undo()
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    with pytest.raises(TracerError, match="OTEL_SDK_DISABLED"):
        WeaveTracer().init()
    monkeypatch.undo()
    check_as(before)
    with claim_process("anything", not_beside={"weave": "nobody is there"}):
        pass


def test_a_program_that_has_called_weave_init_is_told_to_remove_that() -> None:
    own = private.make_client(object(), "team", "project")
    private.set_client(own)
    try:
        with pytest.raises(TracerError, match=r"has called weave\.init\(\), so its calls go to Weave .*; remove that"):
            WeaveTracer().init()
        assert weave.get_client() is own
    finally:
        private.set_client(None)
    assert session._users == 0


def hidden(inputs: dict[str, object]) -> dict[str, object]:
    return dict.fromkeys(inputs, "hidden")


@pytest.mark.parametrize("is_disabled", [False, True])
async def test_what_an_agents_init_hides_is_hidden(
    tracer: WeaveTracer, monkeypatch: pytest.MonkeyPatch, is_disabled: bool
) -> None:
    async with tracer.trace_context() as trace:
        with monkeypatch.context() as environment:
            environment.setenv("WEAVE_DISABLED", str(is_disabled))
            weave.init("team/project", postprocess_inputs=hidden)
        weave.op(lambda said: 1, name="login")("s3cret")
    assert trace.spans[0].attributes["agentlightning.operation.input.said"] == "hidden"


async def test_an_agent_cannot_switch_weave_off_for_the_process(
    tracer: WeaveTracer, caplog: pytest.LogCaptureFixture
) -> None:
    ours = weave.get_client()
    async with tracer.trace_context() as trace:
        for _ in range(2):
            assert weave.init("team/anything", settings={"disabled": True}) is ours
        weave.op(lambda: 1, name="one")()
    assert [span.name for span in trace.spans] == ["one"]
    assert weave.get_client() is ours
    assert not private.is_disabled()
    assert "lightning.weave_settings_skipped" in caplog.text


def test_agentops_in_the_same_process_is_refused_and_named() -> None:
    refused = r"'weave' cannot work .* 'agentops' is at work: both wrap the same"
    with claim_process("agentops"), pytest.raises(TracerError, match=refused):
        WeaveTracer().init()
    refused = r"'agentops' cannot work .* 'weave' is at work: both wrap the same"
    with WeaveTracer().lifespan(), pytest.raises(TracerError, match=refused):
        claim_process("agentops").__enter__()
    assert session._users == 0


def test_a_tracer_that_fails_to_end_lets_weave_go() -> None:
    before = state()
    tracer = WeaveTracer()
    tracer.init()
    tracer._undo.callback(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        tracer.teardown()
    check_as(before)
    with claim_process("anything", not_beside={"weave": "nobody is there"}):
        pass


def test_weave_that_is_switched_off_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEAVE_DISABLED", "true")
    with pytest.raises(TracerError, match="WEAVE_DISABLED is set, so no call would be recorded; unset it"):
        WeaveTracer().init()


def test_settings_of_the_user_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEAVE_CAPTURE_CODE", "true")
    monkeypatch.setenv("WEAVE_CLIENT_PARALLELISM", "7")
    with WeaveTracer().lifespan():
        assert os.environ["WEAVE_CAPTURE_CODE"] == "true"
        assert os.environ["WEAVE_CLIENT_PARALLELISM"] == "7"
        assert os.environ["WEAVE_PRINT_CALL_LINK"] == "false"


@pytest.mark.parametrize(
    "option", [{"project_name": "p"}, {"instrument_managed": True}, {"weave_user_settings": object()}]
)
def test_options_of_0_3_are_taken_with_a_warning(option: dict[str, object]) -> None:
    (name,) = option
    with pytest.warns(DeprecationWarning, match=rf"WeaveTracer\({name}=\) has no effect"):
        WeaveTracer(**option)  # type: ignore[arg-type]


def test_it_is_found_by_its_name_and_importing_it_imports_no_weave() -> None:
    assert default_registry().load("tracers", "weave") is WeaveTracer
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Trainer(tracer={"name": "weave", "store_timeout_seconds": 30.0})
    check = "import sys, lightning_weave; sys.exit('weave' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], timeout=200, check=False).returncode == 0
